"""What the pictures share: turns of one trajectory in order, safe labels, colours."""

from __future__ import annotations

import functools
import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...inputs import Credit, CreditInputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MORE, LESS, NEUTRAL, INK = "#0072B2", "#D55E00", "#9AA0A6", "#2B2B2B"

COLOURS = (INK, "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195")
"""Of curves, in order."""


@functools.cache
def _shown_figure() -> type[Figure]:
    from matplotlib.figure import Figure as Base

    class ShownFigure(Base):
        """A figure that a notebook shows without pyplot, whose backend and global state stay untouched."""

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=110)
            return file.getvalue()

    return ShownFigure


def new_figure(where: str, width: float, height: float) -> Figure:
    """A figure of its own, in inches.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    try:
        return _shown_figure()(figsize=(width, height), layout="constrained")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{where}: matplotlib must be installed; pip install 'turncredit[viz]'") from None


def wrapped(figure: Figure, text: str, size: float) -> str:
    """Text in lines that fit into the figure's width; ``size`` in points."""
    return textwrap.fill(text, max(int(figure.get_figwidth() * 132 / size), 20))


def set_heading(figure: Figure, lines: Sequence[str]) -> None:
    """The title above everything; empty lines are left out, long ones are broken."""
    figure.suptitle("\n".join(wrapped(figure, line, 11) for line in lines if line), fontsize=11)


def decimal(value: float) -> str:
    """Two decimals with their sign, and none before zero."""
    return f"{round(value, 2):+.2f}" if round(value, 2) else "0.00"


def rows_of(where: str, inputs: CreditInputs, trajectory: int) -> Tensor:
    """``[K]`` int64 rows of one trajectory in turn order."""
    if not 0 <= trajectory < inputs.num_trajectories:
        raise ValueError(
            f"{where}: trajectory must lie in [0, {inputs.num_trajectories}), got {trajectory}; "
            "it is an index into group_ids"
        )
    rows = (inputs.trajectory_ids == trajectory).nonzero().flatten()
    return rows[inputs.turn_ids[rows].argsort()]


def check_credit(where: str, credit: Credit, inputs: CreditInputs) -> None:
    if credit.advantages.shape != inputs.response_mask.shape:
        raise ValueError(
            f"{where}: credit.advantages must have shape {list(inputs.response_mask.shape)}, got "
            f"{list(credit.advantages.shape)}; pass the batch the method was run on"
        )


def check_rows(where: str, name: str, value: Sequence[Any] | Tensor | None, inputs: CreditInputs) -> None:
    if value is not None and len(value) != inputs.num_rows:
        raise ValueError(
            f"{where}: {name} must have one entry per row of the batch ({inputs.num_rows}), got {len(value)}; "
            "give them in the order of the rows"
        )


def turn_means(credit: Credit, inputs: CreditInputs) -> Tensor:
    """``[M]`` float64, mean advantage of the sampled tokens of each turn."""
    inside = torch.where(inputs.response_mask, credit.advantages.double(), 0.0)
    return inside.sum(-1) / inputs.token_counts


def label(text: str, width: int = 28) -> str:
    """Text that matplotlib prints as it stands: no math mode, one line, shortened."""
    flat = " ".join(text.split())
    short = flat if len(flat) <= width else flat[: width - 1] + "…"
    return short.replace("$", r"\$")


def turn_labels(inputs: CreditInputs, rows: Tensor, labels: Sequence[str] | None, width: int = 28) -> list[str]:
    """``k: action`` for each turn, counted from 1."""
    turns = [int(inputs.turn_ids[row]) + 1 for row in rows]
    if labels is None:
        return [f"turn {turn}" for turn in turns]
    return [f"{turn}  {label(labels[row], width)}" for turn, row in zip(turns, map(int, rows), strict=True)]


def slanted(labels: Sequence[str]) -> float:
    """Inches that the longest of these needs below an axis, at 40 degrees and 9 points."""
    return 0.1 + 0.05 * max(map(len, labels))


def outcome(inputs: CreditInputs, trajectory: int) -> str:
    """Return and success of a trajectory, for titles."""
    return f"return {float(inputs.rewards[trajectory]):g}, success {float(inputs.successes[trajectory]):g}"


def numbers(values: Tensor) -> list[float]:
    return values.detach().double().cpu().tolist()
