"""One trajectory under several methods: a table of turns by method, coloured by the sign and size of the credit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ...checks import check_choice
from ...inputs import Credit, CreditInputs
from ._frame import (
    INK,
    check_credit,
    check_rows,
    decimal,
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
from ._group import offset_bar
from ._shades import Shades, without_credit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FAINT = 0.05


def plot_methods(
    credits: Mapping[str, Credit],
    inputs: CreditInputs,
    trajectory: int,
    *,
    scale: Literal["row", "shared"] = "row",
    labels: Sequence[str] | None = None,
    exact_advantages: Tensor | None = None,
    title: str | None = None,
) -> Figure:
    """A table of turns by method, coloured by the sign and size of the credit: blue above 0, orange below, white 0.

    The bar in a cell is the difference to the row's mean: what the method adds to one number for all turns. Where no
    turn has an advantage under any method the title says why.

    Args:
        credits: name to what a method returned, all on the same batch.
        inputs: the batch they were run on.
        trajectory: index of the trajectory.
        scale: ``"row"`` prints each row's credit over its mean size and colours it by the row's largest, so that rows
            compare in shape; ``"shared"`` prints the credit itself and has one scale for colours and bars of all rows,
            so that they compare in size.
        labels: M texts, one per row; the action, usually.
        exact_advantages: ``[M]`` float, drawn as the first row if known.
        title: of the figure.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: no credits, no such scale, the trajectory does not exist, or a shape does not fit the batch.
    """
    where = "plot_methods"
    if not credits:
        raise ValueError(f"{where}: credits must hold at least one result, got none; pass {{name: credit}}")
    check_choice(where, "scale", scale, ("row", "shared"))
    for credit in credits.values():
        check_credit(where, credit, inputs)
    check_rows(where, "labels", labels, inputs)
    check_rows(where, "exact_advantages", exact_advantages, inputs)
    rows = rows_of(where, inputs, trajectory)
    table = {name: turn_means(credit, inputs)[rows] for name, credit in credits.items()}
    nothing = without_credit(inputs, [trajectory], torch.stack(list(table.values())), "this trajectory")
    if exact_advantages is not None:
        table = {"exact advantage": exact_advantages[rows].double(), **table}
    turns = turn_labels(inputs, rows, labels)
    figure = new_figure(where, max(7.6, 3.8 + 0.62 * len(rows)), 1.2 + 0.4 * len(table) + slanted(turns))
    axes = figure.subplots()
    shades = _cells(axes, torch.stack(list(table.values())), scale == "shared")
    _frame(axes, list(table), turns)
    if exact_advantages is not None:
        axes.axhline(0.5, color=INK, lw=1.2)
    if not nothing:
        _scale(figure, axes, shades, scale == "shared")
    unit = "credit itself, one scale for all rows" if scale == "shared" else "credit over the row's mean size"
    reading = nothing or f"number: {unit}; bar: above (right) or below (left) the row's mean"
    set_heading(figure, [label(title or f"Trajectory {trajectory}", 90), outcome(inputs, trajectory), reading])
    return figure


def _cells(axes: Any, values: Tensor, shared: bool) -> Shades:
    """Fills, numbers and bars; returns the scale of the fills."""
    shown = values if shared else values / values.abs().mean(-1, keepdim=True).clamp(min=1e-12)
    tones = values if shared else values / values.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    offsets = shown - shown.mean(-1, keepdim=True)
    most = offsets.abs().amax().expand(len(values)) if shared else offsets.abs().amax(-1).clamp(min=_FAINT)
    shades = Shades.over(tones) if shared else Shades(1.0)
    axes.imshow(numbers(tones), cmap=shades.colours, vmin=-shades.limit, vmax=shades.limit, aspect="auto")
    for line, longest in enumerate(numbers(most)):
        cells = zip(numbers(shown[line]), numbers(tones[line]), numbers(offsets[line]), strict=True)
        for turn, (number, tone, offset) in enumerate(cells):
            ink = shades.ink(tone)
            axes.text(turn, line - 0.08, decimal(number), ha="center", va="center", fontsize=8, color=ink)
            offset_bar(axes, (turn, line + 0.28), (offset, longest), ink, 0.12)
    return shades


def _frame(axes: Any, names: Sequence[str], turns: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [label(name, 40) for name in names])
    axes.set_xticks(range(len(turns)), turns, rotation=40, ha="right", rotation_mode="anchor", fontsize=9)
    axes.set(xlim=(-0.5, len(turns) - 0.5), ylim=(len(names) - 0.5, -0.5))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xticks([x - 0.5 for x in range(1, len(turns))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(names))], minor=True)
    axes.grid(which="minor", color="white", lw=1.5)
    axes.tick_params(which="minor", length=0)


def _scale(figure: Any, axes: Any, shades: Shades, shared: bool) -> None:
    bar = figure.colorbar(shades.scale(), ax=axes, shrink=0.8, pad=0.02)
    if shared:
        bar.set_label("credit of the turn\n(mean advantage of its tokens)")
    else:
        bar.set_ticks([-1, 0, 1], labels=["the row's\nmost blame", "0", "the row's\nmost praise"], fontsize=8)
