"""Curves of several runs and seeds, read from their ``metrics.jsonl``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...credit.checks import check_choice, suggest
from ...credit.lab.viz import plot_curves
from ..loggers import read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PathLike = str | os.PathLike[str]
Runs = PathLike | Sequence[PathLike] | Mapping[str, PathLike | Sequence[PathLike]]

_SEED = re.compile(r"(?:^|[-_. ])(?:seed[-_=]?|s)\d+$|^\d+$")
_FILE = "metrics.jsonl"


def plot_runs(
    runs: Runs,
    key: str = "rollout/success",
    *,
    axis: Literal["updates", "environment steps", "hours"] = "updates",
    title: str = "",
) -> Figure:
    """A metric of several runs: per label the mean and the 95% band over its seeds, single runs thin behind it.

    Args:
        runs: folders of runs, files ``metrics.jsonl``, or folders of run folders; or label to any of these. Without
            labels a run's is the name of its folder without ``_seed3``, ``-s3`` or the like, or the folder above where
            nothing else is left (``grpo/seed_3``).
        key: name of the metric, as in ``metrics.jsonl``.
        axis: what lies along x. ``"environment steps"``: turns of the training rollouts so far, without failed ones;
            ``"hours"``: of the updates so far, without evaluations and checkpoints.
        title: of the figure; the key if left out.

    Returns:
        A matplotlib Figure that a notebook shows and ``.savefig`` saves.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        FileNotFoundError: no metrics there.
        ValueError: no runs, one given twice, no such axis, or a run without the metric or without what the axis needs.
    """
    where = "plot_runs"
    check_choice(where, "axis", axis, tuple(_AXES))
    found = _labelled(where, runs)
    curves = {name: [_curve(where, file, key, axis) for file in files] for name, files in found.items()}
    return plot_curves(curves, xlabel=_AXES[axis], ylabel=key, title=title or f"{key} over {axis}")


_AXES = {
    "updates": "updates",
    "environment steps": "environment steps (turns of the training rollouts)",
    "hours": "hours (updates, without evaluations)",
}


def _labelled(where: str, runs: Runs) -> dict[str, list[Path]]:
    """Label to its files, in the order given."""
    given = runs.items() if isinstance(runs, Mapping) else [("", runs)]
    found: dict[str, list[Path]] = {}
    known: set[Path] = set()
    for name, paths in given:
        for file in (file for path in _listed(paths) for file in _files(where, path)):
            if file.resolve() in known:
                raise ValueError(f"{where}: runs must name each run once, got {file} twice; a run is one seed")
            known.add(file.resolve())
            found.setdefault(name or _label(file.resolve().parent), []).append(file)
    if not found:
        raise ValueError(f"{where}: runs must name at least one run, got none; give the output folder of one")
    return found


def _listed(paths: PathLike | Iterable[PathLike]) -> list[PathLike]:
    return [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)


def _files(where: str, path: PathLike) -> list[Path]:
    """The metrics of a run, or of the runs that lie in a folder."""
    path = Path(path)
    if path.is_file():
        return [path]
    found = [path / _FILE] if (path / _FILE).is_file() else sorted(path.glob(f"*/{_FILE}"))
    if not found:
        raise FileNotFoundError(
            f"{where}: runs must hold {_FILE}, got {path}, which has none, nor has a folder in it; give the "
            "output_dir of a run"
        )
    return found


def _label(folder: Path) -> str:
    return _SEED.sub("", folder.name) or folder.parent.name


def _curve(where: str, file: Path, key: str, axis: str) -> list[tuple[float, float]]:
    """(x, value) at each line that has the metric."""
    log = read_metrics(file)
    xs = _along(where, file, log, axis)
    points = [(x, float(line[key])) for x, line in zip(xs, log, strict=True) if line.get(key) is not None]
    if not points:
        names = sorted({name for line in log for name, value in line.items() if value is not None} - {"step"})
        raise ValueError(
            f"{where}: key must be a metric of every run, got {key!r}, which {file} lacks; "
            + suggest(key, names, f"it has {', '.join(names) or 'no metrics'}")
        )
    return points


def _along(where: str, file: Path, log: Sequence[Mapping[str, Any]], axis: str) -> list[float]:
    """The x of each line: the update, or what all updates up to it have added up to."""
    if axis == "updates":
        return [float(line["step"]) for line in log]
    needed = ("time/total_seconds",) if axis == "hours" else ("rollout/episodes", "rollout/failed", "rollout/turns")
    made = [line for line in log if line["step"] > 0]
    for name in needed:
        if made and not any(line.get(name) is not None for line in made):
            raise ValueError(f"{where}: axis {axis!r} must find {name} in every run, got none in {file}; use updates")
    return list(accumulate(_added(line, axis) for line in log))


def _added(line: Mapping[str, Any], axis: str) -> float:
    """What an update adds; 0 for the evaluation before the first, and where every episode failed."""
    if axis == "hours":
        return (line.get("time/total_seconds") or 0.0) / 3600
    episodes = (line.get("rollout/episodes") or 0.0) - (line.get("rollout/failed") or 0.0)
    return episodes * (line.get("rollout/turns") or 0.0)
