"""Pictures of credit: one trajectory, the siblings of a group, one trajectory under several methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...inputs import Credit, CreditInputs
from ._frame import (
    INK,
    LESS,
    MORE,
    NEUTRAL,
    check_credit,
    check_rows,
    decimal,
    diverging,
    label,
    new_figure,
    numbers,
    outcome,
    rows_of,
    turn_labels,
    turn_means,
)
from ._group import cells, links, span_frames

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_FAINT = 0.05


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

    Panels that the method gives no details for are left out. Spans are shaded, their borders dashed.

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
        panels.append(lambda axes: _bars(axes, known, "exact\nadvantage"))
    figure = new_figure(where, max(6.0, 1.6 + 0.62 * len(rows)), 1.2 + 1.9 * len(panels))
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, draw in zip(grid, panels, strict=True):
        draw(axes)
        _spans(axes, credit, rows)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.92")
        axes.set_axisbelow(True)
    grid[-1].set_xticks(range(len(rows)), turn_labels(inputs, rows, labels), rotation=40, ha="right", fontsize=9)
    grid[-1].set_xlim(-1.4 if "beliefs" in credit.details else -0.6, len(rows) - 0.4)
    figure.align_ylabels(list(grid))
    figure.suptitle(label(title or f"Trajectory {trajectory}", 90) + f"\n{outcome(inputs, trajectory)}", fontsize=11)
    return figure


def plot_group(
    credit: Credit,
    inputs: CreditInputs,
    group: int,
    *,
    labels: Sequence[str] | None = None,
    max_trajectories: int = 8,
    title: str | None = None,
) -> Figure:
    """The siblings of a group under each other, turns coloured by their credit against the trajectory's mean.

    Turns of one span stand in one frame. Arrows lead from a turn to the turn of a neighbouring sibling whose tokens its
    privileged context scores, darker for greater similarity; those between siblings further apart are left out.

    Args:
        credit: what a method returned.
        inputs: the batch it was run on; its correspondence is drawn if sources are selected.
        group: the group's id.
        labels: M texts, one per row; the action, usually.
        max_trajectories: at most so many siblings are drawn, in order.
        title: of the figure.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: no such group, or credit or labels do not belong to the batch.
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
    members = members[:max_trajectories]
    tracks = [rows_of(where, inputs, member) for member in members]
    place = {int(row): (turn, level) for level, rows in enumerate(tracks) for turn, row in enumerate(rows)}
    values = turn_means(credit, inputs)
    offsets = torch.zeros_like(values)
    for rows in tracks:
        offsets[rows] = values[rows] - values[rows].mean()
    limit = max(float(offsets.abs().max()), 0.02 * float(values.abs().max()), 1e-9)
    longest = max(len(rows) for rows in tracks)
    figure = new_figure(where, max(7.0, 2.2 + 1.0 * longest), 1.5 + 1.05 * len(members))
    axes = figure.subplots()
    image = cells(axes, place, values, offsets, limit, labels)
    links(axes, inputs, place)
    if "spans" in credit.details:
        span_frames(axes, tracks, credit.details["spans"])
    names = [f"trajectory {member}\nreturn {float(inputs.rewards[member]):g}" for member in members]
    axes.set(xlim=(-0.6, longest - 0.4), ylim=(len(members) - 0.4, -0.6), xlabel="turn")
    axes.set_yticks(range(len(members)), names)
    axes.set_xticks(range(longest), [str(turn + 1) for turn in range(longest)])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, shrink=0.7, label="credit of the turn minus the trajectory's mean")
    legend = ["number: credit of the turn"]
    if "spans" in credit.details:
        legend.append("frame: span")
    if inputs.correspondence is not None and inputs.correspondence.sources is not None:
        legend.append("arrow: from a source to the turn it scores, darker if more alike")
    figure.suptitle(label(title or f"Group {group}", 90) + f"\n{'; '.join(legend)}", fontsize=11)
    return figure


