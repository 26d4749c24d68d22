"""Metrics that know what they were taken over, so that parts of a batch can be joined into the numbers of the whole.

Each is a float; a plain float in ``Credit.metrics`` is joined by the number of trajectories.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor


class Mean(float):
    """A mean, and the weight it was taken over: a number of turns, tokens or groups, or the sum it was divided by."""

    weight: float

    def __new__(cls, value: float, weight: float) -> Mean:
        self = super().__new__(cls, value)
        self.weight = float(weight)
        return self

    def __getnewargs__(self) -> tuple[float, float]:
        return float(self), self.weight


class Deviation(float):
    """A population standard deviation, with the mean and the weight it was taken over."""

    mean: float
    weight: float

    def __new__(cls, value: float, mean: float, weight: float) -> Deviation:
        self = super().__new__(cls, value)
        self.mean, self.weight = float(mean), float(weight)
        return self

    def __getnewargs__(self) -> tuple[float, float, float]:
        return float(self), self.mean, self.weight


class Total(float):
    """A sum or a count."""


class Largest(float):
    """A maximum."""


def deviation(values: Tensor) -> Deviation:
    """The population standard deviation of all elements."""
    return Deviation(float(values.std(correction=0)), float(values.mean()), values.numel())


def join_metrics(parts: Sequence[Mapping[str, float]], weights: Sequence[float]) -> dict[str, float]:
    """Metrics of a whole from those of its parts, as plain floats.

    Args:
        parts: metrics of each part; a name may be missing in some.
        weights: number of trajectories of each part, the weight of plain floats.

    Returns:
        Weighted means of means, pooled deviations, sums of totals, maxima; 0 for a mean that was taken over nothing.
    """
    joined = {}
    for name in sorted({name for part in parts for name in part}):
        values = [(part[name], weight) for part, weight in zip(parts, weights, strict=True) if name in part]
        joined[name] = float(values[0][0]) if len(values) == 1 else _join(values)
    return joined


def _join(values: list[tuple[float, float]]) -> float:
    first = values[0][0]
    if isinstance(first, Total):
        return math.fsum(value for value, _ in values)
    if isinstance(first, Largest):
        return max(float(value) for value, _ in values)
    own = [getattr(value, "weight", weight) for value, weight in values]
    if isinstance(first, Deviation):
        means = [getattr(value, "mean", 0.0) for value, _ in values]
        centre = _mean(means, own)
        return math.sqrt(_mean([v**2 + (m - centre) ** 2 for (v, _), m in zip(values, means, strict=True)], own))
    return _mean([value for value, _ in values], own)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    total = math.fsum(weights)
    return math.fsum(v * w for v, w in zip(values, weights, strict=True) if w) / total if total else 0.0
