"""The batch every credit method reads and the record it returns: tensors only, one row per turn.

Axes: N trajectories, M turns (rows, in any order), T response tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .correspondence import Correspondence

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_BLOCK = 1 << 18


@dataclass(frozen=True)
class CreditInputs:
    """One frozen batch of turns, whole groups at a time.

    Args:
        response_mask: ``[M, T]`` bool, True where the policy sampled the token.
        trajectory_ids: ``[M]`` int64 in ``[0, N)``, the trajectory of each row.
        turn_ids: ``[M]`` int64, the place of each row in its trajectory: 0 .. K_i - 1, each once.
        group_ids: ``[N]`` int64, the group (task) of each trajectory; any distinct integers.
        rewards: ``[N]`` float, the return of each trajectory, in the environment's units.
        successes: ``[N]`` float in [0, 1], success of each trajectory (never a scaled reward).
        student_logprobs: ``[M, T]`` float, log-probs of the sampled tokens under the student context, nats.
        teacher_logprobs: ``[M, T]`` float, the same tokens under the privileged context, or None.
        valid_actions: ``[M]`` bool, whether the turn's action was valid, or None.
        span_mask: ``[M, T]`` bool, the causal span of StepOPSD, a subset of ``response_mask``, or None.
        anchor_ids: ``[M]`` int64, equal for turns of one group that saw the same observation (GiGPO), or None.
        turn_rewards: ``[M]`` float, the immediate reward of each turn (GiGPO), or None.
        correspondence: similarities between turns of one task and cross scores (AlignOPSD), or None.

    Raises:
        TypeError: an argument is no tensor or has the wrong kind of dtype.
        ValueError: a shape, an index, a device or a value inside the mask is wrong; the message names the
            argument, what it got and one fix.
    """

    response_mask: Tensor
    trajectory_ids: Tensor
    turn_ids: Tensor
    group_ids: Tensor
    rewards: Tensor
    successes: Tensor
    student_logprobs: Tensor
    teacher_logprobs: Tensor | None = None
    valid_actions: Tensor | None = None
    span_mask: Tensor | None = None
    anchor_ids: Tensor | None = None
    turn_rewards: Tensor | None = None
    correspondence: Correspondence | None = None

    def __post_init__(self) -> None:
        _check_kinds(self)
        _check_shapes(self)
        _check_layout(self)
        _check_values(self)

    @property
    def num_rows(self) -> int:
        """M, the number of turns."""
        return self.response_mask.shape[0]

    @property
    def num_trajectories(self) -> int:
        """N, the number of trajectories."""
        return self.group_ids.shape[0]

    @property
    def turn_counts(self) -> Tensor:
        """``[N]`` int64, K_i: turns of each trajectory."""
        return torch.bincount(self.trajectory_ids, minlength=self.num_trajectories)

    @property
    def token_counts(self) -> Tensor:
        """``[M]`` int64, sampled tokens of each turn."""
        return self.response_mask.sum(-1)

    @property
    def group_index(self) -> Tensor:
        """``[N]`` int64, ``group_ids`` renumbered to 0 .. P - 1."""
        return torch.unique(self.group_ids, return_inverse=True)[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype credit is computed and returned in: float64 if the student's log-probs are, else float32."""
        return torch.float64 if self.student_logprobs.dtype == torch.float64 else torch.float32

    def to(self, device: torch.device | str) -> CreditInputs:
        """The same batch with every tensor on ``device``."""
        moved = {}
        for name, value in _given(self):
            moved[name] = value.to(device)
        return replace(self, **moved)


@dataclass(frozen=True)
class Credit:
    """What a credit method returns.

    Args:
        advantages: ``[M, T]`` float, detached, 0 outside ``response_mask``.
        turn_weights: ``[M]`` float, the weight of each turn, 1 for plain GRPO; each method documents its own (for
            AgentOPSD it is w_k before lambda mixes it with 1).
        metrics: scalars worth logging.
        details: tensors worth plotting; each method documents its own.
    """

    advantages: Tensor
    turn_weights: Tensor
    metrics: dict[str, float] = field(default_factory=dict)
    details: dict[str, Tensor] = field(default_factory=dict)


