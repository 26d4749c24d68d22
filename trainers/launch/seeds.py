"""One run after another, with a seed each: where they write, and what they come to together."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...credit.lab.fidelity import confidence_interval
from ..config import GRPOConfig
from ..loggers import read_metrics
from .panel import summary


def of_seed(config: GRPOConfig, seed: int) -> GRPOConfig:
    """The run's configuration with that seed, in a folder of its own below the run's."""
    folder = str(Path(config.output_dir) / f"seed_{seed}")
    return GRPOConfig(**{**config.to_dict(), "seed": seed, "output_dir": folder})


def report_seeds(config: GRPOConfig, seeds: Sequence[int], say: Callable[[str], None]) -> dict[str, Any]:
    """Say a line a seed and the mean of success and reward with its 95% interval; ``seeds.json`` holds the same.

    Args:
        config: of the runs, whose folder holds theirs.
        seeds: of the finished runs.
        say: called with every line.

    Returns:
        ``seeds``, and for ``success`` and ``reward`` the values ``before`` and ``after`` with ``mean`` and
        ``half_width`` (Student's t over seeds, None for one seed), and so of the ``gain``.
    """
    folder = Path(config.output_dir)
    found = [summary(read_metrics(folder / f"seed_{seed}" / "metrics.jsonl")) for seed in seeds]
    result: dict[str, Any] = {"seeds": list(seeds), "credit": config.credit}
    for name in ("success", "reward"):
        after = [run["after"][name] for run in found]
        before = [run["before"].get(name, math.nan) for run in found]
        gain = [late - early for late, early in zip(after, before, strict=True)]
        result[name] = {"before": _mean(before), "after": _mean(after), "gain": _mean(gain)}
    for seed, run in zip(seeds, found, strict=True):
        early = run["before"].get("success", math.nan)
        say(f"seed {seed}: success {early:.3f} before, {run['after']['success']:.3f} after {run['updates']} updates")
    for name in ("success", "reward") if result["reward"] != result["success"] else ("success",):
        parts = {part: _said(result[name][part], "+" if part == "gain" else "") for part in ("before", "after", "gain")}
        say(
            f"{name} over {len(seeds)} seeds: {parts['before']} before, {parts['after']} after, "
            f"gain {parts['gain']} (mean ± 95% interval)"
        )
    (folder / "seeds.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    say(f"of all seeds: {folder / 'seeds.json'}")
    return result


def _mean(values: Sequence[float]) -> dict[str, Any]:
    mean, half = confidence_interval(values)
    return {"values": list(values), "mean": mean, "half_width": None if math.isnan(half) else half}


def _said(found: dict[str, Any], sign: str) -> str:
    half = "" if found["half_width"] is None else f" ±{found['half_width']:.3f}"
    return f"{found['mean']:{sign}.3f}{half}"
