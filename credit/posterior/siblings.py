"""What siblings tell: the other trajectories of the group that passed the same two observations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..segments import segment_mean, segment_sum
from .turns import Turns

_PAIRS = 1 << 16
_TINY, _LARGE = 1e-9, 1e9


@dataclass(frozen=True)
class Stretches:
    """Trajectories, cut at every observation that a sibling shares; S stretches.

    Args:
        ids: ``[M]`` int64 in [0, S), the stretch of each turn; a trajectory's are successive, in its order.
        owner: ``[S]`` int64, the trajectory of each stretch.
        opening: ``[S]`` mean outcome of the others at position 0 of that trajectory.
        known: ``[S]`` bool, whether siblings were at both ends; where not, the other fields are 0.
        change: ``[S]`` d, how the siblings' mean outcome changed, with what the stretch itself earned.
        discounted: ``[S]`` D, the same with returns that fade.
        variance: ``[S]`` s, of that difference of means.
        clock: no axes, in [0, 1]: how far D is believed where it differs from d, see :func:`_clock`.
    """

    ids: Tensor
    owner: Tensor
    opening: Tensor
    known: Tensor
    change: Tensor
    discounted: Tensor
    variance: Tensor
    clock: Tensor

    def total(self, values: Tensor) -> Tensor:
        """``[S]`` sums of ``[M]`` values over the turns of each stretch."""
        return segment_sum(values, self.ids, self.known.numel())


def stretches(turns: Turns, discount: float) -> Stretches:
    """Cut trajectories where siblings passed, and compare their means at both ends, one's own outcome left out.

    Position 0 is shared by the whole group.

    Args:
        turns: the batch.
        discount: gamma in (0, 1].
    """
    visits = _visits(turns, discount)
    cut = (visits.others > 0) | (turns.place == 0)
    cuts = turns.total(cut.long())
    ids = turns.running(cut.long()) - 1 + (cuts.cumsum(0) - cuts)[turns.owner]
    start = torch.empty_like(ids[cut])
    start[ids[cut]] = cut.nonzero()[:, 0]
    end = start.roll(-1)
    known = (turns.owner[start] == turns.owner[end]) & (turns.place[start] < turns.place[end])
    length = torch.bincount(ids).to(turns.earned.dtype)
    age = (turns.place - turns.place[start][ids] + 1).to(length.dtype)  # turns that the stretch's own earnings take
    own = segment_sum(turns.earned, ids, start.numel())
    faded = segment_sum(turns.earned * discount**age, ids, start.numel())
    change = own + visits.mean(visits.to_go, end) - visits.mean(visits.to_go, start)
    discounted = faded + discount**length * visits.mean(visits.worth, end)
    discounted = discounted - visits.mean(visits.worth, start)
    variance = _variance(turns, visits, start, end)
    change, discounted, variance = (torch.where(known, part, 0.0) for part in (change, discounted, variance))
    owner, opening = turns.owner[start], _openings(turns)[turns.owner[start]]
    clock = _clock(turns, visits, end, opening, known, discount)
    return Stretches(ids, owner, visits.mean(visits.to_go, opening), known, change, discounted, variance, clock)


def _openings(turns: Turns) -> Tensor:
    """``[N]`` int64, the row of each trajectory's first turn."""
    rows = (turns.place == 0).nonzero()[:, 0]
    return torch.empty_like(rows).index_put_((turns.owner[rows],), rows)


def _clock(turns: Turns, visits: _Visits, end: Tensor, opening: Tensor, known: Tensor, discount: float) -> Tensor:
    """Whether observations tell the time that is left: ``max(0, 2 lambda - 1)``, 1 where nothing can be said.

    Of what is still earned, siblings see the share ``f = W / V`` left by fading. One's own clock alone would say ``h``,
    the share at position 0 over ``discount`` to the turns taken. ``lambda`` is the slope, over the ends of stretches,
    of the own share less h on f less h: 1 where an observation is a state, towards 0 where states look alike.
    """
    shares, usable = [], known & turns.judged[turns.owner[end]]
    for rows in (end, opening):
        left = visits.mean(visits.to_go, rows)
        usable &= left > _TINY
        shares.append(visits.mean(visits.worth, rows) / left.clamp(min=_TINY))
    seen, own_clock = shares[0], shares[1] * (discount ** -turns.place[end].to(left.dtype)).clamp(max=_LARGE)
    left = turns.to_go()[end]
    said = torch.where(usable, left * (seen - own_clock), 0.0)
    found = torch.where(usable, turns.discounted_to_go(discount)[end] - left * own_clock, 0.0)
    count = segment_sum(usable.long(), turns.owner[end], turns.counts.numel())[turns.owner[end]].clamp(min=1)
    size = (said.square() / count).sum()
    slope = torch.where(size > _TINY, (said * found / count).sum() / size.clamp(min=_TINY), 1.0)
    return (2 * slope - 1).clamp(0, 1)


