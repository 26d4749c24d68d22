"""The methods of :mod:`turncredit.credit.baselines` as plain loops over Python numbers, from the equations alone."""

from __future__ import annotations

import itertools
import math

from helpers.reference import Batch, clip, group_advantages


class Visits(Batch):
    """A batch with what every turn earned, saw and led to; ``next[m]`` is the row of the next turn or None."""

    def __init__(self, inputs) -> None:
        super().__init__(inputs)
        self.next: list[int | None] = [None] * self.rows
        for rows in self.turns:
            for one, other in itertools.pairwise(rows):
                self.next[one] = other
        self.state = [(self.group[self.trajectory[m]], self.anchor[m]) for m in range(self.rows)]
        self.owner = [self.group[self.trajectory[m]] for m in range(self.rows)]

    def earned(self, m: int) -> float:
        if self.turn_rewards is not None:
            return self.turn_rewards[m]
        return self.rewards[self.trajectory[m]] if self.next[m] is None else 0.0

    def returns(self, discount: float) -> list[float]:
        def of(m):
            after = self.next[m]
            return self.earned(m) + (discount * of(after) if after is not None else 0.0)

        return [of(m) for m in range(self.rows)]

    def faded(self, fade: float) -> list[float]:
        return [reward * fade ** len(rows) for reward, rows in zip(self.rewards, self.turns, strict=True)]

    def spread(self, turns: list[float]) -> list[list[float]]:
        out = self.zeros()
        for m in range(self.rows):
            for t in self.tokens[m]:
                out[m][t] = turns[m]
        return out

    def episode(self, fade: float, scale: bool, eps: float) -> list[float]:
        advantages = group_advantages(self.faded(fade), self.group, scale=scale, eps=eps)
        return [advantages[self.trajectory[m]] for m in range(self.rows)]


def means(values: list[float], keys: list) -> list[float]:
    return [sum(v for v, k in zip(values, keys, strict=True) if k == key) / keys.count(key) for key in keys]


def rloo(inputs, *, outcome_discount=1.0):
    batch = Visits(inputs)
    rewards = batch.faded(outcome_discount)
    advantages = []
    for i, group in enumerate(batch.group):
        others = [rewards[j] for j, other in enumerate(batch.group) if other == group and j != i]
        advantages.append(rewards[i] - sum(others) / len(others) if others else 0.0)
    return batch.spread([advantages[batch.trajectory[m]] for m in range(batch.rows)])


def mt_grpo(inputs, *, step_weight=1.0, eps=1e-4, outcome_discount=1.0):
    batch = Visits(inputs)
    episode = batch.episode(outcome_discount, True, eps)
    place = [0] * batch.rows
    for rows in batch.turns:
        for k, m in enumerate(rows):
            place[m] = k
    inner = [m for m in range(batch.rows) if batch.next[m] is not None]
    keys = [(batch.owner[m], place[m]) for m in inner]
    steps = dict(zip(inner, group_advantages([batch.turn_rewards[m] for m in inner], keys, eps=eps), strict=True))
    return batch.spread([episode[m] + step_weight * steps.get(m, 0.0) for m in range(batch.rows)])


def hgpo(inputs, *, history=2, alpha=1.0, discount=0.95, eps=1e-6, outcome_discount=1.0):
    batch = Visits(inputs)
    returns, episode = batch.returns(discount), batch.episode(outcome_discount, True, 1e-4)
    ways: list[tuple] = [()] * batch.rows
    for rows in batch.turns:
        for k, m in enumerate(rows):
            ways[m] = tuple(batch.anchor[rows[j]] for j in range(k, -1, -1))
    turns = []
    for m in range(batch.rows):
        total = weights = 0.0
        for depth in range(1, history + 2):
            members = [n for n in range(batch.rows) if batch.owner[n] == batch.owner[m]]
            members = [n for n in members if ways[n][:depth] == ways[m][:depth]]
            if len(members) < 2:
                continue
            values = [returns[n] for n in members]
            mean = sum(values) / len(values)
            std = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
            weight = (depth + 1) ** alpha
            total += weight * ((returns[m] - mean) / (std + eps) if max(values) > min(values) else 0.0)
            weights += weight
        turns.append(total / weights if weights else episode[m])
    return batch.spread(turns)


