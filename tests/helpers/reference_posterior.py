"""Posterior credit as plain loops over sets and numbers, written from docs/equations.md#posterior alone."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

from helpers.reference import Batch
from helpers.reference_trust import scores, share


@dataclass
class Stretch:
    """Turns ``first .. last - 1`` of a trajectory; ``d`` is None where nobody was at its end."""

    trajectory: int
    first: int
    last: int
    d: float | None = None
    D: float = 0.0
    s: float = 0.0


@dataclass
class Found:
    credit: list[float]  # [M] A~
    advantage: list[float]
    revision: list[float]
    variance: list[float]
    slope: float
    stretches: list[Stretch] = field(default_factory=list)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


class Posterior:
    """One batch; ``use`` holds ``teacher`` and ``anchors``, and options are those of the method."""

    def __init__(self, inputs, grpo, use=("teacher", "anchors"), fade=1.0, discount=0.95) -> None:
        self.batch, self.A, self.use, self.discount = Batch(inputs), grpo, use, discount
        batch = self.batch
        self.K = [len(rows) for rows in batch.turns]
        raw = [r * fade**k for r, k in zip(batch.rewards, self.K, strict=True)]
        self.members = [[j for j, h in enumerate(batch.group) if h == g] for g in batch.group]
        low = [min(raw[j] for j in members) for members in self.members]
        size = [(max(raw[j] for j in members) - least) or 1.0 for members, least in zip(self.members, low, strict=True)]
        self.R = [(r - least) / unit for r, least, unit in zip(raw, low, size, strict=True)]
        self.m = [sum(self.R[j] for j in members) / len(members) for members in self.members]
        self.s0 = [(len(g) * m + 1) / (len(g) + 2) for g, m in zip(self.members, self.m, strict=True)]
        self.earned = []
        for i, rows in enumerate(batch.turns):
            parts = [0.0] * self.K[i]
            if batch.turn_rewards is not None:
                parts = [batch.turn_rewards[row] * fade ** self.K[i] / size[i] for row in rows]
            parts[-1] = self.R[i] - sum(parts[:-1])
            self.earned.append(parts)

    # ---- siblings

    def visitors(self, i: int, u: int) -> dict[int, list[int]]:
        """Other trajectories of the group at what i saw at u, with the positions at which they were there."""
        found = {}
        for j in self.members[i]:
            if j == i:
                continue
            if u == 0:
                found[j] = [0]
            elif "anchors" in self.use:
                seen = self.batch.anchor[self.batch.turns[i][u]]
                times = [t for t, row in enumerate(self.batch.turns[j]) if self.batch.anchor[row] == seen]
                if times:
                    found[j] = times
        return found

    def mean_to_go(self, visitors: dict[int, list[int]], gamma: float) -> float:
        total = 0.0
        for j, times in visitors.items():
            values = [sum(gamma ** (k + 1 - t) * self.earned[j][k] for k in range(t, self.K[j])) for t in times]
            total += sum(values) / len(values)
        return total / len(visitors)

    def stretches(self) -> list[Stretch]:
        found = []
        for i, turns in enumerate(self.K):
            cuts = [k for k in range(turns) if k == 0 or self.visitors(i, k)]
            for u, v in zip(cuts, [*cuts[1:], None], strict=True):
                stretch = Stretch(i, u, turns if v is None else v)
                before = self.visitors(i, u)
                if v is not None and before:
                    self.compare(stretch, before, self.visitors(i, v))
                found.append(stretch)
        return found

    def compare(self, stretch: Stretch, before: dict[int, list[int]], after: dict[int, list[int]]) -> None:
        i, u, v = stretch.trajectory, stretch.first, stretch.last
        own = range(u, v)
        stretch.d = sum(self.earned[i][k] for k in own) + self.mean_to_go(after, 1) - self.mean_to_go(before, 1)
        faded = sum(self.discount ** (k + 1 - u) * self.earned[i][k] for k in own)
        value = self.discount ** (v - u) * self.mean_to_go(after, self.discount)
        stretch.D = faded + value - self.mean_to_go(before, self.discount)
        noise = 0.0
        for visitors in (before, after):
            h = (sum(self.R[j] for j in visitors) + self.m[i]) / (len(visitors) + 1)
            noise += h * (1 - h) / 2
        n, m, both = len(before), len(after), len(before.keys() & after.keys())
        stretch.s = noise * (1 / n + 1 / m - 2 * both / (n * m))

    # ---- the teacher

    def evidence(self) -> list[list[float]]:
        batch = self.batch
        if "teacher" not in self.use:
            return [[0.0] * k for k in self.K]
        g = [sum(batch.gap(m, t) for t in batch.tokens[m]) for m in range(batch.rows)]
        per_token = sorted(g[m] / len(batch.tokens[m]) for m in range(batch.rows))
        c = per_token[(batch.rows - 1) // 2]
        x = [g[m] - c * len(batch.tokens[m]) for m in range(batch.rows)]
        rms = max(math.sqrt(sum(e * e for e in x) / batch.rows), 1e-3)
        return [[x[m] / rms for m in rows] for rows in batch.turns]

    def beliefs(self, i: int, x: list[list[float]], a: float) -> list[float]:
        """B_{-1}, B_0, .. of a trajectory."""
        found, total = [self.s0[i]], 0.0
        for e in x[i]:
            total += e
            found.append(sigmoid(math.log(self.s0[i] / (1 - self.s0[i])) + a * total))
        return found

    def slope(self, x, stretches, a0: float, ridge: float, doubt: float, spike: float) -> float:
        if "teacher" not in self.use:
            return 0.0
        a, curve = a0, ridge
        for _ in range(60):
            score, curve = -ridge * (a - a0), ridge
            for i, turns in enumerate(self.K):
                if self.A[i] == 0:
                    continue
                last, total = self.beliefs(i, x, a)[turns], sum(x[i])
                score += (self.R[i] - last) * total
                curve += last * (1 - last) * total**2
            for stretch in stretches:
                i = stretch.trajectory
                if stretch.d is None or self.A[i] == 0:
                    continue
                room = [b * (1 - b) for b in self.beliefs(i, x, a)]
                turns = range(stretch.first, stretch.last)
                per_slope = sum(room[k] * x[i][k] for k in turns)
                weight = 1 / max(sum(room[k] / self.K[i] for k in turns) + stretch.s, 1e-6)
                score += weight * (stretch.d - a * per_slope) * per_slope
                curve += weight * per_slope**2
            a += max(-0.3, min(0.3, score / curve))
        z, sd = a * math.sqrt(curve), 1 / math.sqrt(curve)
        phi, cdf = math.exp(-z * z / 2) / math.sqrt(2 * math.pi), 0.5 * math.erfc(-z / math.sqrt(2))
        a += sd * phi * (1 - 2 * doubt) / ((1 - doubt) * cdf + doubt * (1 - cdf))
        return a * share(scores(x, self.R, self.batch.group), spike)

    # ---- how far siblings are believed

    def clock(self, stretches: list[Stretch]) -> float:
        above = below = 0.0
        for i, turns in enumerate(self.K):
            pairs, start = [], self.visitors(i, 0)
            for stretch in stretches:
                if stretch.trajectory != i or stretch.d is None or self.A[i] == 0:
                    continue
                there, v = self.visitors(i, stretch.last), stretch.last
                left, opening = self.mean_to_go(there, 1), self.mean_to_go(start, 1)
                if left <= 1e-9 or opening <= 1e-9:
                    continue
                own = sum(self.earned[i][v:])
                faded = sum(self.discount ** (k + 1 - v) * self.earned[i][k] for k in range(v, turns))
                h = self.mean_to_go(start, self.discount) / opening / self.discount**v
                f = self.mean_to_go(there, self.discount) / left
                pairs.append((own * (f - h), faded - own * h))
            above += sum(x * y for x, y in pairs) / max(len(pairs), 1)
            below += sum(x * x for x, _ in pairs) / max(len(pairs), 1)
        slope = above / below if below > 1e-9 else 1.0
        return min(1.0, max(0.0, 2 * slope - 1))

    def gains(self, stretches: list[Stretch], q, mu, alias: float, adaptive: bool) -> list[float]:
        """g of every stretch, 0 where d is unknown."""
        factors = [0.0, 0.4, 1.0, 2.0, 4.0, 10.0, 30.0, 100.0] if adaptive else [1.0]
        prior = [math.exp(-(math.log(max(c, 0.2) / 0.4) ** 2) / 8) for c in factors]
        tables, weights, n = [], [], 0
        for c, before in zip(factors, prior, strict=True):
            table, error, n = [0.0] * len(stretches), 0.0, 0
            for i in range(len(self.K)):
                value, misses = None, []
                for place, stretch in enumerate(stretches):
                    if stretch.trajectory != i or stretch.d is None:
                        continue
                    if value is None:
                        value = self.mean_to_go(self.visitors(i, 0), 1)
                    inside = range(stretch.first, stretch.last)
                    Q, M = sum(q[i][k] for k in inside), sum(mu[i][k] for k in inside)
                    table[place] = 1 / max((1 + c * alias) * Q + stretch.s, 1e-9)
                    value += M + Q * table[place] * (stretch.d - M)
                    misses.append((self.R[i] - value) ** 2)
                if misses and self.A[i] != 0:
                    n += 1
                    error += sum(misses) / len(misses)
            tables.append(table)
            weights.append(math.log(before) - (n * math.log(max(error / n, 1e-6)) if n else 0.0))
        top = max(weights)
        weights = [math.exp(w - top) for w in weights]
        return [
            sum(w * t[k] for w, t in zip(weights, tables, strict=True)) / sum(weights) for k in range(len(stretches))
        ]

    # ---- the posterior

    def run(self, luck=0.2, alias=0.5, slope=0.2, ridge=10.0, doubt=0.05, spike=3.0, adaptive=True) -> Found:
        stretches, x = self.stretches(), self.evidence()
        a = self.slope(x, stretches, slope, ridge, doubt, spike)
        rows = self.batch.rows
        found = Found([0.0] * rows, [0.0] * rows, [0.0] * rows, [0.0] * rows, a, stretches)
        beliefs = [self.beliefs(i, x, a) for i in range(len(self.K))]
        variances = [[b * (1 - b) / self.K[i] for b in row[:-1]] for i, row in enumerate(beliefs)]
        revisions = [[after - before for before, after in itertools.pairwise(row)] for row in beliefs]
        gains = self.gains(stretches, variances, revisions, alias, adaptive)
        clock = self.clock(stretches) if adaptive else 1.0
        for i, turns in enumerate(self.K):
            q, mu = variances[i], revisions[i]
            e, plain, p = list(mu), list(mu), list(q)
            for g, stretch in zip(gains, stretches, strict=True):
                if stretch.trajectory != i or stretch.d is None:
                    continue
                inside = range(stretch.first, stretch.last)
                Q, M = sum(q[k] for k in inside), sum(mu[k] for k in inside)
                D = stretch.d + clock * (stretch.D - stretch.d)
                for k in inside:
                    e[k] = mu[k] + q[k] * g * (D - M)
                    plain[k] = mu[k] + q[k] * g * (stretch.d - M)
                    p[k] = q[k] * (1 - Q * g)
            rest = self.R[i] - self.m[i] - sum(plain)
            b0 = self.s0[i] * (1 - self.s0[i])
            for k, row in enumerate(self.batch.turns[i]):
                adv = e[k] + p[k] * rest / (sum(p) + luck * b0)
                found.advantage[row], found.revision[row], found.variance[row] = adv, mu[k], p[k]
                if self.A[i] != 0:
                    found.credit[row] = adv * turns * (1 + luck) * self.A[i] / (self.R[i] - self.m[i])
        return found
