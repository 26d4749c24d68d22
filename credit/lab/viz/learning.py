"""A picture of a learning comparison: curves with bands, and each method's gain over a baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ._frame import COLOURS, INK, NEUTRAL, label, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_learning(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    gains: Mapping[str, tuple[float, float]],
    *,
    updates: Sequence[int],
    baseline: str = "grpo",
    title: str = "Does the credit make learning faster?",
) -> Figure:
    """Left the success of some methods after each update with bands, right what every method gains over a baseline.

    Args:
        curves: method to (mean, half-width of the interval, NaN if unknown) at each of ``updates``; at most eight.
        gains: method to (mean, half-width) of what it gains; sorted here.
        updates: updates done at each point of a curve.
        baseline: what the gains are over.
        title: of the figure.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: no curves, too many to tell apart, no gains, or a curve of another length.
    """
    where = "plot_learning"
    if not 1 <= len(curves) <= len(COLOURS) or not gains:
        raise ValueError(
            f"{where}: curves must name 1 to {len(COLOURS)} methods and gains at least one, got {len(curves)} and "
            f"{len(gains)}; choose the most telling ones"
        )
    for name, curve in curves.items():
        if len(curve) != len(updates):
            raise ValueError(
                f"{where}: curves must have one point per update ({len(updates)}), got {len(curve)} for {name!r}; "
                "build both from one run"
            )
    figure = new_figure(where, 13, max(4.6, 0.34 * len(gains) + 1.6))
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1))
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
        means = [mean for mean, _ in curve]
        halves = [0.0 if math.isnan(half) else half for _, half in curve]
        left.plot(updates, means, color=colour, lw=1.8, label=label(name))
        low, high = ([mean + sign * half for mean, half in zip(means, halves, strict=True)] for sign in (-1, 1))
        left.fill_between(updates, low, high, color=colour, alpha=0.13, lw=0)
    left.grid(color="0.92")
    low, high = left.get_ylim()
    left.set_ylim(max(low, -0.02), min(high, 1.02))  # an interval over few seeds leaves what a chance can be
    title_left = "learning; bands: 95% intervals over seeds, unpaired"
    left.set(xlabel="updates", ylabel="chance of success, mean over processes", title=title_left)
    left.legend(loc="lower right", framealpha=0.95)
    order = sorted(gains, key=lambda name: gains[name][0])
    for row, name in enumerate(order):
        mean, half = gains[name]
        half = 0.0 if math.isnan(half) else half
        tone = NEUTRAL if abs(mean) <= half else INK
        right.errorbar([mean], [row], xerr=[half], fmt="o", ms=5, lw=1.4, color=tone)
    right.axvline(0, color=INK, lw=1, ls="--")
    right.set_axisbelow(True)
    right.grid(axis="x", color="0.92")
    right.set_yticks(range(len(order)), [label(name, 44) for name in order])
    right.set(
        xlabel=f"mean success over the updates, minus {label(baseline)}", title="paired, 95% intervals over seeds"
    )
    figure.suptitle(label(title, 120), fontsize=14)
    return figure
