"""Checks with one voice: ``{function}: {argument} must {rule}, got {value}; {one fix}``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .tokens import row_blocks, spread

if TYPE_CHECKING:
    from .inputs import Credit, CreditInputs
    from .signals import Signal

_BATCH = "CreditInputs"
_ROUNDING = 1e-2  # of a log-softmax in half precision
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_KINDS = {
    "float": (_FLOATS, "call .float()"),
    "bool": ((torch.bool,), "call .bool()"),
    "int": ((torch.int64,), "call .long()"),
}
_SHAPE_FIXES = {
    "MT": "pad it like response_mask",
    "M": "pass one value per turn",
    "N": "pass one value per trajectory (constant over its turns; what varies by turn goes to turn_rewards)",
}


def suggest(value: Any, known: Sequence[str], otherwise: str) -> str:
    """``did you mean 'x'?`` for a name that resembles a known one, else ``otherwise``; letters that only changed places
    come first."""
    close = difflib.get_close_matches(str(value), known, 5)
    close.sort(key=lambda name: sorted(name) != sorted(str(value)))
    return f"did you mean {close[0]!r}?" if close else otherwise


def check_choice(where: str, name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise ValueError unless ``value`` is one of ``choices``."""
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{where}: {name} must be one of {known}, got {value!r}; pick one of them")


def check_range(where: str, name: str, value: Any, low: float, high: float, open_ends: str = "") -> None:
    """Raise ValueError unless ``value`` is a number in [low, high]; ``open_ends`` may hold "(" and ")"."""
    bad = isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high
    bad = bad or (value == low and "(" in open_ends) or (value == high and ")" in open_ends)
    if bad:
        span = f"{'(' if '(' in open_ends else '['}{low}, {high}{')' if ')' in open_ends else ']'}"
        raise ValueError(f"{where}: {name} must be a number in {span}, got {value!r}; leave it out for the default")


def check_shape(where: str, name: str, tensor: Any, shape: tuple[int, ...]) -> None:
    """Raise TypeError unless ``tensor`` is one, ValueError unless it has this shape."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{where}: {name} must be a tensor, got {type(tensor).__name__}; pass torch.as_tensor(..)")
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f"{where}: {name} must have shape {list(shape)}, got {list(tensor.shape)}; give one entry per turn"
        )


def check_bool(where: str, name: str, tensor: Tensor) -> None:
    """Raise TypeError unless the tensor is bool."""
    if tensor.dtype != torch.bool:
        raise TypeError(f"{where}: {name} must be bool, got {tensor.dtype}; pass {name}.bool()")


def check_batch(inputs: CreditInputs, signals: Mapping[str, Signal]) -> None:
    """Raise TypeError or ValueError naming the first signal of a batch that breaks its definition.

    Args:
        inputs: the batch.
        signals: definitions of what it holds, by name, the layout first.
    """
    given = {name: (signal, inputs.signal(name)) for name, signal in signals.items()}
    tensors = {name: pair for name, pair in given.items() if pair[0].kind}
    for signal, value in tensors.values():
        _check_kind(signal, value)
    device = inputs.response_mask.device
    for name, (_, value) in tensors.items():
        if value.device != device:
            raise ValueError(
                f"{_BATCH}: {name} must be on the device of response_mask ({device}), got {value.device}; "
                f"move it with .to('{device}')"
            )
    _check_shapes(inputs, tensors)
    for signal, value in given.values():
        if signal.kind in ("float", "int"):
            _check_values(signal, value, inputs)
        if signal.check is not None:
            signal.check(value, inputs)


def _check_kind(signal: Signal, value: Any) -> None:
    dtypes, fix = _KINDS[signal.kind]
    if not isinstance(value, Tensor):
        raise TypeError(f"{_BATCH}: {signal.name} must be a torch.Tensor, got {type(value).__name__}; {fix}")
    if value.dtype not in dtypes:
        allowed = " or ".join(str(kind).removeprefix("torch.") for kind in dtypes)
        raise TypeError(f"{_BATCH}: {signal.name} must be {allowed}, got {value.dtype}; {fix}")


def _check_shapes(inputs: CreditInputs, tensors: Mapping[str, tuple[Signal, Tensor]]) -> None:
    mask, groups = inputs.response_mask, inputs.group_ids
    if mask.ndim != 2 or mask.numel() == 0:
        raise ValueError(
            f"{_BATCH}: response_mask must be [M, T] with at least one row and one token, got {list(mask.shape)}; "
            "pass one row per turn"
        )
    if groups.ndim != 1 or groups.numel() == 0:
        raise ValueError(
            f"{_BATCH}: group_ids must be [N] with at least one trajectory, got {list(groups.shape)}; "
            "pass one group id per trajectory"
        )
    shapes = {"MT": mask.shape, "M": mask.shape[:1], "N": groups.shape}
    for name, (signal, value) in tensors.items():
        shape, symbol = shapes[signal.axes], ", ".join(signal.axes)
        if value.shape != shape:
            raise ValueError(
                f"{_BATCH}: {name} must be [{symbol}] = {list(shape)}, got {list(value.shape)}; "
                f"{_SHAPE_FIXES[signal.axes]}"
            )


def _check_values(signal: Signal, value: Tensor, inputs: CreditInputs) -> None:
    """Raise unless numbers are finite and in the signal's range, inside the mask where there is one per token."""
    value, mask, per_token = value.detach(), inputs.response_mask, signal.axes == "MT"
    low, high = (-torch.inf if signal.low is None else signal.low), (torch.inf if signal.high is None else signal.high)
    unbounded = signal.low is None and signal.high is None
    if per_token and unbounded:
        rows = _suspects(signal.name, value, inputs)
    else:
        rows = torch.arange(len(value), device=value.device)
    part = value[rows]
    finite = part.isfinite()
    bad = ~(finite & (part >= low) & (part <= high))
    if per_token:
        bad &= mask[rows]
    if not bool(bad.any()):
        return
    index = tuple(bad.nonzero()[0].tolist())
    row = int(rows[index[0]])
    place = f"row {row}, token {index[1]}" if per_token else f"index {row}"
    rule, fix = _range_rule(signal), signal.fix or "check what made it"
    if not bool(finite[index]):
        rule, fix = "be finite", "check the scoring pass (logits, temperature, mask)" if per_token else fix
    rule += " inside response_mask" if per_token else ""
    raise ValueError(f"{_BATCH}: {signal.name} must {rule}, got {part[index].item()} at {place}; {fix}")


