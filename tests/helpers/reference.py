"""The credit methods as plain loops over Python numbers: slow, and written from the equations alone.

A batch is a :class:`CreditInputs`; everything in it becomes lists first, so no tensor operation is shared with the
library.
"""

from __future__ import annotations

import math


class Batch:
    """A batch as lists: ``turns[i]`` holds the rows of trajectory i in order, ``tokens[m]`` the sampled places."""

    def __init__(self, inputs) -> None:
        self.mask = inputs.response_mask.tolist()
        self.student = inputs.student_logprobs.tolist()
        self.teacher = None if inputs.teacher_logprobs is None else inputs.teacher_logprobs.tolist()
        self.span = None if inputs.span_mask is None else inputs.span_mask.tolist()
        self.anchor = None if inputs.anchor_ids is None else inputs.anchor_ids.tolist()
        self.turn_rewards = None if inputs.turn_rewards is None else inputs.turn_rewards.tolist()
        self.rewards, self.successes = inputs.rewards.tolist(), inputs.successes.tolist()
        self.group = inputs.group_ids.tolist()
        self.trajectory, turn = inputs.trajectory_ids.tolist(), inputs.turn_ids.tolist()
        self.rows, self.width = len(self.mask), len(self.mask[0])
        self.turns: list[list[int]] = [[] for _ in self.group]
        for m in sorted(range(self.rows), key=turn.__getitem__):
            self.turns[self.trajectory[m]].append(m)
        self.tokens = [[t for t in range(self.width) if self.mask[m][t]] for m in range(self.rows)]

    def gap(self, m: int, t: int) -> float:
        return self.teacher[m][t] - self.student[m][t]

    def zeros(self) -> list[list[float]]:
        return [[0.0] * self.width for _ in range(self.rows)]


def sign(x: float) -> int:
    return (x > 0) - (x < 0)


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def group_advantages(rewards, groups, counts=None, scale=True, eps=1e-4):
    """``counts``: how often each rollout counts (its turns, or once)."""
    counts = counts or [1] * len(rewards)
    out = []
    for i, reward in enumerate(rewards):
        copies = [rewards[j] for j in range(len(rewards)) if groups[j] == groups[i] for _ in range(counts[j])]
        if max(copies) == min(copies):
            out.append(0.0)
            continue
        mean = sum(copies) / len(copies)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in copies) / (len(copies) - 1))
        out.append((reward - mean) / (deviation + eps) if scale else reward - mean)
    return out


def trajectory_advantages(batch, scale_rewards=True, normalization_scope="trajectory", eps=1e-4):
    counts = [len(rows) for rows in batch.turns] if normalization_scope == "turn" else None
    return group_advantages(batch.rewards, batch.group, counts, scale_rewards, eps)


def grpo(inputs, **group_options):
    batch = Batch(inputs)
    advantages, out = trajectory_advantages(batch, **group_options), batch.zeros()
    for m in range(batch.rows):
        for t in batch.tokens[m]:
            out[m][t] = advantages[batch.trajectory[m]]
    return out


def agent_opsd(
    inputs,
    *,
    gamma=0.95,
    lam=0.5,
    band=0.2,
    eps=1e-4,
    granularity="turn",
    revision="belief",
    signed=True,
    prior="success_rate",
    evidence_centering=None,
    evidence_scale=None,
    evidence_reduction="sum",
    **group_options,
):
    """Advantages ``[M][T]`` and weights ``[M]`` (mean over tokens for the token variant)."""
    batch = Batch(inputs)
    advantages = trajectory_advantages(batch, eps=eps, **group_options)
    out, turn_weights = batch.zeros(), [1.0] * batch.rows
    units = []
    for rows in batch.turns:
        if granularity == "token":
            units.append([[(m, t)] for m in rows for t in batch.tokens[m]])
        else:
            units.append([[(m, t) for t in batch.tokens[m]] for m in rows])
    evidence = []
    for cells in units:
        sums = [sum(batch.gap(m, t) for m, t in cell) for cell in cells]
        if evidence_reduction == "mean":
            sums = [value / len(cell) for value, cell in zip(sums, cells, strict=True)]
        evidence.append(sums)
    evidence = calibrate(evidence, batch.group, evidence_centering, evidence_scale, eps)
    for i, cells in enumerate(units):
        members = [j for j in range(len(batch.group)) if batch.group[j] == batch.group[i]]
        rate = clip(sum(batch.successes[j] for j in members) / len(members), eps, 1 - eps)
        logit = math.log(rate / (1 - rate)) if prior == "success_rate" else 0.0
        total, belief, scores = 0.0, sigmoid(logit), []
        for value in evidence[i]:
            total = gamma * total + value
            previous, belief = belief, sigmoid(logit + total)
            moved = belief - previous if revision == "belief" else value
            scores.append(sign(advantages[i]) * moved if signed else abs(moved))
        mean = sum(scores) / len(scores)
        deviation = math.sqrt(sum((s - mean) ** 2 for s in scores) / len(scores))
        weights = [clip(1 + band * (s - mean) / (deviation + eps), 1 - band, 1 + band) for s in scores]
        for cell, weight in zip(cells, weights, strict=True):
            for m, t in cell:
                out[m][t] = advantages[i] * ((1 - lam) + lam * weight)
                turn_weights[m] = weight
        if granularity == "token":
            for m in batch.turns[i]:
                own = [w for cell, w in zip(cells, weights, strict=True) if cell[0][0] == m]
                turn_weights[m] = sum(own) / len(own)
    return out, turn_weights


