"""A picture of a fidelity table: methods in blocks by family, one panel for each condition, with intervals."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ._frame import INK, label, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#7A7A7A", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#0072B2", "#7A5195", "#D55E00")
_GAP = 0.7


def plot_fidelity(
    scores: Mapping[str, Mapping[str, tuple[float, float]]],
    *,
    families: Mapping[str, Sequence[str]] | None = None,
    measure: str = "pairs of turns in the right order",
    chance: float = 0.5,
    title: str = "How often does the credit order two turns as their exact advantages do?",
    note: str = "bars: 95% intervals",
) -> Figure:
    """A row per method, in blocks by family and from best (top) to worst within one; a panel per condition.

    Args:
        scores: method to condition (a teacher, a process) to (mean, half-width of the interval, NaN if unknown).
        families: family to its methods, from top to bottom; a family's colour is that of its place, so that one
            without methods keeps those of the others. None: one without a name.
        measure: name of what is measured, in [0, 1].
        chance: its value for credit that tells turns apart no better than none.
        title: of the figure.
        note: what the bars are, and over what; printed below.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: no methods, or the families do not hold each of them once.
    """
    where = "plot_fidelity"
    families = {"": list(scores)} if families is None else families
    held = [name for members in families.values() for name in members]
    if not scores or sorted(held) != sorted(scores):
        raise ValueError(
            f"{where}: families must hold each of the {len(scores)} methods (at least one) once, got {len(held)} "
            "names; build them from the keys of scores"
        )
    rows, borders = _rows(scores, families)
    conditions = list(next(iter(scores.values())))
    figure = new_figure(where, 3.4 + 1.12 * len(conditions), 1.6 + 0.21 * (rows[0][0] + 1))
    panels = figure.subplots(1, len(conditions), sharex=True, sharey=True, squeeze=False)[0]
    for panel, condition in zip(panels, conditions, strict=True):
        for height, name, colour in rows:
            mean, half = scores[name][condition]
            bar = 0 if math.isnan(half) else half
            panel.errorbar(mean, height, xerr=bar, fmt="o", ms=4, lw=1.4, color=colour)
        panel.axvline(chance, color=INK, lw=0.9, ls="--")
        panel.set_axisbelow(True)
        panel.grid(axis="x", color="0.9")
        for border in borders:
            panel.axhline(border, color="0.75", lw=0.8)
        panel.set_title(label(condition.replace("_", " "), 16), fontsize=9)
        panel.set(xlim=(-0.04, 1.04), ylim=(-_GAP, rows[0][0] + _GAP), xticks=(0, 0.5, 1))
        panel.set_xticks((0.25, 0.75), minor=True)
        panel.grid(axis="x", which="minor", color="0.95")
        panel.tick_params(axis="x", labelsize=8)
        panel.tick_params(axis="y", length=0, labelsize=9)
    panels[0].set_yticks([height for height, _, _ in rows], [label(name, 40) for _, name, _ in rows])
    for text, (_, _, colour) in zip(panels[0].get_yticklabels(), rows, strict=True):
        text.set_color(colour)
    _legend(figure, families, label(title, 120))
    below = textwrap.fill(label(note, 400), int(13 * figure.get_figwidth()))
    figure.supxlabel(f"{label(measure, 120)}; dashed: {chance:g}, no better than none\n{below}", fontsize=9)
    return figure


def _rows(
    scores: Mapping[str, Mapping[str, tuple[float, float]]], families: Mapping[str, Sequence[str]]
) -> tuple[list[tuple[float, str, str]], list[float]]:
    """(height, method, colour) of each row from top to bottom, and the heights of the lines between families."""
    filled = sum(bool(members) for members in families.values())
    height = sum(map(len, families.values())) - 1 + _GAP * (filled - 1)
    rows, borders = [], []
    for index, members in enumerate(families.values()):
        for name in sorted(members, key=lambda name: -sum(mean for mean, _ in scores[name].values())):
            rows.append((height, name, _COLOURS[index % len(_COLOURS)]))
            height -= 1
        if members:
            borders.append(height + (1 - _GAP) / 2)
            height -= _GAP
    return rows, borders[:-1]


def _legend(figure: Figure, families: Mapping[str, Sequence[str]], title: str) -> None:
    """One entry a family, in its colour, under the title."""
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], color=_COLOURS[index % len(_COLOURS)], marker="o", ms=4, label=label(family))
        for index, (family, members) in enumerate(families.items())
        if members and family
    ]
    if not marks:
        figure.suptitle(title, fontsize=12)
        return
    figure.legend(
        handles=marks, loc="outside upper center", ncols=len(marks), fontsize=9, title=title, title_fontsize=12,
        frameon=False,
    )  # fmt: skip
