"""Token gaps ``teacher - student`` read in row blocks, so that no full ``[M, T]`` temporary is ever made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._masks import masked_rows, row_blocks, zero_outside_
from ._segments import wide

if TYPE_CHECKING:
    from .inputs import CreditInputs


def token_gaps(inputs: CreditInputs, rows: slice | Tensor, out: Tensor) -> Tensor:
    """Write ``log pi(y | h+) - log pi(y | h)`` of some rows into ``out`` ``[R, T]``; anything outside the mask."""
    assert inputs.teacher_logprobs is not None
    teacher, student = inputs.teacher_logprobs[rows].detach(), inputs.student_logprobs[rows].detach()
    return torch.sub(teacher.to(out.dtype), student.to(out.dtype), out=out)


def masked_sums(inputs: CreditInputs) -> Tensor:
    """``[M]`` sum of each turn's token gaps, in the wide dtype; without a teacher, of its student log-probs."""
    mask = inputs.response_mask
    sums = torch.empty(mask.shape[0], dtype=wide(mask.device), device=mask.device)
    buffer = torch.empty(0, dtype=inputs.dtype, device=mask.device)
    for rows in row_blocks(mask):
        buffer.resize_(rows.stop - rows.start, mask.shape[1])
        if inputs.teacher_logprobs is None:
            buffer.copy_(inputs.student_logprobs[rows].detach())
        else:
            token_gaps(inputs, rows, buffer)
        sums[rows] = zero_outside_(buffer, mask[rows]).sum(-1)
    return sums


def spread(values: Tensor, inputs: CreditInputs) -> Tensor:
    """``[M]`` values on every sampled token: ``[M, T]`` in ``inputs.dtype``, exactly 0 outside the mask."""
    mask = inputs.response_mask
    out = torch.empty(mask.shape, dtype=inputs.dtype, device=mask.device)
    for rows in row_blocks(mask):
        masked_rows(values[rows].to(inputs.dtype), mask[rows], out=out[rows])
    return out


def mean_factor(mean_advantage: Tensor, advantage: Tensor) -> Tensor:
    """``[M]`` mean advantage of a turn's tokens over the trajectory's advantage; 1 where that is 0."""
    return torch.where(advantage == 0, 1.0, mean_advantage / advantage.masked_fill(advantage == 0, 1))
