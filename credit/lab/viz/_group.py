"""The parts of a group's picture: turns as cells, spans as frames, correspondences as arrows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...inputs import CreditInputs
from ._frame import INK, decimal, label
from ._shades import Shades


def span_frames(axes: Any, tracks: Sequence[Tensor], spans: Tensor) -> None:
    from matplotlib.patches import FancyBboxPatch

    for level, rows in enumerate(tracks):
        index = spans[rows].tolist()
        for span in sorted(set(index)):
            first, width = index.index(span), index.count(span)
            frame = FancyBboxPatch(
                (first - 0.47, level - 0.34), width - 0.06, 0.68, boxstyle="round,pad=0,rounding_size=0.08",
                facecolor="0.93", edgecolor="0.75", lw=0.8, zorder=0.5,
            )  # fmt: skip
            axes.add_patch(frame)


def cells(
    axes: Any, place: dict[int, tuple[int, int]], values: Tensor, offsets: Tensor, shades: Shades, labels: Any
) -> None:
    """A box a turn, filled by its credit; the bar in it is its offset from the trajectory's mean."""
    from matplotlib.patches import FancyBboxPatch

    most = float(offsets[list(place)].abs().max())
    for row, (turn, level) in place.items():
        value, offset = float(values[row]), float(offsets[row])
        box = FancyBboxPatch(
            (turn - 0.42, level - 0.28), 0.84, 0.56, boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=shades.fill(value), edgecolor="0.35", lw=0.6, zorder=3,
        )  # fmt: skip
        axes.add_patch(box)
        number, ink = decimal(value), shades.ink(value)
        text = number if labels is None else f"{_wrapped(labels[row])}\n{number}"
        axes.text(turn, level - 0.04, text, ha="center", va="center", fontsize=7.5, zorder=4, color=ink)
        offset_bar(axes, (turn, level + 0.2), (offset, most), ink)


def offset_bar(
    axes: Any, middle: tuple[float, float], offset: tuple[float, float], ink: str, thickness: float = 0.07
) -> None:
    """A bar to the right of a cell's middle where its credit is above the mean, to the left where it is below.

    Args:
        axes: where cells are one wide.
        middle: where the bar begins.
        offset: credit minus the mean, and the largest size that such a difference has.
        ink: its colour.
        thickness: in the axes' units.
    """
    from matplotlib.patches import Rectangle

    (x, y), (own, most) = middle, offset
    length = 0.38 * own / most if most > 1e-6 else 0.0
    if abs(length) > 0.01:
        axes.add_patch(Rectangle((x, y - thickness / 2), length, thickness, facecolor=ink, lw=0, zorder=4))
        axes.plot([x, x], [y - 0.8 * thickness, y + 0.8 * thickness], color=ink, lw=0.8, zorder=4)


def _wrapped(text: str, width: int = 13) -> str:
    """At most two short lines."""
    words, lines = text.split(), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    kept = [label(line, width) for line in lines[:2]]
    if len(lines) > 2:
        kept[1] = label(lines[1] + "…", width)
    return "\n".join(kept)


def links(axes: Any, inputs: CreditInputs, place: dict[int, tuple[int, int]]) -> None:
    sources = None if inputs.correspondence is None else inputs.correspondence.sources
    if sources is None:
        return
    from matplotlib.patches import FancyArrowPatch

    pairs = zip(sources.source.tolist(), sources.target.tolist(), sources.similarity.tolist(), strict=True)
    floor = sources.similarity_threshold
    for source, target, similarity in pairs:
        if source not in place or target not in place or abs(place[source][1] - place[target][1]) != 1:
            continue
        (x0, y0), (x1, y1) = place[source], place[target]
        strength = min(max((similarity - floor) / max(1 - floor, 1e-6), 0.0), 1.0)
        down = 0.28 if y1 > y0 else -0.28
        axes.add_patch(
            FancyArrowPatch(
                (x0, y0 + down), (x1, y1 - down), arrowstyle="->", mutation_scale=9, lw=0.5 + 1.3 * strength,
                alpha=0.25 + 0.6 * strength, color=INK, shrinkA=0, shrinkB=0,
            )
        )  # fmt: skip