def _given(inputs: CreditInputs) -> list[tuple[str, Tensor]]:
    """Names and values of the fields that are not None."""
    return [(f.name, getattr(inputs, f.name)) for f in fields(inputs) if getattr(inputs, f.name) is not None]


_KINDS = {
    "response_mask": ((torch.bool,), "call .bool()"),
    "span_mask": ((torch.bool,), "call .bool()"),
    "valid_actions": ((torch.bool,), "call .bool()"),
    "trajectory_ids": ((torch.int64,), "call .long()"),
    "turn_ids": ((torch.int64,), "call .long()"),
    "group_ids": ((torch.int64,), "call .long()"),
    "anchor_ids": ((torch.int64,), "number the observations and call .long()"),
    "rewards": (_FLOATS, "call .float()"),
    "successes": (_FLOATS, "call .float()"),
    "turn_rewards": (_FLOATS, "call .float()"),
    "student_logprobs": (_FLOATS, "call .float()"),
    "teacher_logprobs": (_FLOATS, "call .float()"),
}
_OPTIONAL = ("teacher_logprobs", "valid_actions", "span_mask", "anchor_ids", "turn_rewards")


def _check_kinds(inputs: CreditInputs) -> None:
    for name, (dtypes, fix) in _KINDS.items():
        value = getattr(inputs, name)
        if value is None and name in _OPTIONAL:
            continue
        if not isinstance(value, Tensor):
            raise TypeError(f"CreditInputs: {name} must be a torch.Tensor, got {type(value).__name__}; {fix}")
        if value.dtype not in dtypes:
            allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise TypeError(f"CreditInputs: {name} must be {allowed}, got {value.dtype}; {fix}")
    device = inputs.response_mask.device
    for name in _KINDS:
        value = getattr(inputs, name)
        if value is not None and value.device != device:
            raise ValueError(
                f"CreditInputs: {name} must be on the device of response_mask ({device}), got {value.device}; "
                f"move it with .to('{device}')"
            )


def _check_shapes(inputs: CreditInputs) -> None:
    mask = inputs.response_mask
    if mask.ndim != 2 or mask.numel() == 0:
        raise ValueError(
            f"CreditInputs: response_mask must be [M, T] with at least one row and one token, got {list(mask.shape)}; "
            "pass one row per turn"
        )
    if inputs.group_ids.ndim != 1 or inputs.group_ids.numel() == 0:
        raise ValueError(
            f"CreditInputs: group_ids must be [N] with at least one trajectory, got {list(inputs.group_ids.shape)}; "
            "pass one group id per trajectory"
        )
    rows, count = mask.shape[0], inputs.group_ids.shape[0]
    per_token = ("student_logprobs", "teacher_logprobs", "span_mask")
    per_turn = ("trajectory_ids", "turn_ids", "valid_actions", "anchor_ids", "turn_rewards")
    per_trajectory = ("rewards", "successes")
    expected = {name: ("[M, T]", list(mask.shape), "pad it like response_mask") for name in per_token}
    expected |= {name: ("[M]", [rows], "pass one value per turn") for name in per_turn}
    expected |= {
        name: (
            "[N]",
            [count],
            "pass one value per trajectory (constant over its turns; what varies by turn goes to turn_rewards)",
        )
        for name in per_trajectory
    }
    for name, (symbol, shape, fix) in expected.items():
        value = getattr(inputs, name)
        if value is not None and list(value.shape) != shape:
            raise ValueError(f"CreditInputs: {name} must be {symbol} = {shape}, got {list(value.shape)}; {fix}")


