"""Locate: how many turns are trained on, and which turn of a trajectory is looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..checks import check_range


def frontier_compatibility(
    likely_teacher: Tensor, likely_student: Tensor, mask: Tensor, trajectory_ids: Tensor, turn_ids: Tensor, depth: int
) -> Tensor:
    """How much the student already supports what the teacher would say, at the frontier of each trajectory.

        a_i = min(1, pi(v_T | c) / pi(v_S | c));    c = mean of a over the tokens of turn K

    v_T and v_S are the likeliest tokens of teacher and student.

    Source: LENS-OPD (arXiv 2609.33409), Eq. 2; C_n is the median of what this returns, over all processes.

    Args:
        likely_teacher, likely_student: ``[M, T]`` float, the student's log-probs of v_T and of v_S, nats.
        mask: ``[M, T]`` bool, content tokens.
        trajectory_ids, turn_ids: ``[M]`` int64.
        depth: K, counted from 1; trajectories without a turn K have no frontier.

    Returns:
        ``[F]`` float64 in [0, 1], one per trajectory that reaches the depth and has a token there.
    """
    at = (turn_ids == depth - 1) & mask.any(1)
    support = torch.where(mask[at], (likely_teacher - likely_student)[at].double().clamp(max=0).exp(), 0.0)
    return support.sum(1) / mask[at].sum(1)


class DepthController:
    """How many turns are trained on: the depth K grows as the student comes to support the teacher at the frontier.

    Entering a depth, the first batch that reaches it records ``G_entry = 1 - C``; later ones have the pace ``v =
    clip((G_entry + eps) / (1 - C + eps), low, high)``. After every batch ``e += v``; at ``e >= eta`` K grows by one, up
    to `k_max`, and eta is taken off e. A batch that does not reach K, and the first that does, has ``v = 1``, and with
    a fixed clock all have.

    Source: LENS-OPD (arXiv 2609.33409), Eq. 3. The first K and eps are not in the paper.

    Args:
        k_max: largest depth, at least `k_start`.
        k_start: first depth, at least 1.
        eta: pace that a step deeper takes, above 0.
        low, high: range of the pace.
        eps: stabiliser.
        fixed_clock: whether v is 1 whatever the student does: the paper's ablation.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(
        self,
        k_max: int,
        *,
        k_start: int = 1,
        eta: float = 5.0,
        low: float = 0.5,
        high: float = 1.5,
        eps: float = 1e-6,
        fixed_clock: bool = False,
    ):
        where = "DepthController"
        if type(k_start) is not int or k_start < 1 or type(k_max) is not int or k_max < k_start:
            raise ValueError(
                f"{where}: k_max must be a whole number of at least k_start, which is at least 1, got {k_max!r} and "
                f"{k_start!r}; give the turns of an episode"
            )
        check_range(where, "eta", eta, 0, math.inf, "()")
        check_range(where, "low", low, 0, 1, "(")
        check_range(where, "high", high, 1, math.inf, ")")
        check_range(where, "eps", eps, 0, math.inf, "()")
        self.k_max, self.eta, self.low, self.high, self.eps, self.fixed_clock = k_max, eta, low, high, eps, fixed_clock
        self.depth, self.elapsed, self.entry = k_start, 0.0, math.nan

    def update(self, compatibility: float | None) -> float:
        """Take in a batch's C, None where no trajectory reached K; returns v.

        Raises:
            ValueError: C lies outside [0, 1].
        """
        pace = 1.0
        if compatibility is not None:
            check_range("DepthController.update", "compatibility", compatibility, 0, 1)
            gap = 1 - compatibility
            if math.isnan(self.entry):
                self.entry = gap
            elif not self.fixed_clock:
                pace = min(max((self.entry + self.eps) / (gap + self.eps), self.low), self.high)
        self.elapsed += pace
        if self.elapsed >= self.eta:
            self.elapsed -= self.eta
            if self.depth < self.k_max:
                self.depth, self.entry = self.depth + 1, math.nan
        return pace

    def state_dict(self) -> dict[str, float]:
        """K, e and G_entry."""
        return {"depth": float(self.depth), "elapsed": self.elapsed, "entry": self.entry}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave."""
        self.depth, self.elapsed, self.entry = int(state["depth"]), float(state["elapsed"]), float(state["entry"])


def proposed_turns(
    divergences: Tensor, mask: Tensor, trajectory_ids: Tensor, turn_ids: Tensor, *, last: bool = False
) -> Tensor:
    """The turn of each trajectory at which student and teacher are furthest apart: ``t* = argmax_t mean_i KL``.

    Source: LENS-OPD (arXiv 2609.33409), Eq. 4; of equal ones the first.

    Args:
        divergences: ``[M, T]`` float, KL(pi || pi_T) of every token.
        mask: ``[M, T]`` bool, content tokens; a turn without one is not proposed.
        trajectory_ids: ``[M]`` int64 in [0, N).
        turn_ids: ``[M]`` int64.
        last: propose the last turn that has a token instead: the paper's ablation.

    Returns:
        ``[N]`` int64, the row; -1 where a trajectory has no turn with a token.
    """
    rows = len(mask)
    count = int(trajectory_ids.max()) + 1 if rows else 0
    tokens = mask.sum(1)
    means = torch.where(mask, divergences.double(), 0.0).sum(1) / tokens.clamp(min=1)
    value = turn_ids.double() if last else means
    value = torch.where(tokens > 0, value, -torch.inf)
    best = value.new_full((count,), -torch.inf).scatter_reduce_(0, trajectory_ids, value, "amax")
    leads = (value == best[trajectory_ids]) & (tokens > 0)
    earliest = torch.where(leads, turn_ids, turn_ids.new_full((), 2**62))
    turn = turn_ids.new_full((count,), 2**62).scatter_reduce_(0, trajectory_ids, earliest, "amin")
    chosen = leads & (turn_ids == turn[trajectory_ids])
    found = torch.full((count,), -1)
    found[trajectory_ids[chosen]] = torch.arange(rows)[chosen]
    return found
