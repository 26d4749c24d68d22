"""The units of AgentOPSD's recursion: one per turn, or one per sampled token, whole groups at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ._gaps import token_gaps
from ._segments import segment_mean, segment_sum
from .inputs import CreditInputs

_TOKENS = 1 << 16


@dataclass(frozen=True)
class Units:
    """Places where a belief is revised, in the order of ``line``: turns, or single tokens of whole groups."""

    evidence: Tensor  # [E] wide float, nats
    line: Tensor  # [E] the turn of each unit, an index into ``rows``
    trajectory: Tensor  # [E] an index into ``members``
    place: Tensor  # [E] 0, 1, .. within the trajectory
    rows: Tensor  # [R] rows of the batch
    members: Tensor  # [n] trajectories of the batch

    def per_turn(self, values: Tensor, *, mean: bool = False) -> Tensor:
        """``[E]`` values to ``[R]`` sums or means over the units of each turn."""
        reduce = segment_mean if mean else segment_sum
        return reduce(values, self.line, self.rows.numel())


def turn_units(inputs: CreditInputs, reduction: str) -> Units:
    evidence = inputs.masked_sums
    if reduction == "mean":
        evidence = evidence / inputs.token_counts
    row = torch.arange(inputs.num_rows, device=evidence.device)
    members = torch.arange(inputs.num_trajectories, device=evidence.device)
    return Units(evidence, row, inputs.trajectory_ids, inputs.turn_ids, row, members)


def token_units(inputs: CreditInputs) -> Iterator[Units]:
    """The tokens of the batch in parts of whole groups, about ``_TOKENS`` at a time, in the order they were sampled."""
    width = inputs.response_mask.shape[1]
    buffer = torch.empty(0, dtype=inputs.dtype, device=inputs.response_mask.device)
    for rows in whole_groups(inputs):
        sampled, counts = inputs.response_mask[rows], inputs.token_counts[rows]
        buffer.resize_(rows.numel(), width)
        evidence = token_gaps(inputs, rows, buffer)[sampled].to(inputs.masked_sums.dtype)
        members, owner = inputs.trajectory_ids[rows].unique_consecutive(return_inverse=True)
        line = torch.repeat_interleave(counts)
        trajectory = owner[line]
        lengths = torch.bincount(trajectory, minlength=members.numel())
        place = torch.arange(evidence.numel(), device=rows.device) - (lengths.cumsum(0) - lengths)[trajectory]
        yield Units(evidence, line, trajectory, place, rows, members)


def whole_groups(inputs: CreditInputs) -> list[Tensor]:
    """Rows ordered by group, trajectory and turn, in parts of about ``_TOKENS`` tokens that end where a group does."""
    group = inputs.group_index[inputs.trajectory_ids]
    order = inputs.turn_ids.argsort(stable=True)
    order = order[inputs.trajectory_ids[order].argsort(stable=True)]
    order = order[group[order].argsort(stable=True)]
    tokens = segment_sum(inputs.token_counts, group, int(group.max()) + 1)
    part = ((tokens.cumsum(0) - tokens) // _TOKENS)[group[order]]
    return list(order.split(part.unique_consecutive(return_counts=True)[1].tolist()))