def _check_layout(inputs: CreditInputs) -> None:
    trajectory, turn, count = inputs.trajectory_ids, inputs.turn_ids, inputs.num_trajectories
    low, high = int(trajectory.min()), int(trajectory.max())
    if low < 0 or high >= count:
        raise ValueError(
            f"CreditInputs: trajectory_ids must lie in [0, {count}), got {low if low < 0 else high}; "
            "number trajectories in the order of group_ids"
        )
    counts = inputs.turn_counts
    if not bool((counts > 0).all()):
        absent = int((counts == 0).nonzero()[0, 0])
        raise ValueError(
            f"CreditInputs: trajectory_ids must name every trajectory, got no row for trajectory {absent}; "
            "leave trajectories without turns out of group_ids, rewards and successes"
        )
    inside = (turn >= 0) & (turn < counts[trajectory])
    if not bool(inside.all()):
        row = int((~inside).nonzero()[0, 0])
        owner = int(trajectory[row])
        raise ValueError(
            f"CreditInputs: turn_ids must be 0 .. K - 1, each once per trajectory, got {int(turn[row])} in row {row} "
            f"of trajectory {owner}, which has {int(counts[owner])} rows; number its turns without gaps"
        )
    places = counts.cumsum(0)[trajectory] - counts[trajectory] + turn
    times = torch.bincount(places, minlength=turn.numel())
    if not bool((times == 1).all()):
        row = int((times[places] > 1).nonzero()[0, 0])
        raise ValueError(
            f"CreditInputs: turn_ids must be 0 .. K - 1, each once per trajectory, got {int(turn[row])} twice in "
            f"trajectory {int(trajectory[row])}; drop copied rows and number the turns without gaps"
        )


def _check_values(inputs: CreditInputs) -> None:
    mask = inputs.response_mask
    covered = mask.any(-1)
    if not bool(covered.all()):
        row = int((~covered).nonzero()[0, 0])
        raise ValueError(
            f"CreditInputs: response_mask must hold a sampled token in every row, got none in row {row}; "
            "drop padding rows before credit"
        )
    for name in ("rewards", "successes", "turn_rewards"):
        value = getattr(inputs, name)
        if value is not None and not bool(torch.isfinite(value).all()):
            index = int((~torch.isfinite(value)).nonzero()[0, 0])
            raise ValueError(
                f"CreditInputs: {name} must be finite, got {float(value[index])} at index {index}; "
                "leave out a rollout whose reward is missing"
            )
    bad = (inputs.successes < 0) | (inputs.successes > 1)
    if bool(bad.any()):
        index = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"CreditInputs: successes must lie in [0, 1], got {float(inputs.successes[index])} at index {index}; "
            "pass the success flag, not the scaled reward"
        )
    if inputs.span_mask is not None and bool((inputs.span_mask & ~mask).any()):
        row = int((inputs.span_mask & ~mask).any(-1).nonzero()[0, 0])
        raise ValueError(
            f"CreditInputs: span_mask must be a subset of response_mask, got a token outside it in row {row}; "
            "combine them with &"
        )
    for name in ("student_logprobs", "teacher_logprobs"):
        value = getattr(inputs, name)
        if value is not None:
            _check_finite(name, value, mask)


def _check_finite(name: str, value: Tensor, mask: Tensor) -> None:
    """Raise if ``value`` is NaN or infinite inside ``mask``: one pass of sums, which such a value always poisons."""
    value = value.detach()
    step = max(1, _BLOCK // value.shape[1])
    for start in range(0, value.shape[0], step):
        kept = value[start : start + step].masked_fill(~mask[start : start + step], 0)
        if math.isfinite(kept.sum(dtype=torch.float64 if kept.dtype == torch.float64 else torch.float32).item()):
            continue
        bad = ~torch.isfinite(kept)
        if bool(bad.any()):
            row, token = bad.nonzero()[0].tolist()
            raise ValueError(
                f"CreditInputs: {name} must be finite inside response_mask, got {float(kept[row, token])} at row "
                f"{start + row}, token {token}; check the scoring pass (logits, temperature, mask)"
            )
