"""The units of AgentOPSD's recursion: one per turn, or one per sampled token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ._gaps import gap_sums, token_gaps
from ._masks import row_blocks
from ._segments import wide
from .inputs import CreditInputs


@dataclass(frozen=True)
class Units:
    """The places where a belief is revised, in the order of ``row``: turns, or single tokens."""

    evidence: Tensor  # [E] wide float, nats
    row: Tensor  # [E] the turn (row of the batch) of each unit
    trajectory: Tensor  # [E]
    place: Tensor  # [E] 0, 1, .. within the trajectory


def turn_units(inputs: CreditInputs, reduction: str) -> Units:
    evidence = gap_sums(inputs)
    if reduction == "mean":
        evidence = evidence / inputs.token_counts
    row = torch.arange(inputs.num_rows, device=evidence.device)
    return Units(evidence, row, inputs.trajectory_ids, inputs.turn_ids)


def token_units(inputs: CreditInputs) -> Units:
    mask, counts = inputs.response_mask, inputs.token_counts
    gaps = torch.empty(int(counts.sum()), dtype=wide(mask.device), device=mask.device)
    ends = counts.cumsum(0)
    buffer = torch.empty(0, dtype=inputs.dtype, device=mask.device)
    for rows in row_blocks(mask):
        buffer.resize_(rows.stop - rows.start, mask.shape[1])
        kept = token_gaps(inputs, rows, buffer)[mask[rows]]
        first = int(ends[rows.start] - counts[rows.start])
        gaps[first : first + kept.numel()] = kept.to(gaps.dtype)
    row = torch.repeat_interleave(counts)
    within = torch.arange(gaps.numel(), device=mask.device) - (ends - counts)[row]
    order = torch.argsort(inputs.trajectory_ids * (inputs.turn_ids.max() + 1) + inputs.turn_ids)
    ordered = counts[order]
    before = torch.empty_like(counts)
    before[order] = ordered.cumsum(0) - ordered
    first_row = inputs.turn_ids == 0
    start = torch.zeros(inputs.num_trajectories, dtype=counts.dtype, device=mask.device)
    start[inputs.trajectory_ids[first_row]] = before[first_row]
    place = (before - start[inputs.trajectory_ids])[row] + within
    return Units(gaps, row, inputs.trajectory_ids[row], place)
