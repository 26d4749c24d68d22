"""Pictures of credit: one trajectory, and the siblings of a group. Blue is above 0, orange below, everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...inputs import Credit, CreditInputs
from ._frame import (
    INK,
    LESS,
    MORE,
    check_credit,
    check_rows,
    label,
    new_figure,
    numbers,
    outcome,
    rows_of,
    set_heading,
    slanted,
    turn_labels,
    turn_means,
)
from ._group import cells, links, span_frames
from ._shades import Shades, signed_colour, without_credit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_trajectory_credit(
    credit: Credit,
    inputs: CreditInputs,
    trajectory: int,
    *,
    labels: Sequence[str] | None = None,
    exact_advantages: Tensor | None = None,
    title: str | None = None,
) -> Figure:
    """One trajectory, turn by turn: the teacher's belief and its revisions, or its gaps, above the weights.

    A turn that is praised (credit above 0) is blue and one that is blamed orange, hatched for a reader in grey. Panels
    that the method gives no details for are left out. Spans are shaded, their borders dashed. The title says so where
    no turn has an advantage.

    Args:
        credit: what a method returned.
        inputs: the batch it was run on.
        trajectory: index of the trajectory.
        labels: M texts, one per row: the action, usually; printed as they stand.
        exact_advantages: ``[M]`` float, drawn below if known.
        title: of the figure.

    Returns:
        A matplotlib Figure that a notebook shows and ``.savefig`` saves.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: the trajectory does not exist, or credit or labels do not belong to the batch.
    """
    where = "plot_trajectory_credit"
    check_credit(where, credit, inputs)
    check_rows(where, "labels", labels, inputs)
    check_rows(where, "exact_advantages", exact_advantages, inputs)
    rows = rows_of(where, inputs, trajectory)
    panels: list[Any] = []
    if "beliefs" in credit.details:
        panels.append(lambda axes: _beliefs(axes, credit, rows))
    elif "turn_gaps" in credit.details:
        panels.append(lambda axes: _bars(axes, numbers(credit.details["turn_gaps"][rows]), "mean gap\n(nats a token)"))
    panels.append(lambda axes: _weights(axes, credit, inputs, rows))
    if exact_advantages is not None:
        known = numbers(exact_advantages[rows])
        panels.append(lambda axes: _bars(axes, known, "exact advantage\n(of the return)"))
    turns = turn_labels(inputs, rows, labels)
    figure = new_figure(where, max(6.0, 1.6 + 0.62 * len(rows)), 0.8 + 1.8 * len(panels) + slanted(turns))
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, draw in zip(grid, panels, strict=True):
        draw(axes)
        _spans(axes, credit, rows)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.92")
        axes.set_axisbelow(True)
    grid[-1].set_xticks(range(len(rows)), turns, rotation=40, ha="right", rotation_mode="anchor", fontsize=9)
    grid[-1].set_xlim(-1.4 if "beliefs" in credit.details else -0.6, len(rows) - 0.4)
    figure.align_ylabels(list(grid))
    nothing = without_credit(inputs, [trajectory], turn_means(credit, inputs)[rows], "this trajectory")
    set_heading(figure, [label(title or f"Trajectory {trajectory}", 90), outcome(inputs, trajectory), nothing])
    _key(figure, "beliefs" in credit.details)
    return figure


_READING = "fill and number: credit of the turn; bar: above (right) or below (left) its trajectory's mean"


def plot_group(
    credit: Credit,
    inputs: CreditInputs,
    group: int,
    *,
    labels: Sequence[str] | None = None,
    max_trajectories: int = 8,
    title: str | None = None,
) -> Figure:
    """The siblings of a group under each other, turns coloured by the sign and size of their credit.

    Blue is credit above 0, orange below, white 0; one scale for the whole picture. The bar in a turn is the difference
    to the trajectory's mean: what the method adds to one number for all turns. Turns of one span stand in one frame.
    Arrows lead from a turn to the turn of a neighbouring sibling whose tokens its privileged context scores, darker for
    greater similarity; those between siblings further apart are left out. Where no turn has an advantage the title says
    why, and there is no scale.

    Args:
        credit: what a method returned.
        inputs: the batch it was run on; its correspondence is drawn if sources are selected.
        group: the group's id.
        labels: M texts, one per row; the action, usually.
        max_trajectories: at most so many siblings are drawn, in order; at least 1.
        title: of the figure.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: no such group, no trajectory to draw, or credit or labels do not belong to the batch.
    """
    where = "plot_group"
    check_credit(where, credit, inputs)
    check_rows(where, "labels", labels, inputs)
    members = (inputs.group_ids == group).nonzero().flatten().tolist()
    if not members:
        raise ValueError(
            f"{where}: group must be one of group_ids, got {group}; known are "
            f"{torch.unique(inputs.group_ids).tolist()[:8]}"
        )
    if max_trajectories < 1:
        raise ValueError(f"{where}: max_trajectories must be at least 1, got {max_trajectories}; leave it out for 8")
    members = members[:max_trajectories]
    tracks = [rows_of(where, inputs, member) for member in members]
    place = {int(row): (turn, level) for level, rows in enumerate(tracks) for turn, row in enumerate(rows)}
    values = turn_means(credit, inputs)
    offsets = torch.zeros_like(values)
    for rows in tracks:
        offsets[rows] = values[rows] - values[rows].mean()
    longest = max(len(rows) for rows in tracks)
    figure = new_figure(where, max(7.0, 2.2 + 1.0 * longest), 1.5 + 1.05 * len(members))
    axes = figure.subplots()
    shades = Shades.over(values[list(place)])
    cells(axes, place, values, offsets, shades, labels)
    links(axes, inputs, place)
    if "spans" in credit.details:
        span_frames(axes, tracks, credit.details["spans"])
    names = [f"trajectory {member}\nreturn {float(inputs.rewards[member]):g}" for member in members]
    axes.set(xlim=(-0.6, longest - 0.4), ylim=(len(members) - 0.4, -0.6), xlabel="turn")
    axes.set_yticks(range(len(members)), names)
    axes.set_xticks(range(longest), [str(turn + 1) for turn in range(longest)])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    nothing = without_credit(inputs, members, values[list(place)], "this group")
    if not nothing:
        name = "credit of the turn\n(mean advantage of its tokens)"
        figure.colorbar(shades.scale(), ax=axes, shrink=0.7, label=name)
    marks = ["frame: span"] if "spans" in credit.details else []
    if inputs.correspondence is not None and inputs.correspondence.sources is not None:
        marks.append("arrow: from a source to the turn it scores, darker if more alike")
    set_heading(figure, [label(title or f"Group {group}", 90), nothing or _READING, "; ".join(marks)])
    return figure


def _beliefs(axes: Any, credit: Credit, rows: Tensor) -> None:
    beliefs, prior = numbers(credit.details["beliefs"][rows]), 0.5
    if "prior" in credit.details:
        prior = float(credit.details["prior"][rows[0]])
    path = [prior, *beliefs]
    axes.axhspan(0.01, 0.99, color="0.97", zorder=0)
    for turn, (before, after) in enumerate(pairwise(path)):
        _bar(axes, turn, after - before, after - before, bottom=before, alpha=0.55)
    axes.plot(range(-1, len(beliefs)), path, color=INK, marker="o", ms=3.5, lw=1.4)
    axes.annotate("prior", (-1, prior), xytext=(0, 5), textcoords="offset points", fontsize=8, ha="center")
    axes.set(ylim=(-0.04, 1.06), ylabel="belief of success\nand revision")


def _bars(axes: Any, values: list[float], name: str) -> None:
    for turn, value in enumerate(values):
        _bar(axes, turn, value, value)
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_ylabel(name)
    axes.margins(y=0.15)


def _bar(axes: Any, turn: int, height: float, credit: float, **where: Any) -> None:
    """A bar in the colour of its credit; hatched where that is below 0."""
    hatch = "////" if credit < 0 else None
    axes.bar(turn, height, width=0.62, color=signed_colour(credit), hatch=hatch, edgecolor="white", lw=0, **where)


def _key(figure: Any, beliefs: bool) -> None:
    """What the colours of the bars mean, under the figure."""
    from matplotlib.patches import Patch

    names = ("praise, belief rises", "blame, belief falls") if beliefs else ("above 0: praise", "below 0: blame")
    marks = [
        Patch(facecolor=MORE, label=names[0]),
        Patch(facecolor=LESS, hatch="////", edgecolor="white", lw=0, label=names[1]),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=2, frameon=False, fontsize=9)


def _weights(axes: Any, credit: Credit, inputs: CreditInputs, rows: Tensor) -> None:
    """Weights hang from 1, so that what departs from GRPO is what is seen; the colour is that of the turn's credit."""
    weights, values = numbers(credit.turn_weights[rows]), numbers(turn_means(credit, inputs)[rows])
    sign = sum(values)
    for turn, (weight, value) in enumerate(zip(weights, values, strict=True)):
        _bar(axes, turn, weight - 1, value, bottom=1)
        above = weight >= 1
        axes.annotate(
            f"{weight:.2f}", (turn, weight), xytext=(0, 3 if above else -3), textcoords="offset points",
            ha="center", va="bottom" if above else "top", fontsize=8,
        )  # fmt: skip
    axes.axhline(1, color=INK, lw=0.8)
    axes.set_ylabel("weight (1: GRPO)\nof " + ("the praise" if sign > 0 else "the blame" if sign < 0 else "a turn"))
    room = max(0.02, max(abs(weight - 1) for weight in weights)) * 1.45
    axes.set_ylim(1 - room, 1 + room)


def _spans(axes: Any, credit: Credit, rows: Tensor) -> None:
    if "spans" not in credit.details:
        return
    spans = credit.details["spans"][rows].tolist()
    start = 0
    for turn in range(1, len(spans) + 1):
        if turn == len(spans) or spans[turn] != spans[start]:
            if spans[start] % 2:
                axes.axvspan(start - 0.5, turn - 0.5, color="0.5", alpha=0.10, lw=0, zorder=0)
            if turn < len(spans):
                axes.axvline(turn - 0.5, color="0.45", lw=1, ls="--", zorder=1)
            start = turn
