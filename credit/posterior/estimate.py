"""The posterior itself: prior, siblings, own outcome."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .alias import sibling_gain
from .siblings import Stretches
from .slope import Beliefs
from .turns import Turns


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


def estimate(
    turns: Turns, belief: Beliefs, seen: Stretches, *, luck: float, alias: float, adaptive: bool = True
) -> Estimate:
    """The mean advantage of each turn given the teacher's revisions, the siblings' changes and the own outcome.

    With sums ``Q = sum q_k``, ``M = sum mu_k`` over a stretch, g its :func:`~.alias.sibling_gain`, 0 if unknown, and
    ``D' = d + clock (D - d)``::

        e_k = mu_k + q_k g (D' - M)       p_k = q_k (1 - Q g)
        rest = R_i - m_i - sum_k (mu_k + q_k g (d - M))
        adv_k = e_k + p_k rest / (sum_j p_j + luck b0),  b0 = s0 (1 - s0)

    Args:
        turns: the batch.
        belief: under the slope.
        seen: what siblings tell.
        luck: share of the outcome's variance that is no turn's doing.
        alias: what a shared observation is thought to hide, as a share of the prior variance.
        adaptive: False takes ``alias`` as it is, and D for D'.
    """
    room, moved = belief.room, belief.revision
    gain, total = sibling_gain(turns, belief, seen, alias, adaptive=adaptive), seen.total(moved)
    pull = room * gain[seen.ids]
    discounted = seen.change + (seen.clock if adaptive else 1) * (seen.discounted - seen.change)
    expected = moved + pull * (discounted - total)[seen.ids]
    undiscounted = moved + pull * (seen.change - total)[seen.ids]
    variance = room * (1 - seen.total(room) * gain).clamp(min=0)[seen.ids]
    rest = turns.outcome - turns.baseline - turns.total(undiscounted)
    luck_variance = luck * turns.start * (1 - turns.start)
    share = rest / (turns.total(variance) + luck_variance)
    said = (gain[seen.ids] > 0) | (moved != 0)
    return Estimate(expected + variance * share[turns.owner], expected, variance, moved, turns.total(said.long()) > 0)
