"""Whether the outcomes bear the teacher out: what its evidence is worth next to knowing nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from ..segments import segment_mean, segment_sum
from .turns import Turns

_CONTRADICTED, _AGAINST = 2.5, 0.6
_TINY = 1e-12


def trust(turns: Turns, evidence: Tensor, *, spike: float) -> Tensor:
    """Share in [0, 1] of the slope that is kept, no axes: ``1 / (1 + spike exp(-z^2 / 2))``, z the last of the scores.

    It is 0, and credit GRPO's, where evidence spoke against the outcomes on its way: at some turn the score has the
    other sign and is beyond 2.5 and beyond 0.6 of z. Such evidence agrees only once all is decided: it is an echo.

    Args:
        turns: the batch.
        evidence: ``[M]`` x_k.
        spike: odds that the teacher knows nothing, where evidence and outcomes have nothing in common; 0 keeps it all.
    """
    found = scores(turns, evidence)
    final = found[-1]
    against = -(found * final.sign()).min()
    contradicted = (against > _CONTRADICTED) & (against > _AGAINST * final.abs())
    share = 1 / (1 + spike * torch.exp(-final.square() / 2))
    return torch.where(contradicted, 0.0, share) if spike > 0 else torch.ones_like(share)


def scores(turns: Turns, evidence: Tensor) -> Tensor:
    """``[K]`` z_k, how the evidence up to turn k goes with the outcomes of each group, in standard deviations.

    With R and X_k less their group's means, ``z_k = sum R X_k / sqrt(sum over groups of sum R^2 sum X_k^2 / (G - 1))``:
    the denominator is the deviation of the numerator if each group's outcomes were dealt out at random. A trajectory
    that is over keeps its X. Groups of equal rewards have no part in it; 0 where nothing differs.
    """
    sizes = torch.bincount(turns.group)
    groups = sizes.numel()
    grid = evidence.new_zeros(turns.counts.numel(), int(turns.counts.max()))
    grid[turns.owner, turns.place] = evidence
    summed = grid.cumsum(-1)
    sums = summed.new_zeros(groups, summed.shape[1]).index_add_(0, turns.group, summed)
    summed = summed - (sums / sizes[:, None])[turns.group]
    mixed = segment_sum(turns.judged.long(), turns.group, groups) > 0
    outcome = turns.outcome - segment_mean(turns.outcome, turns.group, groups)[turns.group]
    outcome = torch.where(mixed[turns.group], outcome, 0.0)
    squares = segment_sum(outcome.square(), turns.group, groups) / (sizes - 1).clamp(min=1)
    variance = (squares[turns.group, None] * summed.square()).sum(0)
    return (outcome[:, None] * summed).sum(0) / variance.sqrt().clamp(min=_TINY)
