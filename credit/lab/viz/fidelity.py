"""A picture of a fidelity table: methods by condition with intervals, and by process as a map."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ._frame import INK, diverging, label, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#7A5195")


def plot_fidelity(
    by_teacher: Mapping[str, Mapping[str, tuple[float, float]]],
    by_process: Mapping[str, Mapping[str, float]],
    *,
    measure: str = "pairs of turns in the right order",
    chance: float = 0.5,
    title: str = "How often does the credit order two turns as their exact advantages do?",
) -> Figure:
    """Methods from best (top) to worst: left a dot with its interval per teacher, right a map over processes.

    Args:
        by_teacher: method to teacher to (mean, half-width of the interval, NaN if unknown).
        by_process: method to process to mean; the same methods.
        measure: name of what is measured, in [0, 1].
        chance: its value for credit that tells turns apart no better than none.
        title: of the figure.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: no methods, or the two tables name different ones.
    """
    where = "plot_fidelity"
    if not by_teacher or set(by_teacher) != set(by_process):
        raise ValueError(
            f"{where}: by_process must name the methods of by_teacher ({len(by_teacher)}, at least one), got "
            f"{len(by_process)}; build both from one run"
        )
    names = sorted(by_teacher, key=lambda name: sum(mean for mean, _ in by_teacher[name].values()))
    teachers, processes = list(by_teacher[names[0]]), list(by_process[names[0]])
    figure = new_figure(where, 15, 0.36 * len(names) + 2.2)
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    for index, teacher in enumerate(teachers):
        lift = 0.13 * ((len(teachers) - 1) / 2 - index)
        means, halves = zip(*(by_teacher[name][teacher] for name in names), strict=True)
        left.errorbar(
            means, [row + lift for row in range(len(names))], xerr=[0 if math.isnan(half) else half for half in halves],
            fmt="o", ms=4.5, lw=1, label=teacher, color=_COLOURS[index % len(_COLOURS)],
        )  # fmt: skip
    left.axvline(chance, color=INK, lw=1, ls="--")
    left.set_axisbelow(True)
    left.grid(axis="x", color="0.9")
    for row in range(0, len(names), 2):
        left.axhspan(row - 0.5, row + 0.5, color="0.965", zorder=0)
    left.set_yticks(range(len(names)), [label(name, 44) for name in names])
    left.set(ylim=(-0.5, len(names) - 0.5), title="by teacher, mean over processes", xlabel=measure)
    left.legend(loc="lower right", title="teacher", framealpha=0.95)
    grid = [[by_process[name][process] for process in processes] for name in names]
    reach = max(chance, 1 - chance)
    image = right.imshow(
        grid, cmap=diverging(), vmin=chance - reach, vmax=chance + reach, aspect="auto", origin="lower"
    )
    for row, line in enumerate(grid):
        for column, value in enumerate(line):
            tone = "white" if abs(value - chance) > 0.75 * reach else INK
            right.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=tone)
    right.set_yticks([])
    right.set(ylim=left.get_ylim(), title="by process, mean over teachers")
    right.set_xticks(
        range(len(processes)), [label(process.replace("_", " ")).replace(" ", "\n") for process in processes]
    )
    right.tick_params(axis="x", labelsize=8, length=0)
    figure.colorbar(image, ax=right, shrink=0.5, label=measure)
    figure.suptitle(label(title, 120), fontsize=14)
    return figure
