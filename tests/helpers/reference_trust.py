"""The share of posterior credit's slope that outcomes bear out, (49), as plain loops over Python numbers."""

from __future__ import annotations

import math


def scores(evidence: list[list[float]], outcomes: list[float], groups: list[int]) -> list[float]:
    """``evidence[i]`` holds x_k of trajectory i; one score for each turn of the longest."""
    found = []
    for k in range(max(map(len, evidence))):
        product = variance = 0.0
        for name in set(groups):
            members = [i for i, group in enumerate(groups) if group == name]
            sums = [sum(evidence[i][: k + 1]) for i in members]
            rewards = [outcomes[i] for i in members]
            mean_sum, mean_reward = sum(sums) / len(members), sum(rewards) / len(members)
            product += sum((r - mean_reward) * (x - mean_sum) for r, x in zip(rewards, sums, strict=True))
            squares = sum((r - mean_reward) ** 2 for r in rewards) * sum((x - mean_sum) ** 2 for x in sums)
            variance += squares / max(len(members) - 1, 1)
        found.append(product / math.sqrt(variance) if variance > 1e-24 else 0.0)
    return found


def share(found: list[float], spike: float) -> float:
    """r of the scores."""
    last = found[-1]
    if spike == 0:
        return 1.0
    for z in found:
        if z * last < 0 and abs(z) > max(2.5, 0.6 * abs(last)):
            return 0.0
    return 1 / (1 + spike * math.exp(-last * last / 2))