def _range_rule(signal: Signal) -> str:
    if signal.low is None or signal.high is None:
        return f"be at least {signal.low}" if signal.high is None else f"be at most {signal.high}"
    return f"lie in [{signal.low}, {signal.high}]"


def _suspects(name: str, value: Tensor, inputs: CreditInputs) -> Tensor:
    """`suspect_rows` of a signal; both log-probs share one pass, whose sums methods read too."""
    if name in ("student_logprobs", "teacher_logprobs"):
        return (~inputs.masked_sums.isfinite()).nonzero()[:, 0]
    return suspect_rows(value, inputs.response_mask)


def suspect_rows(value: Tensor, mask: Tensor) -> Tensor:
    """``[R]`` rows of ``[M, T]`` whose sum inside the mask is not finite: all with a bad value, and some without."""
    value, dtype = value.detach(), torch.promote_types(value.dtype, torch.float32)
    sums = [spread(value[rows].to(dtype, copy=True), mask[rows]).sum(-1) for rows in row_blocks(mask)]
    return (~torch.cat(sums).isfinite()).nonzero()[:, 0]


def check_logprobs(values: Tensor, inputs: CreditInputs) -> None:
    """Raise where a sampled token's log-prob lies above 0 by more than rounding."""
    mask = inputs.response_mask
    for part in row_blocks(mask):
        above = (values[part].detach() > _ROUNDING) & mask[part]
        if bool(above.any()):
            row, token = above.nonzero()[0].tolist()
            raise ValueError(
                f"{_BATCH}: student_logprobs must be at most 0, got {float(values[part][row, token]):g} at row "
                f"{part.start + row}, token {token}; give logarithms of probabilities, not losses or probabilities"
            )


def check_rows(mask: Tensor, inputs: CreditInputs) -> None:
    """Raise unless every row holds a sampled token."""
    covered = inputs.token_counts > 0
    if not bool(covered.all()):
        row = int((~covered).nonzero()[0, 0])
        raise ValueError(
            f"{_BATCH}: response_mask must hold a sampled token in every row, got none in row {row}; "
            "drop padding rows before credit"
        )


def check_trajectories(trajectory: Tensor, inputs: CreditInputs) -> None:
    """Raise unless rows name trajectories 0 .. N - 1, each at least once."""
    low, high, count = int(trajectory.min()), int(trajectory.max()), inputs.num_trajectories
    if low < 0 or high >= count:
        raise ValueError(
            f"{_BATCH}: trajectory_ids must lie in [0, {count}), got {low if low < 0 else high}; "
            "number trajectories in the order of group_ids"
        )
    counts = inputs.turn_counts
    if not bool((counts > 0).all()):
        absent = int((counts == 0).nonzero()[0, 0])
        raise ValueError(
            f"{_BATCH}: trajectory_ids must name every trajectory, got no row for trajectory {absent}; "
            "leave trajectories without turns out of group_ids, rewards and successes"
        )


