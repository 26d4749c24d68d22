"""How far siblings are believed: what a shared observation hides of the state, judged by the outcomes it foretold."""

from __future__ import annotations

import torch
from torch import Tensor

from ..segments import segment_sum
from .siblings import Stretches
from .slope import Beliefs
from .turns import Turns

_FACTORS = (0.0, 0.4, 1.0, 2.0, 4.0, 10.0, 30.0, 100.0)
_CENTRE, _LEAST, _WIDTH = 0.4, 0.2, 2.0
_TINY, _LEAST_ERROR = 1e-9, 1e-6


def sibling_gain(turns: Turns, belief: Beliefs, seen: Stretches, alias: float, *, adaptive: bool = True) -> Tensor:
    """``[S]`` g, how much a unit of prior variance takes over of what siblings say; 0 where they say nothing.

    ``g = sum_c w_c / ((1 + c alias) Q + s)``, c over eight factors, log-normal about 0.4 beforehand: the mean of
    ``1 / (1 + c alias)`` is then that of c = 1 at the default. A factor foretells, at the end of every known stretch,
    the outcome ``P = V_0 + sum (M + Q g_c (d - M))``, summed over the stretches until there, where V_0 is the others'
    mean at position 0; and ``w_c ~ prior_c (E_c / n)^-n``, where E_c is the mean of ``(R_i - P)^2`` over a trajectory's
    known stretches, summed over the n judged trajectories that have any.

    Args:
        turns: the batch.
        belief: under the slope.
        seen: what siblings tell.
        alias: what a shared observation is thought to hide, as a share of the prior variance.
        adaptive: False takes ``alias`` as it is, c = 1.
    """
    room, moved = seen.total(belief.room), seen.total(belief.revision)
    factors = room.new_tensor(_FACTORS if adaptive else (1.0,))
    spread = (1 + alias * factors)[:, None] * room + seen.variance
    gains = torch.where(seen.known, 1 / spread.clamp(min=_TINY), 0.0)
    away = (factors.clamp(min=_LEAST) / _CENTRE).log() / _WIDTH
    logits = _misses(turns, seen, moved + room * gains * (seen.change - moved)) - away.square() / 2
    return logits.softmax(0) @ gains


def _misses(turns: Turns, seen: Stretches, steps: Tensor) -> Tensor:
    """``[C]`` ``-n log(E / n)`` of outcomes foretold in ``[C, S]`` steps."""
    used = (seen.known & turns.judged[seen.owner]).to(steps.dtype)
    many = segment_sum(used, seen.owner, turns.counts.numel())
    count = int((many > 0).sum())
    if not count:
        return steps.new_zeros(len(steps))
    walked = torch.where(seen.known, steps, 0.0).cumsum(-1)
    first = torch.searchsorted(seen.owner, seen.owner)
    before = torch.cat([torch.zeros_like(walked[:, :1]), walked], -1)[:, first]
    weight = used / many.clamp(min=1)[seen.owner]
    error = (turns.outcome[seen.owner] - seen.opening - walked + before).square() @ weight
    return -count * (error / count).clamp(min=_LEAST_ERROR).log()
