"""Where metrics go: JSON lines always, trackers when asked for."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..rollout.types import Trajectory
from .checkpoint import replace_text
from .trackers import RUNS, Tracker, open_tracker, read_runs

if TYPE_CHECKING:
    from .config import GRPOConfig

logger = logging.getLogger(__name__)


class MetricsLogger:
    """Appends one JSON object per update to ``metrics.jsonl`` and forwards it; its step only grows.

    A tracker that fails (no network, full disk) is dropped with a warning; it never stops a run.

    Args:
        folder: output folder.
        report_to: entries of `turncredit.trainers.trackers.Target`.
        config: logged once to the trackers.
        resume_step: on resume, lines of later updates are removed first; None starts a new file.
        runs: the trackers' runs that a checkpoint names, by tracker; gets those that are open now.
    """

    def __init__(
        self,
        folder: Path,
        report_to: Sequence[str],
        config: GRPOConfig,
        resume_step: int | None = None,
        runs: dict[str, dict[str, str]] | None = None,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "metrics.jsonl"
        kept = [] if resume_step is None else [line for line in read_metrics(self.path) if line["step"] <= resume_step]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        temporary.replace(self.path)
        self._last = kept[-1]["step"] if kept else -1
        self.kept = kept
        self._trackers: list[Tracker] = []
        runs = {} if runs is None else runs
        if resume_step is not None:
            runs |= {name: run for name, run in read_runs(folder).items() if name not in runs}
        for name in report_to:
            try:
                self._trackers.append(open_tracker(name, folder, config, resume_step, runs))
            except Exception as error:
                logger.warning("%s is not available and is left out: %s", name.partition(":")[0], error)
        if runs:
            replace_text(folder / RUNS, json.dumps(runs))

    def has(self, step: int) -> bool:
        """Whether the newest line is that update's."""
        return self._last == step

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of an update; what is no number is left out with a warning.

        Raises:
            ValueError: `step` is smaller than one logged before.
        """
        if step < self._last:
            raise ValueError(f"MetricsLogger.log: step must not go back, got {step} after {self._last}")
        self._last = step
        numbers = _numbers(metrics)
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}  # JSON has no nan
        try:
            append_line(self.path, (json.dumps({"step": step, **finite}) + "\n").encode())
        except OSError as error:
            logger.warning("metrics of update %d could not be written: %s", step, error)
        for tracker in list(self._trackers):
            try:
                tracker(step, numbers)
            except Exception as error:
                logger.warning("a tracker failed and is left out from now on: %s", error)
                self._trackers.remove(tracker)

    def close(self, failed: bool = False) -> None:
        """End the trackers' runs, so that a later run in this process begins its own; `failed`: by an error."""
        for tracker in self._trackers:
            try:
                if hasattr(tracker, "close"):
                    tracker.close(failed)
            except Exception as error:
                logger.warning("a tracker could not be closed: %s", error)
        self._trackers = []


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a ``metrics.jsonl``, one per step, in order; a torn or foreign line is left out.

    A full disk or a kill may have left half a line, a power cut zeros; the last line of a step counts.
    """
    if not path.exists():
        return []
    lines: dict[int, dict[str, Any]] = {}
    damaged = 0
    for text in path.read_bytes().split(b"\n"):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            lines[int(line["step"])] = line
        except (ValueError, TypeError, KeyError):
            damaged += 1
    if damaged:
        logger.warning("%d lines of %s are damaged and left out", damaged, path)
    return [lines[step] for step in sorted(lines)]


def append_line(path: Path, line: bytes) -> None:
    """Append a line or nothing; half a line that a kill left before it stays a line of its own.

    Raises:
        OSError: it could not be written whole; what was written of it is taken back.
    """
    with open(path, "a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            line = line if file.read(1) == b"\n" else b"\n" + line
        try:
            if file.write(line) < len(line):
                raise OSError("the disk is full")
        except OSError:
            file.truncate(size)
            raise


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    numbers = {}
    for name, value in metrics.items():
        try:
            numbers[name] = value if type(value) in (int, float) else float(value)
        except (TypeError, ValueError, RuntimeError):
            logger.warning("metric %s is no number but a %s and is left out", name, type(value).__name__)
    return numbers


def readable(
    trajectory: Trajectory, advantages: Sequence[float] | None = None, weights: Sequence[float] | None = None
) -> str:
    """A trajectory as text a person can read: every turn's observation, response, action, reward, validity and credit.

    Args:
        trajectory: any.
        advantages, weights: one per turn that was sampled, those behind the replayed ones; None leaves them out.
    """
    head = (
        f"task {trajectory.task_id} ({trajectory.task_type}), rollout {trajectory.rollout_index}: "
        f"reward {trajectory.reward:g}, success {trajectory.success:g}, ended by {trajectory.stop_reason.value}"
    )
    lines = [head + (f" [{trajectory.failure}]" if trajectory.failure else "")]
    for index, turn in enumerate(trajectory.turns):
        own = index - trajectory.replayed
        marks = "" if turn.valid else "  INVALID"
        marks += "  replayed" if own < 0 else ""
        marks += f"  advantage {advantages[own]:+.3f}" if advantages is not None and own >= 0 else ""
        marks += f"  weight {weights[own]:.3f}" if weights is not None and own >= 0 else ""
        lines.append(f"--- turn {index}{marks}  reward {turn.reward:g}")
        lines += [f"observation: {turn.observation}", f"response: {turn.response}", f"action: {turn.action}"]
    return "\n".join(lines) + "\n"
