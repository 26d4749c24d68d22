"""The posterior itself: prior, siblings, own outcome."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .siblings import Stretches
from .slope import Beliefs
from .turns import Turns

_TINY = 1e-9


@dataclass(frozen=True)
class Estimate:
    """What is known of each turn, in units of R.

    Args:
        advantage: ``[M]`` adv_k, the posterior mean.
        expected: ``[M]`` e_k, the mean before the own outcome.
        variance: ``[M]`` p_k, the variance left before the own outcome, never negative.
        revision: ``[M]`` mu_k, the teacher's.
        informed: ``[N]`` bool, whether teacher or siblings said anything of the trajectory.
    """

    advantage: Tensor
    expected: Tensor
    variance: Tensor
    revision: Tensor
    informed: Tensor


def estimate(turns: Turns, belief: Beliefs, seen: Stretches, *, luck: float, alias: float) -> Estimate:
    """The mean advantage of each turn given the teacher's revisions, the siblings' changes and the own outcome.

    With sums ``Q = sum q_k``, ``M = sum mu_k`` over a stretch and ``g = 1 / ((1 + alias) Q + s)``, 0 if unknown::

        e_k = mu_k + q_k g (D - M)        p_k = q_k (1 - Q g)
        rest = R_i - m_i - sum_k (mu_k + q_k g (d - M))
        adv_k = e_k + p_k rest / (sum_j p_j + luck b0),  b0 = s0 (1 - s0)

    Args:
        turns: the batch.
        belief: under the slope.
        seen: what siblings tell.
        luck: share of the outcome's variance that is no turn's doing.
        alias: what a shared observation hides, as a share of the prior variance.
    """
    room, moved = belief.room, belief.revision
    gain, total = sibling_gain(seen, room, alias), seen.total(moved)
    pull = room * gain[seen.ids]
    expected = moved + pull * (seen.discounted - total)[seen.ids]
    undiscounted = moved + pull * (seen.change - total)[seen.ids]
    variance = room * (1 - seen.total(room) * gain)[seen.ids]
    rest = turns.outcome - turns.baseline - turns.total(undiscounted)
    luck_variance = luck * turns.start * (1 - turns.start)
    share = rest / (turns.total(variance) + luck_variance)
    said = (gain[seen.ids] > 0) | (moved != 0)
    return Estimate(expected + variance * share[turns.owner], expected, variance, moved, turns.total(said.long()) > 0)


def sibling_gain(seen: Stretches, room: Tensor, alias: float) -> Tensor:
    """``[S]`` g, how much a unit of prior variance takes over of what siblings say; 0 where they say nothing."""
    spread = (1 + alias) * seen.total(room) + seen.variance
    return torch.where(seen.known, 1 / spread.clamp(min=_TINY), 0.0)
