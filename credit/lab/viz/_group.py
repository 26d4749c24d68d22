"""The parts of a group's picture: turns as cells, spans as frames, correspondences as arrows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...inputs import CreditInputs
from ._frame import INK, decimal, diverging, label


def span_frames(axes: Any, tracks: Sequence[Tensor], spans: Tensor) -> None:
    from matplotlib.patches import FancyBboxPatch

    for level, rows in enumerate(tracks):
        index = spans[rows].tolist()
        for span in sorted(set(index)):
            first, width = index.index(span), index.count(span)
            frame = FancyBboxPatch(
                (first - 0.47, level - 0.32), width - 0.06, 0.64, boxstyle="round,pad=0,rounding_size=0.08",
                facecolor="0.93", edgecolor="0.75", lw=0.8, zorder=0.5,
            )  # fmt: skip
            axes.add_patch(frame)


def cells(
    axes: Any, place: dict[int, tuple[int, int]], values: Tensor, offsets: Tensor, limit: float, labels: Any
) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import FancyBboxPatch

    shades = diverging()
    image = ScalarMappable(Normalize(-limit, limit), shades)
    for row, (turn, level) in place.items():
        value = float(values[row])
        box = FancyBboxPatch(
            (turn - 0.42, level - 0.26), 0.84, 0.52, boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=shades((float(offsets[row]) + limit) / (2 * limit)), edgecolor="0.35", lw=0.6, zorder=3,
        )  # fmt: skip
        axes.add_patch(box)
        number = decimal(value, "+")
        text = number if labels is None else f"{_wrapped(labels[row])}\n{number}"
        dark = abs(float(offsets[row])) > 0.7 * limit
        axes.text(turn, level, text, ha="center", va="center", fontsize=7, zorder=4, color="white" if dark else INK)
    return image


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
        down = 0.26 if y1 > y0 else -0.26
        axes.add_patch(
            FancyArrowPatch(
                (x0, y0 + down), (x1, y1 - down), arrowstyle="->", mutation_scale=9, lw=0.5 + 1.3 * strength,
                alpha=0.25 + 0.6 * strength, color=INK, shrinkA=0, shrinkB=0,
            )
        )  # fmt: skip
