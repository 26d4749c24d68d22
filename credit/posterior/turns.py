"""The turns of a batch and what they earned, in units in which every part of the method computes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..groups import group_relative_advantages
from ..segments import decayed_sums, segment_extremes, segment_mean, segment_sum
from .facts import Facts


@dataclass(frozen=True)
class Turns:
    """Where each turn stands and what it earned; R is the return mapped to [0, 1] over its group, floats are wide.

    Args:
        owner, place: ``[M]`` int64, trajectory and place of each turn.
        counts: ``[N]`` int64, K_i.
        group: ``[N]`` int64 in [0, P).
        anchors: ``[M]`` int64, equal for turns of one group that saw the same observation.
        outcome: ``[N]`` R_i.
        baseline: ``[N]`` m_i, what GRPO takes off R_i.
        earned: ``[M]`` the turn's part of R_i; the parts of a trajectory add up to R_i.
        judged: ``[N]`` bool, A_i is not 0: others get no credit and enter no fit.
    """

    owner: Tensor
    place: Tensor
    counts: Tensor
    group: Tensor
    anchors: Tensor
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


def turns_of(facts: Facts, *, scope: str, eps: float) -> Turns:
    """The turns of a batch, in units of R: what is not earned before it is earned at the last turn of a trajectory.

    Args:
        facts: the batch.
        scope: what a group's mean counts once, ``"trajectory"`` or ``"turn"``.
        eps: GRPO's, which says when an advantage counts as 0.
    """
    counts = torch.bincount(facts.owner)
    groups = int(facts.group.max()) + 1
    low, high = segment_extremes(facts.rewards, facts.group, groups)
    size = torch.where(high > low, high - low, 1.0)[facts.group]
    outcome = (facts.rewards - low[facts.group]) / size
    baseline = segment_mean(outcome, facts.group, groups, counts if scope == "turn" else None)[facts.group]
    last = facts.place == counts[facts.owner] - 1
    earned = torch.where(last, 0.0, facts.earned / size[facts.owner])
    left = outcome - segment_sum(earned, facts.owner, counts.numel())
    earned = torch.where(last, left[facts.owner], earned)
    judged = group_relative_advantages(
        facts.rewards, facts.group, scale_rewards=False, normalization_scope=scope, turn_counts=counts, eps=eps
    )
    where = facts.owner, facts.place, counts, facts.group, facts.anchors
    return Turns(*where, outcome, baseline, earned, judged != 0)
