"""What a method reads and writes per token: :func:`token_gaps` in, :func:`spread` out.

Both work in row blocks that stay in a CPU's cache and zero by bits; nothing outside this file needs to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .segments import segment_sum, wide

if TYPE_CHECKING:
    from .inputs import CreditInputs

_CPU_BLOCK = 1 << 18
_DEVICE_BLOCK = 1 << 24
_PART = 1 << 16
_BITS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def token_gaps(inputs: CreditInputs, rows: Tensor | None = None) -> Tensor:
    """``delta = log pi(y | h+) - log pi(y | h)`` of every sampled token, nats; exactly 0 outside the mask.

    Args:
        inputs: a batch with ``teacher_logprobs``.
        rows: ``[R]`` int64, only these rows; None: all.

    Returns:
        ``[M, T]`` (``[R, T]``) in ``inputs.dtype``, the caller's own to write into.
    """
    if inputs.teacher_logprobs is None:
        raise ValueError("token_gaps: inputs.teacher_logprobs must be given, got None; score the tokens as the teacher")
    mask, teacher, student = inputs.response_mask, inputs.teacher_logprobs.detach(), inputs.student_logprobs.detach()
    if rows is not None:
        mask, teacher, student = mask[rows], teacher[rows], student[rows]
    out = torch.empty(mask.shape, dtype=inputs.dtype, device=mask.device)
    for part in row_blocks(mask):
        torch.sub(teacher[part].to(out.dtype), student[part].to(out.dtype), out=out[part])
        _zero_outside_(out[part], mask[part])
    return out


def weigh_tokens(
    inputs: CreditInputs, weigh: Callable[..., Tensor], *values: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """``weigh(delta, *values)`` on the True tokens of ``mask``, exactly 0 elsewhere, one block of rows at a time.

    Args:
        inputs: a batch with ``teacher_logprobs``.
        weigh: from token gaps ``[R, T]``, its own to write into, and ``[R, 1]`` values of their turns to ``[R, T]``;
            gaps outside the mask are of no account, and no row may depend on another.
        values: ``[M]`` each.
        mask: ``[M, T]`` bool, within ``inputs.response_mask``.

    Returns:
        ``[M, T]`` in ``inputs.dtype``, and its sums ``[M]`` over the tokens of a turn.
    """
    out = torch.empty(mask.shape, dtype=inputs.dtype, device=mask.device)
    sums = torch.empty(mask.shape[0], dtype=inputs.dtype, device=mask.device)
    assert inputs.teacher_logprobs is not None  # required by the registration
    teacher, student = inputs.teacher_logprobs.detach(), inputs.student_logprobs.detach()
    for part in row_blocks(mask):
        block = out[part]
        torch.sub(teacher[part].to(out.dtype), student[part].to(out.dtype), out=block)
        block.copy_(weigh(block, *(value[part, None] for value in values)))
        sums[part] = _zero_outside_(block, mask[part]).sum(-1)
    return out, sums


def spread(values: Tensor, mask: Tensor) -> Tensor:
    """Values on the True tokens of ``mask``, exactly 0 elsewhere, whatever stood there.

    Args:
        values: ``[M]``, one for all tokens of a row, or ``[M, T]``, which is written to.
        mask: ``[M, T]`` bool.

    Returns:
        ``[M, T]`` in the dtype of ``values``.
    """
    own = values.ndim == mask.ndim
    out = values if own else torch.empty(mask.shape, dtype=values.dtype, device=mask.device)
    for part in row_blocks(mask):
        if own:
            _zero_outside_(out[part], mask[part])
        else:
            _fill_rows_(out[part], values[part], mask[part])
    return out


def scale_and_fill_(values: Tensor, scale: Tensor, fill: Tensor, mask: Tensor) -> Tensor:
    """``values * scale`` plus ``fill`` on the True tokens of ``mask``, into ``values``.

    Args:
        values: ``[M, T]``.
        scale, fill: ``[M]``.
        mask: ``[M, T]`` bool.
    """
    for part in row_blocks(mask):
        values[part].mul_(scale[part, None]).add_(spread(fill[part], mask[part]))
    return values


def token_sums(inputs: CreditInputs) -> Tensor:
    """``[M]`` sum of each turn's token gaps, in the wide dtype; without a teacher, of its student log-probs."""
    mask = inputs.response_mask
    sums = torch.empty(mask.shape[0], dtype=wide(mask.device), device=mask.device)
    buffer = torch.empty(0, dtype=inputs.dtype, device=mask.device)
    for part in row_blocks(mask):
        buffer.resize_(part.stop - part.start, mask.shape[1])
        student = inputs.student_logprobs[part].detach()
        if inputs.teacher_logprobs is None:
            buffer.copy_(student)
        else:
            teacher = inputs.teacher_logprobs[part].detach()
            torch.sub(teacher.to(buffer.dtype), student.to(buffer.dtype), out=buffer)
        sums[part] = _zero_outside_(buffer, mask[part]).sum(-1)
    return sums


def mean_factor(mean_advantage: Tensor, advantage: Tensor) -> Tensor:
    """``[M]`` mean advantage of a turn's tokens over the trajectory's advantage; 1 where that is 0."""
    return torch.where(advantage == 0, 1.0, mean_advantage / advantage.masked_fill(advantage == 0, 1))


def count_true(mask: Tensor) -> Tensor:
    """``[M]`` int64, True entries of each row of ``[M, T]``."""
    counts = torch.empty(mask.shape[0], dtype=torch.int32, device=mask.device)
    for part in row_blocks(mask):
        torch.sum(mask[part].view(torch.int8), -1, dtype=torch.int32, out=counts[part])
    return counts.long()


def whole_groups(inputs: CreditInputs) -> list[Tensor]:
    """Rows ordered by group, trajectory and turn, in parts of about ``_PART`` tokens that end where a group does.

    For methods whose every token has several wide numbers, which for all tokens at once would outweigh the batch.
    """
    group = inputs.group_index[inputs.trajectory_ids]
    order = inputs.turn_ids.argsort(stable=True)
    order = order[inputs.trajectory_ids[order].argsort(stable=True)]
    order = order[group[order].argsort(stable=True)]
    tokens = segment_sum(inputs.token_counts, group, int(group.max()) + 1)
    part = ((tokens.cumsum(0) - tokens) // _PART)[group[order]]
    return list(order.split(part.unique_consecutive(return_counts=True)[1].tolist()))


def row_blocks(mask: Tensor) -> Iterator[slice]:
    """Slices over the rows of ``[M, T]``: blocks that stay in cache on a CPU, large ones on an accelerator."""
    rows, tokens = mask.shape
    step = max(1, (_CPU_BLOCK if mask.device.type == "cpu" else _DEVICE_BLOCK) // tokens)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _zero_outside_(values: Tensor, mask: Tensor) -> Tensor:
    """``values.masked_fill_(~mask, 0)``, NaN included; on CPUs bits times 0 or 1, ten times as fast."""
    if values.device.type != "cpu":
        return values.masked_fill_(~mask, 0)
    bits = _BITS[values.dtype]
    values.view(bits).mul_(mask.view(torch.int8).to(bits))
    return values


def _fill_rows_(out: Tensor, values: Tensor, mask: Tensor) -> None:
    """``[R]`` values on the True entries of ``[R, T]``, 0 elsewhere, into ``out``."""
    if values.device.type != "cpu":
        torch.where(mask, values[:, None], values.new_zeros(()), out=out)
        return
    bits = _BITS[values.dtype]
    torch.mul(mask.view(torch.int8).to(bits), values.view(bits)[:, None], out=out.view(bits))
