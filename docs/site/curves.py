"""Learning curves of a method beside GRPO's, as SVG, from the runs in docs/lab/agents_*.jsonl."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 300, 190, 34, 26, 10
TITLES = {"alfworld": "ALFWorld", "webshop": "WebShop", "search_qa": "Search-QA"}


def learning_runs(docs: Path) -> dict[str, dict[str, list[list[float]]]]:
    """Training success by update of every run: environment, method as it was named, run by run."""
    found: dict[str, dict[str, list[list[float]]]] = {}
    for environment in TITLES:
        lines = (docs / "lab" / f"agents_{environment}.jsonl").read_text(encoding="utf-8").splitlines()
        for run in map(json.loads, lines):
            if "success" in run:
                found.setdefault(environment, {}).setdefault(run["method"], []).append(run["success"])
    return found


def curves(runs: dict[str, dict[str, list[list[float]]]], name: str, baseline: str = "grpo") -> str:
    """A figure for every environment that the method was trained on; empty where it was on none.

    Args:
        runs: what `learning_runs` found.
        name: the method.
        baseline: the method drawn in grey beside it.
    """
    figures = []
    for environment, methods in runs.items():
        if name in methods:
            lines = [(baseline, methods[baseline], "#9e9e9e"), (name, methods[name], "#3f51b5")]
            figures.append(_figure(TITLES[environment], lines if name != baseline else lines[1:]))
    return "<p>" + "\n".join(figures) + "</p>" if figures else ""


def _figure(title: str, lines: list[tuple[str, list[list[float]], str]]) -> str:
    means = [[mean(values) for values in zip(*seeds, strict=True)] for _, seeds, _ in lines]
    top = max(max(values) for values in means) * 1.05
    parts = [_text(WIDTH / 2 + LEFT / 2, HEIGHT - 4, "update", "middle"), _text(LEFT + 6, TOP + 8, title)]
    for share in (0.0, 0.5, 1.0):
        height = _y(share * top, top)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{height:.1f}" y2="{height:.1f}" stroke="#8884"/>')
        parts.append(_text(LEFT - 4, height + 4, f"{share * top:.2f}", "end"))
    for place, (values, (label, seeds, colour)) in enumerate(zip(means, lines, strict=True)):
        points = " ".join(
            f"{LEFT + (WIDTH - LEFT) * step / (len(values) - 1):.1f},{_y(value, top):.1f}"
            for step, value in enumerate(values)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(WIDTH - 4, HEIGHT - BOTTOM - 8 - 14 * place, f"{label}, {len(seeds)} seeds", "end", colour))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{title}: training success by update">{"".join(parts)}</svg>'
    )


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / top


def _text(x: float, y: float, words: str, anchor: str = "start", colour: str = "currentColor") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="11" text-anchor="{anchor}" fill="{colour}">{words}</text>'