def plot_methods(
    credits: Mapping[str, Credit],
    inputs: CreditInputs,
    trajectory: int,
    *,
    labels: Sequence[str] | None = None,
    exact_advantages: Tensor | None = None,
    title: str | None = None,
) -> Figure:
    """One trajectory under several methods: the number is the turn's credit over the trajectory's mean size of credit.

    1 (in a lost episode -1) is an even split. Colour compares turns within a row, at the row's own scale: blue is
    credited more, or blamed less, than the row's mean; a row that differs by less than 0.05 stays pale.

    Args:
        credits: results by name, drawn from top to bottom.
        inputs: the batch they were run on.
        trajectory: index of the trajectory.
        labels: M texts, one per row; the action, usually.
        exact_advantages: ``[M]`` float, drawn as the first row if known.
        title: of the figure.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: no credits, the trajectory does not exist, or a shape does not fit the batch.
    """
    where = "plot_methods"
    if not credits:
        raise ValueError(f"{where}: credits must hold at least one result, got none; pass {{name: credit}}")
    for credit in credits.values():
        check_credit(where, credit, inputs)
    check_rows(where, "labels", labels, inputs)
    check_rows(where, "exact_advantages", exact_advantages, inputs)
    rows = rows_of(where, inputs, trajectory)
    table = {name: turn_means(credit, inputs)[rows] for name, credit in credits.items()}
    if exact_advantages is not None:
        table = {"exact advantage": exact_advantages[rows].double(), **table}
    figure = new_figure(where, max(7.0, 3.2 + 0.62 * len(rows)), 1.9 + 0.36 * len(table))
    axes = figure.subplots()
    relative = torch.stack([value / value.abs().mean().clamp(min=1e-12) for value in table.values()])
    # Colour shows what differs between turns: the deviation from the row's mean, each row at its own scale.
    deviation = relative - relative.mean(-1, keepdim=True)
    shade = deviation / deviation.abs().amax(-1, keepdim=True).clamp(min=_FAINT)
    axes.imshow(numbers(shade), cmap=diverging(), vmin=-1.1, vmax=1.1, aspect="auto")
    for line, (values, shades) in enumerate(zip(relative.tolist(), shade.tolist(), strict=True)):
        for turn, (value, tone) in enumerate(zip(values, shades, strict=True)):
            axes.text(
                turn, line, decimal(value), ha="center", va="center", fontsize=8,
                color="white" if abs(tone) > 0.8 else INK,
            )  # fmt: skip
    axes.set_yticks(range(len(table)), [label(name, 40) for name in table])
    axes.set_xticks(range(len(rows)), turn_labels(inputs, rows, labels), rotation=40, ha="right", fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xticks([x - 0.5 for x in range(1, len(rows))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(table))], minor=True)
    axes.grid(which="minor", color="white", lw=1.5)
    axes.tick_params(which="minor", length=0)
    if exact_advantages is not None:
        axes.axhline(0.5, color=INK, lw=1.2)
    figure.suptitle(
        label(title or f"Trajectory {trajectory}", 90)
        + f"\n{outcome(inputs, trajectory)}; credit over its mean size; blue above, orange below the row's mean",
        fontsize=11,
    )
    return figure


def _beliefs(axes: Any, credit: Credit, rows: Tensor) -> None:
    beliefs, prior = numbers(credit.details["beliefs"][rows]), 0.5
    if "prior" in credit.details:
        prior = float(credit.details["prior"][rows[0]])
    path = [prior, *beliefs]
    axes.axhspan(0.01, 0.99, color="0.97", zorder=0)
    for turn, (before, after) in enumerate(pairwise(path)):
        axes.bar(turn, after - before, bottom=before, width=0.62, color=MORE if after >= before else LESS, alpha=0.45)
    axes.plot(range(-1, len(beliefs)), path, color=INK, marker="o", ms=3.5, lw=1.4)
    axes.annotate("prior", (-1, prior), xytext=(0, 5), textcoords="offset points", fontsize=8, ha="center")
    axes.set(ylim=(-0.04, 1.06), ylabel="belief and\nrevision")


def _bars(axes: Any, values: list[float], name: str) -> None:
    axes.bar(range(len(values)), values, width=0.62, color=[MORE if value >= 0 else LESS for value in values])
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_ylabel(name)
    axes.margins(y=0.15)


def _weights(axes: Any, credit: Credit, inputs: CreditInputs, rows: Tensor) -> None:
    """Weights hang from 1, so that what departs from GRPO is what is seen."""
    weights = numbers(credit.turn_weights[rows])
    sign = float(torch.where(inputs.response_mask[rows], credit.advantages[rows], 0.0).sum())
    for turn, weight in enumerate(weights):
        # Blue is praise, or blame spared, as in the panels above and below.
        gain = (weight - 1) * (1 if sign >= 0 else -1)
        shade = MORE if gain > 0 else LESS if gain < 0 else NEUTRAL
        axes.bar(turn, weight - 1, bottom=1, width=0.62, color=shade)
        above = weight >= 1
        axes.annotate(
            f"{weight:.2f}", (turn, weight), xytext=(0, 3 if above else -3), textcoords="offset points",
            ha="center", va="bottom" if above else "top", fontsize=8,
        )  # fmt: skip
    axes.axhline(1, color=INK, lw=0.8)
    axes.set_ylabel("weight of\n" + ("the credit" if sign >= 0 else "the blame"))
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