def graphgpo(
    inputs, *, step_weight=1.0, discount=0.95, goal=10.0, normalization="mean_std", eps=1e-6, outcome_discount=1.0
):
    batch = Visits(inputs)
    divide = normalization == "mean_std"

    def distance(m):
        """Breadth first from what the turn led to."""
        frontier, seen, steps = [m], set(), 0
        while frontier:
            ends = [n for n in frontier if batch.next[n] is None and batch.successes[batch.trajectory[n]] > 0.5]
            if ends:
                return steps
            reached = {batch.state[batch.next[n]] for n in frontier if batch.next[n] is not None} - seen
            seen |= reached
            frontier = [n for n in range(batch.rows) if batch.state[n] in reached]
            steps += 1
        return math.inf

    values = [0.0 if math.isinf(d) else goal * discount**d for d in map(distance, range(batch.rows))]
    episode = batch.episode(outcome_discount, divide, eps)
    steps = group_advantages(values, batch.state, scale=divide, eps=eps)
    return batch.spread([a + step_weight * s for a, s in zip(episode, steps, strict=True)])


def g2po(inputs, *, step_weight=1.0, discount=0.95, normalization="mean_std", eps=1e-6, outcome_discount=1.0):
    batch = Visits(inputs)
    divide = normalization == "mean_std"
    values = means([discount * value for value in batch.returns(discount)], batch.state)
    reached = [batch.earned(m) + (0.0 if batch.next[m] is None else values[batch.next[m]]) for m in range(batch.rows)]
    moved = [one - other for one, other in zip(reached, values, strict=True)]
    local = group_advantages(reached, batch.state, scale=divide, eps=eps)
    wide = group_advantages(moved, batch.owner, scale=divide, eps=eps)
    episode = batch.episode(outcome_discount, divide, eps)
    return batch.spread([a + step_weight * (x + y) for a, x, y in zip(episode, local, wide, strict=True)])


def gagpo(inputs, *, discount=0.95, gae_lambda=0.95, normalization="mean_std", eps=1e-6):
    batch = Visits(inputs)
    values = means(batch.returns(discount), batch.state)

    def advantage(m):
        after = batch.next[m]
        if after is None:
            return batch.earned(m) - values[m]
        return batch.earned(m) + discount * values[after] - values[m] + discount * gae_lambda * advantage(after)

    found = [advantage(m) for m in range(batch.rows)]
    return batch.spread(group_advantages(found, batch.owner, scale=normalization == "mean_std", eps=eps))


def rewardflow(inputs, *, discount=0.95, episode_weight=0.0, normalization="mean_std", eps=1e-6, outcome_discount=1.0):
    batch = Visits(inputs)
    divide = normalization == "mean_std"
    edges = [batch.earned(m) for m in range(batch.rows)]
    for _ in range(len(set(batch.state)) + 1):
        best = {s: max(e for e, other in zip(edges, batch.state, strict=True) if other == s) for s in batch.state}
        edges = [
            batch.earned(m)
            if batch.next[m] is None
            else max(batch.earned(m), discount * best[batch.state[batch.next[m]]])
            for m in range(batch.rows)
        ]
    steps = group_advantages(edges, batch.state, scale=divide, eps=eps)
    episode = batch.episode(outcome_discount, divide, eps)
    return batch.spread([episode_weight * a + s for a, s in zip(episode, steps, strict=True)])


def hcapo(
    inputs,
    *,
    step_weight=1.0,
    hindsight_temperature=5.0,
    ratio_low=0.8,
    ratio_high=1.2,
    discount=0.95,
    scope="group",
    eps=1e-4,
    outcome_discount=1.0,
):
    batch = Visits(inputs)
    likely = [
        math.exp(sum(batch.teacher[m][t] for t in batch.tokens[m]) / len(batch.tokens[m]) / hindsight_temperature)
        for m in range(batch.rows)
    ]
    mean = means(likely, batch.trajectory)
    returns = batch.returns(discount)
    values = [clip(likely[m] / mean[m], ratio_low, ratio_high) * returns[m] for m in range(batch.rows)]
    keys = batch.trajectory if scope == "trajectory" else batch.owner
    steps = group_advantages(values, keys, eps=eps)
    episode = batch.episode(outcome_discount, True, eps)
    return batch.spread([a + step_weight * s for a, s in zip(episode, steps, strict=True)])