def check_turns(turn: Tensor, inputs: CreditInputs) -> None:
    """Raise unless the rows of each trajectory are its turns 0 .. K - 1, each once."""
    trajectory, counts = inputs.trajectory_ids, inputs.turn_counts
    inside = (turn >= 0) & (turn < counts[trajectory])
    if not bool(inside.all()):
        row = int((~inside).nonzero()[0, 0])
        owner = int(trajectory[row])
        raise ValueError(
            f"{_BATCH}: turn_ids must be 0 .. K - 1, each once per trajectory, got {int(turn[row])} in row {row} "
            f"of trajectory {owner}, which has {int(counts[owner])} rows; number its turns without gaps"
        )
    places = counts.cumsum(0)[trajectory] - counts[trajectory] + turn
    times = torch.bincount(places, minlength=turn.numel())
    if not bool((times == 1).all()):
        row = int((times[places] > 1).nonzero()[0, 0])
        raise ValueError(
            f"{_BATCH}: turn_ids must be 0 .. K - 1, each once per trajectory, got {int(turn[row])} twice in "
            f"trajectory {int(trajectory[row])}; drop copied rows and number the turns without gaps"
        )


def check_span(span: Tensor, inputs: CreditInputs) -> None:
    """Raise unless the span lies within ``response_mask``."""
    mask = inputs.response_mask
    for rows in row_blocks(mask):
        stray = (span[rows].view(torch.int8) - mask[rows].view(torch.int8)).amax() > 0
        if bool(stray):
            row = rows.start + int((span[rows] & ~mask[rows]).any(-1).nonzero()[0, 0])
            raise ValueError(
                f"{_BATCH}: span_mask must be a subset of response_mask, got a token outside it in row {row}; "
                "combine them with &"
            )


def check_credit(method: str, credit: Credit, inputs: CreditInputs) -> dict[str, float]:
    """Raise unless ``credit`` is what a method owes for ``inputs``; its metrics as floats.

    Raises:
        TypeError: its advantages or weights are no float tensors, or a metric is no number.
        ValueError: a shape is wrong, or an advantage is not finite, or not 0 outside the mask.
    """
    mask = inputs.response_mask
    for name, shape, fix in (
        ("advantages", mask.shape, "give every token of a turn the turn's value, 0 outside response_mask"),
        ("turn_weights", mask.shape[:1], "give one weight per turn, 1 for the weight of plain GRPO"),
    ):
        value, symbol = getattr(credit, name), "[M, T]" if name == "advantages" else "[M]"
        if not isinstance(value, Tensor) or not value.is_floating_point():
            got = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{method}: {name} must be a float tensor {symbol}, got {got}; call .float()")
        if value.shape != shape:
            raise ValueError(f"{method}: {name} must be {symbol} = {list(shape)}, got {list(value.shape)}; {fix}")
    _check_advantages(method, credit, mask)
    return {name: _number(method, name, value) for name, value in (credit.metrics or {}).items()}


def _check_advantages(method: str, credit: Credit, mask: Tensor) -> None:
    advantages, weights = credit.advantages, credit.turn_weights
    if advantages.device != mask.device:
        raise ValueError(
            f"{method}: advantages must be on the device of response_mask ({mask.device}), got {advantages.device}; "
            "make them from the tensors of inputs"
        )
    for part in row_blocks(mask):
        values, sampled = advantages[part].detach(), mask[part]
        # x times 0 inside the mask and 1 outside is 0 everywhere only if x is 0 outside and finite inside
        if float((sampled.view(torch.int8) ^ 1).to(values.dtype).mul_(values).abs_().amax()) == 0:
            continue
        stray = (values != 0) & ~sampled
        bad = stray | ~values.isfinite()
        row, token = bad.nonzero()[0].tolist()
        rule, fix = "be finite", "guard divisions, and read log-probs only where response_mask is True"
        if bool(stray[row, token]):
            rule, fix = "be 0 outside response_mask", "select with torch.where(response_mask, .., 0.0)"
        raise ValueError(
            f"{method}: advantages must {rule}, got {float(values[row, token])} at row {part.start + row}, token "
            f"{token}; {fix}"
        )
    if not bool(weights.isfinite().all()):
        row = int((~weights.isfinite()).nonzero()[0, 0])
        raise ValueError(
            f"{method}: turn_weights must be finite, got {float(weights[row])} in row {row}; guard divisions"
        )


def _number(method: str, name: str, value: Any) -> float:
    """A metric as a float; one of :mod:`turncredit.credit.metrics` stays what it is."""
    if isinstance(value, float):
        return value
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise TypeError(f"{method}: metrics must be numbers, got {value!r} for {name!r}; return tensors in details")
