"""What a panel of training runs says: a table with paired intervals over seeds, and curves with bands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...credit.lab.fidelity import confidence_interval, paired_interval

Record = Mapping[str, Any]
Runs = Mapping[str, Mapping[int, Record]]
"""Method -> seed -> its record."""


def by_method(records: Iterable[Record], environment: str) -> dict[str, dict[int, Record]]:
    """The runs of one environment, methods in the order of their first record.

    Raises:
        ValueError: runs differ in the flags of the script, or a label stands for two methods: no table compares these.
    """
    found: dict[str, dict[int, Record]] = {}
    settings: dict[tuple[str, ...], Any] = {}
    for record in records:
        if record["environment"] != environment:
            continue
        method = "method", record["method"]
        for name, own in {("flags",): record["flags"], method: [record["credit"], *record["options"]]}.items():
            if settings.setdefault(name, own) != own:
                raise ValueError(
                    f"by_method: records must agree in {' '.join(name)}, got {' '.join(settings[name])!r} and "
                    f"{' '.join(own)!r}; take another label, or keep them in another file"
                )
        found.setdefault(record["method"], {})[record["seed"]] = record
    return found


def area(record: Record, curve: str = "success") -> float:
    """Area under a training curve: its mean over the updates."""
    return sum(record[curve]) / len(record[curve])


def panel_table(runs: Runs, baseline: str = "grpo", curve: str = "success") -> list[str]:
    """Lines of a Markdown table: each method, and its difference to the baseline on the seeds both have.

    Args:
        runs: see `by_method`.
        baseline: the method that the others are compared with.
        curve: ``"success"`` or ``"reward"``.

    Raises:
        ValueError: the baseline was not run.
    """
    if baseline not in runs:
        raise ValueError(f"panel_table: baseline must be among {', '.join(runs)}, got {baseline!r}; run it too")
    measures = {"training area": lambda record: area(record, curve), "held-out": lambda record: record["after"][curve]}
    head = ["method", "seeds", *(text for name in measures for text in (name, f"minus {baseline}")), "invalid turns"]
    lines = [_row(head), _row(["---", *["---:"] * (len(head) - 1)])]
    for method, seeds in runs.items():
        shared = sorted(seeds.keys() & runs[baseline].keys())
        cells = [method, str(len(seeds))]
        for measure in measures.values():
            own = [measure(record) for _, record in sorted(seeds.items())]
            cells.append(_interval(*confidence_interval(own)))
            pairs = [(measure(seeds[seed]), measure(runs[baseline][seed])) for seed in shared]
            cells.append("" if method == baseline or not pairs else _difference(pairs))
        cells.append(f"{sum(record['after']['invalid_turns'] for record in seeds.values()) / len(seeds):.2f}")
        lines.append(_row(cells))
    return lines


def plot_panel(
    runs: Runs, path: Path, title: str, baseline: str = "grpo", curve: str = "success", columns: int = 4
) -> bool:
    """One small plot a method: its mean curve with the 95% band over seeds, the baseline's in grey behind it.

    Both are over the seeds that both have, if there are any.

    Returns:
        False where matplotlib is missing.

    Raises:
        ValueError: the baseline was not run.
    """
    if baseline not in runs:
        raise ValueError(f"plot_panel: baseline must be among {', '.join(runs)}, got {baseline!r}; run it too")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    shown = [method for method in runs if method != baseline] or [baseline]
    rows = math.ceil(len(shown) / columns)
    width = min(len(shown), columns)
    figure = Figure(figsize=(max(3.1 * width, 5), 2.5 * rows + 0.9), layout="constrained")
    axes = figure.subplots(rows, width, sharex=True, sharey=True, squeeze=False).flatten()
    for place, method in zip(axes, shown, strict=False):
        shared = sorted(runs[method].keys() & runs[baseline].keys())
        for name, colour in ((baseline, "#8a94a0"), (method, "#0072B2")):
            records = [runs[name][seed] for seed in shared or sorted(runs[name])]
            _band(place, records, curve, colour, name)
        place.set_title(method.replace("$", r"\$"), fontsize=10)
        place.grid(alpha=0.3)
    for place in axes[len(shown) :]:
        place.set_axis_off()
    low, high = axes[0].get_ylim()
    if curve == "success":
        axes[0].set_ylim(max(low, -0.02), min(high, 1.02))  # an interval over few seeds leaves what a share can be
    figure.supxlabel("update")
    figure.supylabel(f"{curve} of the training rollouts")
    counts = sorted({len(seeds) for seeds in runs.values()})
    number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    figure.suptitle(
        f"{title}: blue the method, grey {baseline}\nmean of {number} seeds, bands: 95% interval at each update, "
        "unpaired",
        fontsize=10,
    )
    figure.savefig(path, dpi=110)
    return True


def _band(axes: Any, records: Sequence[Record], curve: str, colour: str, label: str) -> None:
    length = min(len(record[curve]) for record in records)
    points = [confidence_interval([record[curve][step] for record in records]) for step in range(length)]
    steps = range(1, length + 1)
    means = [mean for mean, _ in points]
    halves = [0.0 if math.isnan(half) else half for _, half in points]
    axes.plot(steps, means, "o" if length == 1 else "-", color=colour, lw=1.6, label=label)
    low = [mean - half for mean, half in zip(means, halves, strict=True)]
    high = [mean + half for mean, half in zip(means, halves, strict=True)]
    axes.fill_between(steps, low, high, color=colour, alpha=0.18, lw=0)


def _difference(pairs: Sequence[tuple[float, float]]) -> str:
    mean, half = paired_interval([own for own, _ in pairs], [other for _, other in pairs])
    mark = "" if math.isnan(half) or abs(mean) <= half else "*" if mean > 0 else "!"
    return _interval(mean, half, "+") + mark


def _interval(mean: float, half: float, sign: str = "") -> str:
    return f"{mean:{sign}.3f}" + ("" if math.isnan(half) else f" ±{half:.3f}")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