def calibrate(evidence, groups, centering, scale, eps):
    pooled = {
        g: [e for j, values in enumerate(evidence) if groups[j] == g for e in values] for g in sorted(set(groups))
    }
    out = []
    for i, values in enumerate(evidence):
        pool = pooled[groups[i]]
        centre = {None: 0.0, "trajectory": sum(values) / len(values), "group": sum(pool) / len(pool)}[centering]
        out.append([value - centre for value in values])
    if scale == "group_std":
        centred = {g: [e for j, v in enumerate(out) if groups[j] == g for e in v] for g in sorted(set(groups))}
        for i, values in enumerate(out):
            pool = centred[groups[i]]
            mean = sum(pool) / len(pool)
            deviation = math.sqrt(sum((e - mean) ** 2 for e in pool) / len(pool))
            out[i] = [value / (deviation + eps) for value in values]
    elif scale is not None:
        out = [[value / scale for value in values] for values in out]
    return out


def rlsd(inputs, *, lam=0.5, band=0.2, **group_options):
    batch = Batch(inputs)
    advantages, out = trajectory_advantages(batch, **group_options), batch.zeros()
    for m in range(batch.rows):
        a = advantages[batch.trajectory[m]]
        for t in batch.tokens[m]:
            weight = clip(math.exp(min(sign(a) * batch.gap(m, t), 50.0)), 1 - band, 1 + band)
            out[m][t] = a * ((1 - lam) + lam * weight)
    return out


def step_opsd(inputs, *, lam=0.2, band=0.2, step_normalization=True, **group_options):
    batch = Batch(inputs)
    advantages, out = trajectory_advantages(batch, **group_options), batch.zeros()
    for i, rows in enumerate(batch.turns):
        a = advantages[i]
        strengths = {}
        for m in rows:
            for t in batch.tokens[m]:
                gap = batch.gap(m, t) if batch.span[m][t] else 0.0
                weight = clip(2 * sigmoid(sign(a) * gap), 1 - band, 1 + band)
                out[m][t] = (1 - lam) * a + lam * weight * a
            inside = [abs(out[m][t]) for t in batch.tokens[m] if batch.span[m][t]]
            if inside:
                strengths[m] = sum(inside) / len(inside)
        if not step_normalization or len(strengths) < 2 or lam == 0:
            continue
        mean = sum(strengths.values()) / len(strengths)
        for m, strength in strengths.items():
            for t in batch.tokens[m]:
                if batch.span[m][t]:
                    out[m][t] *= clip(mean / (strength + 1e-6), 0.5, 2.0)
    return out


def gigpo(inputs, *, step_weight=1.0, discount=0.95, normalization="mean", eps=1e-6):
    batch = Batch(inputs)
    divide = normalization == "mean_std"
    episode = group_advantages(batch.rewards, batch.group, scale=divide, eps=eps)
    returns = [0.0] * batch.rows
    for i, rows in enumerate(batch.turns):
        for k, m in enumerate(rows):
            for later, n in enumerate(rows[k:]):
                if batch.turn_rewards is not None:
                    earned = batch.turn_rewards[n]
                else:
                    earned = batch.rewards[i] if n == rows[-1] else 0.0
                returns[m] += discount**later * earned
    keys = [(batch.group[batch.trajectory[m]], batch.anchor[m]) for m in range(batch.rows)]
    steps = group_advantages(returns, keys, scale=divide, eps=eps)
    out = batch.zeros()
    for m in range(batch.rows):
        for t in batch.tokens[m]:
            out[m][t] = episode[batch.trajectory[m]] + step_weight * steps[m]
    return out
