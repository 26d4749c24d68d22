"""A picture of a fidelity table: methods in named blocks by family, one panel for each condition, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._frame import INK, label, new_figure, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scores = Mapping[str, Mapping[str, tuple[float, float]]]
"""Method -> condition -> (mean, half-width of the interval)."""

_COLOURS = ("#7A7A7A", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#0072B2", "#7A5195", "#D55E00")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")  # families are told apart without colour too
_GAP = 0.35


def plot_fidelity(
    scores: Scores,
    *,
    families: Mapping[str, Sequence[str]] | None = None,
    measure: str = "pairs of turns in the right order (share)",
    chance: float = 0.5,
    title: str = "How often does the credit order two turns as their exact advantages do?",
    intervals: str = "95% interval",
    note: str = "",
) -> Figure:
    """A row per method, in blocks under their family's name, from best (top) to worst; a panel per condition.

    Args:
        scores: method to condition (a teacher, a process) to (mean, half-width of the interval, NaN if unknown).
        families: family to its methods, from top to bottom; a family's colour and mark are those of its place, so that
            one without methods keeps those of the others. None: one without a name.
        measure: name of what is measured, in [0, 1].
        chance: its value for credit that tells turns apart no better than none.
        title: of the figure.
        intervals: what the half-widths are; named in the legend.
        note: over what the means are; printed below.

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
    rows, headings = _rows(scores, families)
    conditions = list(next(iter(scores.values())))
    top = max(height for height, *_ in (*rows, *headings))
    figure = new_figure(where, 3.4 + 1.12 * len(conditions), 1.7 + 0.2 * (top + 1))
    panels = figure.subplots(1, len(conditions), sharex=True, sharey=True, squeeze=False)[0]
    for panel, condition in zip(panels, conditions, strict=True):
        for height, name, place in rows:
            _point(panel, scores[name][condition], height, place)
        panel.axvline(chance, color=INK, lw=0.9, ls="--", zorder=1)
        panel.set_axisbelow(True)
        panel.grid(axis="x", color="0.9")
        panel.grid(axis="x", which="minor", color="0.95")
        for height, _ in headings[1:]:
            panel.axhline(height + (1 + _GAP) / 2, color="0.75", lw=0.8)
        panel.set_title(label(condition.replace("_", " "), 16), fontsize=9)
        panel.set(xlim=(-0.06, 1.06), ylim=(-0.8, top + 0.8), xticks=(0, 0.5, 1))
        panel.set_xticks((0.25, 0.75), minor=True)
        panel.set_xticklabels(("0", "0.5", "1"))
        panel.tick_params(axis="x", labelsize=8)
        panel.tick_params(axis="y", length=0, labelsize=9)
    ticks = [(height, label(name, 40)) for height, name, _ in rows]
    ticks += [(height, label(family, 40)) for height, family in headings]
    panels[0].set_yticks(*map(list, zip(*ticks, strict=True)))
    for text in panels[0].get_yticklabels()[len(rows) :]:
        text.set(fontweight="bold", fontsize=9.5)
    _legend(figure, scores, label(title, 120), intervals)
    lines = [f"{label(measure, 120)}; dashed: {chance:g}, no better than none", label(note, 400)]
    figure.supxlabel("\n".join(wrapped(figure, line, 9) for line in lines if line), fontsize=9)
    return figure


def _point(panel: Any, score: tuple[float, float], height: float, place: int) -> None:
    """A mark in the family's colour, and over it a dark bar with end ticks, seen however short it is."""
    mean, half = score
    place %= len(_COLOURS)
    panel.plot([mean], [height], marker=_MARKERS[place], ms=5.5, color=_COLOURS[place], ls="none")
    if not math.isnan(half):
        panel.errorbar([mean], [height], xerr=[half], fmt="none", ecolor=INK, elinewidth=1, capsize=2.6, capthick=1)


def _rows(
    scores: Scores, families: Mapping[str, Sequence[str]]
) -> tuple[list[tuple[float, str, int]], list[tuple[float, str]]]:
    """(height, method, place of its family) of each row from top to bottom, and (height, family) of the headings."""
    named = [family for family, members in families.items() if members and family]
    height = sum(map(len, families.values())) - 1 + len(named) + _GAP * max(len(named) - 1, 0)
    rows, headings = [], []
    for place, (family, members) in enumerate(families.items()):
        if members and family:
            headings.append((height, family))
            height -= 1
        for name in sorted(members, key=lambda name: -sum(mean for mean, _ in scores[name].values())):
            rows.append((height, name, place))
            height -= 1
        if members:
            height -= _GAP
    return rows, headings


def _legend(figure: Figure, scores: Scores, title: str, intervals: str) -> None:
    """What a mark and what a bar is, under the title."""
    from matplotlib.lines import Line2D

    known = any(not math.isnan(half) for row in scores.values() for _, half in row.values())
    marks = [Line2D([], [], color="0.5", marker="o", ms=5.5, ls="none", label="mean (mark and colour: family)")]
    name = f"{label(intervals, 100)}; one tick: narrower than its mark" if known else "no intervals are known"
    marks.append(Line2D([], [], color=INK, marker="|", ms=6, lw=1 if known else 0, label=name))
    figure.legend(
        handles=marks, loc="outside upper center", ncols=2 if figure.get_figwidth() > 9 else 1, fontsize=9,
        title=wrapped(figure, title, 12), title_fontsize=12, frameon=False,
    )  # fmt: skip