def _variance(turns: Turns, visits: _Visits, start: Tensor, end: Tensor) -> Tensor:
    """``[S]`` variance of the difference of the two means; visitors of both ends cancel."""
    before, after = visits.others[start], visits.others[end]
    baseline = turns.baseline[turns.owner[start]]
    noise = torch.zeros_like(baseline)
    for rows, many in ((start, before), (end, after)):
        share = (visits.mean(visits.outcome, rows) * many + baseline) / (many + 1)
        noise += share * (1 - share) / 2
    before, after = before.clamp(min=1), after.clamp(min=1)
    both = visits.shared(visits.place[start], visits.place[end]) - 1  # without oneself
    return noise * (1 / before + 1 / after - 2 * both / (before * after)).clamp(min=0)


@dataclass(frozen=True)
class _Visits:
    """Who was where: the A places are the anchors of each group, and each group's start."""

    keys: Tensor  # [V] int64, place * N + trajectory, ascending, each once
    trajectories: int  # N
    outcome: Tensor  # [V] R of the visitor
    to_go: Tensor  # [V] what it earned from there on, the mean over its visits
    worth: Tensor  # [V] the same, fading
    place: Tensor  # [M] the place of each turn
    own: Tensor  # [M] the visit that the turn itself is part of
    size: Tensor  # [A] visitors of each place

    @property
    def others(self) -> Tensor:
        """``[M]`` wide float, visitors of each turn's place, without its own trajectory."""
        return (self.size[self.place] - 1).to(self.outcome.dtype)

    def mean(self, values: Tensor, rows: Tensor) -> Tensor:
        """``[R]`` mean of ``[V]`` values over the others at the places of some turns; 0 without others."""
        sums = segment_sum(values, self.keys // self.trajectories, self.size.numel())
        return (sums[self.place[rows]] - values[self.own[rows]]) / self.others[rows].clamp(min=1)

    def shared(self, first: Tensor, second: Tensor) -> Tensor:
        """``[R]`` int64, trajectories that were at both of two places; as many pairs at a time as memory allows."""
        small = torch.where(self.size[first] <= self.size[second], first, second)
        places = self.size.numel()
        pairs, which = torch.unique(small * places + first + second - small, return_inverse=True)
        sizes = self.size[pairs // places]
        block = (sizes.cumsum(0) - sizes) // _PAIRS
        parts = pairs.split(block.unique_consecutive(return_counts=True)[1].tolist())
        return torch.cat([self._shared(part // places, part % places) for part in parts])[which]

    def _shared(self, small: Tensor, large: Tensor) -> Tensor:
        sizes = self.size[small]
        pair = torch.repeat_interleave(sizes)
        step = torch.arange(pair.numel(), device=pair.device) - (sizes.cumsum(0) - sizes)[pair]
        visitor = self.keys[(self.size.cumsum(0) - self.size)[small][pair] + step] % self.trajectories
        wanted = large[pair] * self.trajectories + visitor
        found = self.keys[torch.searchsorted(self.keys, wanted).clamp(max=self.keys.numel() - 1)] == wanted
        return segment_sum(found.long(), pair, small.numel())


def _visits(turns: Turns, discount: float) -> _Visits:
    owner, count = turns.owner, turns.counts.numel()
    group, opening = turns.group[owner], turns.place == 0
    row = torch.arange(owner.numel(), device=owner.device)
    seen = torch.unique(group * (turns.anchors.max() + 1) + turns.anchors, return_inverse=True)[1]
    place = torch.where(opening, seen.max() + 1 + group, seen)
    # a first turn visits the start of its group and what it saw there, to which the trajectory may come back
    rows = torch.cat([row, row[opening]])
    keys, which = torch.unique(torch.cat([seen, place[opening]]) * count + owner[rows], return_inverse=True)
    to_go, worth = (
        segment_mean(values[rows], which, keys.numel()) for values in (turns.to_go(), turns.discounted_to_go(discount))
    )
    own = torch.searchsorted(keys, place * count + owner)
    return _Visits(keys, count, turns.outcome[keys % count], to_go, worth, place, own, torch.bincount(keys // count))
