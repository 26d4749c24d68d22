"""How far the teacher is believed: one slope, from the batch's outcomes and from what siblings saw."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .siblings import Stretches
from .trust import trust
from .turns import Turns

_STEPS, _LARGEST_STEP, _ENOUGH = 20, 0.3, 1e-12
_LEAST_VARIANCE = 1e-6


@dataclass(frozen=True)
class Beliefs:
    """Belief in success under one slope, ``[M]`` each: before a turn, after it, and the turn's prior variance q."""

    before: Tensor
    after: Tensor
    room: Tensor

    @property
    def revision(self) -> Tensor:
        """``[M]`` mu_k."""
        return self.after - self.before


def beliefs(turns: Turns, evidence: Tensor, summed: Tensor, slope: Tensor) -> Beliefs:
    """``B_k = sigmoid(logit s0 + slope X_k)``, and ``q_k = B_{k-1} (1 - B_{k-1}) / K_i``.

    Args:
        turns: the batch.
        evidence: ``[M]`` x_k.
        summed: ``[M]`` X_k, its sum up to and including the turn.
        slope: a, no axes.
    """
    prior = turns.start.logit()[turns.owner]
    after, before = torch.sigmoid(prior + slope * summed), torch.sigmoid(prior + slope * (summed - evidence))
    return Beliefs(before, after, before * (1 - before) / turns.counts[turns.owner])


def fit_slope(
    turns: Turns, evidence: Tensor, seen: Stretches, *, slope: float, ridge: float, doubt: float, spike: float
) -> Tensor:
    """The slope of the teacher's evidence, no axes.

    Newton on the likelihood of the outcomes under the last belief and of the siblings' changes, with a ridge about
    ``slope``, then :func:`sceptical`, then the share of it that :func:`~.trust.trust` keeps. Trajectories whose
    advantage is 0 have no part in it.

    Args:
        turns: the batch.
        evidence: ``[M]`` x_k.
        seen: what siblings tell.
        slope: prior mean a0, where Newton starts.
        ridge: prior precision rho.
        doubt: prior probability that the teacher misleads.
        spike: odds that it knows nothing.
    """
    summed = turns.running(evidence)
    value, precision = evidence.new_tensor(slope), evidence.new_tensor(ridge)
    for _ in range(_STEPS):
        now = beliefs(turns, evidence, summed, value)
        score, curve = _from_outcomes(turns, summed, now)
        more, curves = _from_siblings(turns, evidence, seen, now, value)
        precision = curve + curves + ridge
        step = (score + more - ridge * (value - slope)) / precision
        value = value + step.clamp(-_LARGEST_STEP, _LARGEST_STEP)
        if float(step.abs()) < _ENOUGH:
            break
    return trust(turns, evidence, spike=spike) * sceptical(value, precision.rsqrt(), doubt)


def _from_outcomes(turns: Turns, summed: Tensor, now: Beliefs) -> tuple[Tensor, Tensor]:
    """Score and curvature of the outcomes' log-likelihood under the belief after the last turn."""
    weight = turns.judged[turns.owner] & (turns.place == turns.counts[turns.owner] - 1)
    score = weight * (turns.outcome[turns.owner] - now.after) * summed
    return score.sum(), (weight * now.after * (1 - now.after) * summed.square()).sum()


def _from_siblings(
    turns: Turns, evidence: Tensor, seen: Stretches, now: Beliefs, slope: Tensor
) -> tuple[Tensor, Tensor]:
    """Score and curvature of what siblings saw of each stretch, to first order in the slope."""
    known = seen.known & (seen.total(turns.judged[turns.owner].long()) > 0)
    per_slope = seen.total(now.before * (1 - now.before) * evidence)
    trust = torch.where(known, 1 / (seen.total(now.room) + seen.variance).clamp(min=_LEAST_VARIANCE), 0.0)
    score = trust * (seen.change - slope * per_slope) * per_slope
    return score.sum(), (trust * per_slope.square()).sum()


def sceptical(value: Tensor, deviation: Tensor, doubt: float) -> Tensor:
    """Mean of a normal estimate once its sign has a prior: it is negative with probability ``doubt``.

    ``a + sd phi(z) (1 - 2 doubt) / ((1 - doubt) Phi(z) + doubt Phi(-z))``, ``z = a / sd``.
    """
    z = value / deviation
    # in logarithms: without any doubt both density and mass are 0 far on the wrong side
    odds = torch.stack([z.new_tensor(1 - doubt).log(), z.new_tensor(doubt).log()])
    mass = torch.logsumexp(odds + torch.special.log_ndtr(torch.stack([z, -z])), 0)
    density = -z.square() / 2 - math.log(2 * math.pi) / 2
    return value + deviation * (1 - 2 * doubt) * torch.exp(density - mass)
