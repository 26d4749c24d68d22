"""Token gaps ``teacher - student`` read in row blocks, so that no full ``[M, T]`` temporary is ever made."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ._segments import wide
from .inputs import CreditInputs

_CPU_BLOCK = 1 << 17
_DEVICE_BLOCK = 1 << 24


def row_blocks(mask: Tensor) -> Iterator[slice]:
    """Slices over the rows of ``[M, T]``: blocks that stay in cache on a CPU, large ones on an accelerator."""
    rows, tokens = mask.shape
    step = max(1, (_CPU_BLOCK if mask.device.type == "cpu" else _DEVICE_BLOCK) // tokens)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def token_gaps(inputs: CreditInputs, rows: slice, out: Tensor) -> Tensor:
    """Write ``log pi(y | h+) - log pi(y | h)`` of a block of rows into ``out`` ``[R, T]``, 0 outside the mask."""
    assert inputs.teacher_logprobs is not None
    teacher, student = inputs.teacher_logprobs[rows].detach(), inputs.student_logprobs[rows].detach()
    torch.sub(teacher.to(out.dtype), student.to(out.dtype), out=out)
    return out.masked_fill_(~inputs.response_mask[rows], 0)


def gap_sums(inputs: CreditInputs) -> Tensor:
    """``[M]`` sum of the token gaps of each turn, in the wide dtype."""
    mask = inputs.response_mask
    sums = torch.empty(mask.shape[0], dtype=wide(mask.device), device=mask.device)
    buffer = torch.empty(0, dtype=inputs.dtype, device=mask.device)
    for rows in row_blocks(mask):
        buffer.resize_(rows.stop - rows.start, mask.shape[1])
        sums[rows] = token_gaps(inputs, rows, buffer).sum(-1)
    return sums


def spread(values: Tensor, inputs: CreditInputs) -> Tensor:
    """``[M]`` values on every sampled token: ``[M, T]`` in ``inputs.dtype``, exactly 0 outside the mask."""
    return torch.where(inputs.response_mask, values.to(inputs.dtype)[:, None], 0.0)
