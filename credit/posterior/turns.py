"""The turns of a batch and what they earned, in units in which every method of this folder computes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..groups import faded
from ..inputs import CreditInputs
from ..segments import decayed_sums, segment_mean, segment_sum, wide


@dataclass(frozen=True)
class Turns:
    """Where each turn stands and what it earned; R is the return mapped to [0, 1] over the batch, floats are wide.

    Args:
        owner, place: ``[M]`` int64, trajectory and place of each turn.
        counts: ``[N]`` int64, K_i.
        group: ``[N]`` int64 in [0, P).
        outcome: ``[N]`` R_i.
        baseline: ``[N]`` m_i, what GRPO takes off R_i.
        earned: ``[M]`` the turn's part of R_i; the parts of a trajectory add up to R_i.
        judged: ``[N]`` bool, A_i is not 0: others get no credit and enter no fit.
    """

    owner: Tensor
    place: Tensor
    counts: Tensor
    group: Tensor
    outcome: Tensor
    baseline: Tensor
    earned: Tensor
    judged: Tensor

    @cached_property
    def start(self) -> Tensor:
        """``[N]`` s0, the group's mean outcome, with one success and one failure added."""
        size = torch.bincount(self.group)[self.group]
        return (size * self.baseline + 1) / (size + 2)

    def running(self, values: Tensor) -> Tensor:
        """``[M]`` sums over a trajectory's turns up to and including each."""
        grid = values.new_zeros(self.counts.numel(), int(self.counts.max()))
        grid[self.owner, self.place] = values
        return grid.cumsum(-1)[self.owner, self.place]

    def total(self, values: Tensor) -> Tensor:
        """``[N]`` sums over the turns of each trajectory."""
        return segment_sum(values, self.owner, self.counts.numel())

    def to_go(self) -> Tensor:
        """``[M]`` what the trajectory earned from each turn on."""
        return self.outcome[self.owner] - (self.running(self.earned) - self.earned)

    def discounted_to_go(self, discount: float) -> Tensor:
        """``[M]`` the same, each part times ``discount`` to the number of turns it takes, 1 for the turn itself."""
        left = self.counts[self.owner] - 1 - self.place
        grid = self.earned.new_zeros(self.counts.numel(), int(self.counts.max()))
        grid[self.owner, left] = self.earned
        return discount * decayed_sums(grid, discount)[self.owner, left]


def turns_of(inputs: CreditInputs, advantages: Tensor, *, outcome_discount: float, scope: str) -> Turns:
    """The turns of a batch.

    What ``turn_rewards`` leave of the return, all of it without them, is earned at the last turn; so are the units: the
    batch's smallest return is taken off there.

    Args:
        inputs: the batch.
        advantages: ``[N]`` A_i.
        outcome_discount: in (0, 1], see :func:`~turncredit.credit.groups.faded`.
        scope: what a group's mean counts once, ``"trajectory"`` or ``"turn"``.
    """
    owner, place, counts, group = inputs.trajectory_ids, inputs.turn_ids, inputs.turn_counts, inputs.group_index
    dtype = wide(owner.device)
    rewards = faded(inputs.rewards, counts, outcome_discount).to(dtype)
    size = rewards.max() - rewards.min()
    size = torch.where(size > 0, size, 1.0)
    outcome = (rewards - rewards.min()) / size
    weights = counts if scope == "turn" else None
    baseline = segment_mean(outcome, group, int(group.max()) + 1, weights)[group]
    earned = torch.zeros_like(owner, dtype=dtype)
    final = place == counts[owner] - 1
    if inputs.turn_rewards is not None:
        parts = faded(inputs.turn_rewards, counts[owner], outcome_discount).to(dtype) / size
        earned = torch.where(final, 0.0, parts)
    left = outcome - segment_sum(earned, owner, counts.numel())
    earned = torch.where(final, left[owner], earned)
    return Turns(owner, place, counts, group, outcome, baseline, earned, advantages != 0)
