"""How right is the credit, where the truth is a measurement: turns against Monte-Carlo advantages with their errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import check_range


@dataclass(frozen=True)
class MeasuredFidelity:
    """A credit beside measured advantages; NaN where nothing could be judged.

    Args:
        pair_accuracy: of the pairs of turns of a trajectory that the measurement tells apart, the share that the credit
            orders alike; a tie counts one half; mean over trajectories that have such a pair.
        correlation: of the credit with the *true* advantages within trajectories, corrected for the noise of the
            measurement; may leave [-1, 1] where that is large.
        sign_errors: of the turns whose measured advantage differs from 0 by more than its error allows, the share whose
            credit has not its sign.
        pairs, turns: how many pairs and turns these shares are of.
    """

    pair_accuracy: float
    correlation: float
    sign_errors: float
    pairs: int
    turns: int


MEASURES = ("pair_accuracy", "correlation", "sign_errors")


def measured_fidelity(
    credit: Tensor,
    trajectory_ids: Tensor,
    turn_ids: Tensor,
    advantages: Tensor,
    value_errors: Tensor,
    halves: tuple[Tensor, Tensor],
    *,
    resolution: float = 2.0,
    eps: float = 1e-6,
) -> MeasuredFidelity:
    """Compare credit per turn with advantages that were measured by continuations.

    Two corrections for the noise of the measurement:

    - a pair (a turn) is judged only where its difference (its size) exceeds ``resolution`` standard errors. With
      ``A_k = r_k + V_{k+1} - V_k`` the error of a difference is that of the values it is made of; neighbours share one.
    - noise in the truth lowers a correlation by the root of its reliability, which the halves tell: their covariance is
      the variance of the truth, ``corr = cov(c, A) / sqrt(var(c) cov(A', A''))``, everything less its mean over the
      trajectory.

    Args:
        credit: ``[M]`` float.
        trajectory_ids, turn_ids: ``[M]`` int64; the turns of a trajectory count from 0 without a gap.
        advantages: ``[M]`` float, measured; a NaN leaves the turn out.
        value_errors: ``[M, 2]`` float, standard errors of the values before and behind each turn; not 0 where a value
            comes from few continuations that came out alike.
        halves: two times ``[M]`` float, the advantages by either half of the continuations.
        resolution: standard errors.
        eps: credits that differ by less, of the largest of the trajectory, tie.

    Raises:
        ValueError: `resolution` is negative or the credit is not finite.
    """
    check_range("measured_fidelity", "resolution", resolution, 0, math.inf, ")")
    if not bool(torch.isfinite(credit).all()):
        raise ValueError("measured_fidelity: credit must be finite, got a value that is not; check the method")
    accuracies: list[float] = []
    pairs = turns = wrong = 0
    moments = torch.zeros(3, dtype=torch.float64)
    order = torch.argsort(trajectory_ids * (int(turn_ids.max()) + 1) + turn_ids)
    for rows in order.split(torch.bincount(trajectory_ids).tolist()):
        given, truth, errors = credit[rows].double(), advantages[rows].double(), value_errors[rows].double()
        first, second = (half[rows].double() for half in halves)
        known = ~truth.isnan()
        size = float(given.abs().max())
        given = torch.where(given.abs() < eps * max(size, 1e-300), 0.0, given)
        far = known & (truth.abs() > resolution * errors.norm(dim=1))
        turns += int(far.sum())
        wrong += int((given.sign() != truth.sign())[far].sum())
        signs = (given[:, None] - given[None, :]) / max(size, 1e-300)
        signs = torch.where(signs.abs() < eps, 0.0, signs).sign()
        apart = known[:, None] & known[None, :] & _apart(truth, errors, resolution)
        apart = apart.triu(1)
        count = int(apart.sum())
        if count:
            right = ((1 + signs * (truth[:, None] - truth[None, :]).sign()) / 2)[apart]
            accuracies.append(float(right.mean()))
            pairs += count
        both = known & first.isfinite() & second.isfinite()
        if int(both.sum()) > 1:
            c, a, one, two = (value[both] - value[both].mean() for value in (given, truth, first, second))
            moments += torch.stack([(c * a).sum(), c.square().sum(), (one * two).sum()])
    covariance, spread, signal = moments.tolist()
    known_correlation = spread > 0 and signal > 0
    return MeasuredFidelity(
        pair_accuracy=sum(accuracies) / len(accuracies) if accuracies else math.nan,
        correlation=covariance / math.sqrt(spread * signal) if known_correlation else 0.0 if signal > 0 else math.nan,
        sign_errors=wrong / turns if turns else math.nan,
        pairs=pairs,
        turns=turns,
    )


def _apart(truth: Tensor, errors: Tensor, resolution: float) -> Tensor:
    """``[K, K]`` bool: advantages that differ by more than the error of their difference allows."""
    own = errors.square().sum(1)
    variance = own[:, None] + own[None, :]
    places = torch.arange(len(truth))
    neighbours = (places[:, None] - places[None, :]).abs() == 1
    shared = torch.minimum(places[:, None], places[None, :])
    variance = variance + torch.where(neighbours, 2 * errors[:, 1].square()[shared], 0.0)
    return (truth[:, None] - truth[None, :]).abs() > resolution * variance.sqrt()
