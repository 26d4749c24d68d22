"""The units of AgentOPSD's recursion: one per turn, or one per sampled token, whole groups at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..inputs import CreditInputs
from ..segments import segment_mean, segment_sum
from ..tokens import token_gaps, whole_groups


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
    """All turns at once; evidence is the ``"sum"`` or ``"mean"`` of a turn's token gaps."""
    evidence = inputs.masked_sums
    if reduction == "mean":
        evidence = evidence / inputs.token_counts
    row = torch.arange(inputs.num_rows, device=evidence.device)
    members = torch.arange(inputs.num_trajectories, device=evidence.device)
    return Units(evidence, row, inputs.trajectory_ids, inputs.turn_ids, row, members)


def token_units(inputs: CreditInputs) -> Iterator[Units]:
    """The tokens of the batch in parts of whole groups, in the order they were sampled; evidence is the token gap."""
    for rows in whole_groups(inputs):
        evidence = token_gaps(inputs, rows)[inputs.response_mask[rows]].to(inputs.masked_sums.dtype)
        members, owner = inputs.trajectory_ids[rows].unique_consecutive(return_inverse=True)
        line = torch.repeat_interleave(inputs.token_counts[rows])
        trajectory = owner[line]
        lengths = torch.bincount(trajectory, minlength=members.numel())
        place = torch.arange(evidence.numel(), device=rows.device) - (lengths.cumsum(0) - lengths)[trajectory]
        yield Units(evidence, line, trajectory, place, rows, members)
