"""A picture of several curves a label: the mean and its 95% band over seeds, single runs thin behind it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..fidelity import confidence_interval
from ._frame import COLOURS, label, new_figure, set_heading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = Sequence[tuple[float, float]]
"""(x, y) of each point, in rising x where nothing else is said."""

_STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 3)))  # told apart in grey


def plot_curves(
    curves: Mapping[str, Sequence[Curve]], *, xlabel: str, ylabel: str, title: str = "", reading: str = ""
) -> Figure:
    """The mean of each label's runs with its 95% band (Student's t, unpaired), and every run as a thin line.

    Mean and band stand where all runs of the label have been: a longer run goes on alone. Between its points a run is
    a straight line, so that runs with points at different x can be averaged. A label with one run has no band.

    Args:
        curves: label to its runs, one per seed; at most eight labels.
        xlabel: what x is, with its unit.
        ylabel: what y is, with its unit.
        title: of the figure.
        reading: a further sentence under the title.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: no labels, too many to tell apart, a label or run without points, or runs of a
            label that share no x.
    """
    where = "plot_curves"
    if not 1 <= len(curves) <= len(COLOURS):
        raise ValueError(
            f"{where}: curves must have 1 to {len(COLOURS)} labels, got {len(curves)}; choose the most telling ones"
        )
    runs = {name: [_points(where, name, run) for run in many] for name, many in curves.items()}
    if empty := [name for name, many in runs.items() if not many]:
        raise ValueError(f"{where}: curves must have a run for each label, got none for {empty}; leave the label out")
    for name, many in runs.items():
        ends, begins = min(run[-1][0] for run in many), max(run[0][0] for run in many)
        if ends < begins:
            raise ValueError(
                f"{where}: runs of {name!r} must meet, got one that ends at x = {ends:g} and one that begins at "
                f"{begins:g}; give them labels of their own"
            )
    figure = new_figure(where, 8, 4.8)
    from matplotlib.ticker import MaxNLocator

    axes = figure.subplots()
    for (name, many), colour, style in zip(runs.items(), COLOURS, _STYLES, strict=False):
        for run in many if len(many) > 1 else ():
            axes.plot(*zip(*run, strict=True), color=colour, lw=0.7, alpha=0.3, zorder=2)
        xs, means, halves = band(many)
        axes.plot(xs, means, color=colour, ls=style, lw=2, label=_legend(name, len(many)), zorder=3)
        low, high = ([mean + sign * half for mean, half in zip(means, halves, strict=True)] for sign in (-1, 1))
        if len(many) > 1:
            axes.fill_between(xs, low, high, color=colour, alpha=0.15, lw=0, zorder=1)
    cut = _limit(axes, runs)
    axes.set(xlabel=label(xlabel, 120), ylabel=label(ylabel, 120))
    if all(x == round(x) for many in runs.values() for run in many for x, _ in run):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=min(len(runs), 3), frameon=False, fontsize=9, handlelength=3.2)
    drawn = "thick: mean of the seeds, band: 95% interval (Student's t), thin: single runs"
    many = any(len(found) > 1 for found in runs.values())
    said = [drawn] * many + ["bands are cut at the frame"] * cut + [reading] * bool(reading)
    set_heading(figure, [label(title, 120), "; ".join(said)])
    return figure


def band(runs: Sequence[Curve]) -> tuple[list[float], list[float], list[float]]:
    """x, mean and half-width of the 95% interval at every x that a run has a point at, where all runs have been.

    The half-widths of a single run are NaN.

    Args:
        runs: points in rising x.

    >>> band([[(0, 0.0), (2, 1.0)], [(1, 0.5), (2, 1.0), (3, 1.0)]])
    ([1, 2], [0.5, 1.0], [0.0, 0.0])
    """
    first, last = max(run[0][0] for run in runs), min(run[-1][0] for run in runs)
    xs = sorted({x for run in runs for x, _ in run if first <= x <= last})
    found = [confidence_interval([_at(run, x) for run in runs]) for x in xs]
    return xs, [mean for mean, _ in found], [half for _, half in found]


def _at(run: Curve, x: float) -> float:
    """The value of a run at an x between its first and last point."""
    place = bisect_left(run, x, key=lambda point: point[0])
    (after, high), (before, low) = run[place], run[max(place - 1, 0)]
    return high - (high - low) * (after - x) / (after - before) if after > before else high


def _points(where: str, name: str, run: Curve) -> list[tuple[float, float]]:
    found = sorted((x, y) for x, y in run if math.isfinite(x) and math.isfinite(y))
    if not found:
        raise ValueError(f"{where}: curves must have finite points in each run, got none in one of {name!r}; drop it")
    return found


def _legend(name: str, count: int) -> str:
    return f"{label(name, 40)} ({f'{count} seeds' if count > 1 else '1 run, no band'})"


def _limit(axes: Any, runs: Mapping[str, Sequence[Curve]]) -> bool:
    """Leave the curves room to be seen where few seeds make bands wide; whether that cuts a band."""
    values = [y for many in runs.values() for run in many for _, y in run]
    low, high = min(values), max(values)
    room = max(high - low, 0.05 * max(abs(low), abs(high)), 1e-9)
    bounds = (-0.02, 1.02) if low >= 0 and high <= 1 else (-math.inf, math.inf)
    before = axes.dataLim.y0, axes.dataLim.y1
    bottom = max(low - 0.3 * room, min(before[0], low - 0.05 * room), bounds[0])
    top = min(high + 0.3 * room, max(before[1], high + 0.05 * room), bounds[1])
    axes.set_ylim(bottom, top)
    return bool(before[0] < bottom or before[1] > top)
