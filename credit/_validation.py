"""Checks of a :class:`CreditInputs`: kinds, devices, shapes, layout, values; one pass over log-probs and masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ._masks import has_stray, row_blocks

if TYPE_CHECKING:
    from .inputs import CreditInputs

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
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


def validate_inputs(inputs: CreditInputs) -> None:
    """Raise TypeError or ValueError naming the first field that breaks the contract of :class:`CreditInputs`."""
    _check_kinds(inputs)
    _check_shapes(inputs)
    _check_layout(inputs)
    _check_values(inputs)


def _check_kinds(inputs: CreditInputs) -> None:
    for name, (dtypes, fix) in _KINDS.items():
        value: Any = getattr(inputs, name)
        if value is None and name in _OPTIONAL:
            continue
        if not isinstance(value, Tensor):
            raise TypeError(f"CreditInputs: {name} must be a torch.Tensor, got {type(value).__name__}; {fix}")
        dtype = getattr(value, "dtype", None)
        if dtype not in dtypes:
            allowed = " or ".join(str(kind).removeprefix("torch.") for kind in dtypes)
            raise TypeError(f"CreditInputs: {name} must be {allowed}, got {dtype}; {fix}")
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
    covered = inputs.token_counts > 0
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
    if inputs.span_mask is not None:
        _check_span(inputs.span_mask, mask)
    _check_finite(inputs)


def _check_span(span: Tensor, mask: Tensor) -> None:
    for rows in row_blocks(mask):
        if bool(has_stray(span[rows], mask[rows])):
            row = rows.start + int((span[rows] & ~mask[rows]).any(-1).nonzero()[0, 0])
            raise ValueError(
                f"CreditInputs: span_mask must be a subset of response_mask, got a token outside it in row {row}; "
                "combine them with &"
            )


def _check_finite(inputs: CreditInputs) -> None:
    """Raise if a log-prob is NaN or infinite inside the mask; the sum of its row is then too, so sums clear most."""
    suspects = (~torch.isfinite(inputs.masked_sums)).nonzero()[:, 0]
    mask = inputs.response_mask[suspects]
    for name in ("student_logprobs", "teacher_logprobs"):
        value = getattr(inputs, name)
        if value is None or not suspects.numel():
            continue
        bad = ~torch.isfinite(value.detach()[suspects]) & mask
        if bool(bad.any()):
            suspect, token = bad.nonzero()[0].tolist()
            row = int(suspects[suspect])
            raise ValueError(
                f"CreditInputs: {name} must be finite inside response_mask, got {float(value[row, token])} at row "
                f"{row}, token {token}; check the scoring pass (logits, temperature, mask)"
            )
