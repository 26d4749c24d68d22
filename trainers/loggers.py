"""Where metrics go: JSON lines always, Weights & Biases and TensorBoard when asked for."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..rollout.types import Trajectory

if TYPE_CHECKING:
    from .config import GRPOConfig

logger = logging.getLogger(__name__)

TRACKERS = ("wandb", "tensorboard")

WANDB_ID = "wandb_run_id.txt"
"""File in the output folder: the Weights & Biases run that a continued run goes on with."""


class MetricsLogger:
    """Appends one JSON object per update to ``metrics.jsonl`` and forwards it; its step only grows.

    A tracker that fails (no network, full disk) is dropped with a warning; it never stops a run.

    Args:
        folder: output folder.
        report_to: ``"wandb"`` and/or ``"tensorboard"``.
        config: logged once to the trackers.
        resume_step: on resume, lines of later updates are removed first; None starts a new file.
    """

    def __init__(self, folder: Path, report_to: Sequence[str], config: GRPOConfig, resume_step: int | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "metrics.jsonl"
        kept = [] if resume_step is None else [line for line in read_metrics(self.path) if line["step"] <= resume_step]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        temporary.replace(self.path)
        self._last = kept[-1]["step"] if kept else -1
        self._trackers: list[Any] = []
        for name in report_to:
            try:
                tracker = _Wandb(folder, config, resume_step) if name == "wandb" else _TensorBoard(folder, resume_step)
                self._trackers.append(tracker)
            except Exception as error:
                logger.warning("%s is not available and is left out: %s", name, error)

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


def trackers(report_to: Any) -> tuple[str, ...]:
    """The trackers that ``report_to`` names: None and ``"none"`` are none, ``"all"`` those that are installed.

    Raises:
        TypeError: neither a name nor a sequence of names.
        ValueError: an unknown name, or ``"none"`` or ``"all"`` beside others.
    """
    names = [report_to] if isinstance(report_to, str) else list(report_to or ())
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f'GRPOConfig: report_to must be names of trackers, got {report_to!r}; write "wandb" or "none"')
    if names in ([], ["none"]):
        return ()
    if names == ["all"]:
        return tuple(name for name in TRACKERS if importlib.util.find_spec(name) is not None)
    if unknown := sorted(set(names) - set(TRACKERS)):
        raise ValueError(
            f'GRPOConfig: report_to must be "none", "all" or any of {TRACKERS}, got {unknown}; '
            "metrics.jsonl is always written and can be sent anywhere"
        )
    return tuple(dict.fromkeys(names))


class _Wandb:
    """A run of Weights & Biases. One that the user opened is used and left open; one of our own is continued on resume
    by the id in the output folder, and finished at the end."""

    def __init__(self, folder: Path, config: GRPOConfig, resume_step: int | None):
        import wandb

        self._own = getattr(wandb, "run", None) is None
        if not self._own:
            self._run: Any = wandb.run
            return
        file = folder / WANDB_ID
        known = file.read_text(encoding="utf-8").strip() if resume_step is not None and file.is_file() else ""
        name = known or os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:8]
        project = os.environ.get("WANDB_PROJECT", "turncredit")
        self._run = wandb.init(project=project, dir=str(folder), config=config.to_dict(), id=name, resume="allow")
        file.write_text(name + "\n", encoding="utf-8")

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, failed: bool) -> None:
        if self._own:
            self._run.finish(exit_code=int(failed))


class _TensorBoard:
    def __init__(self, folder: Path, resume_step: int | None):
        from torch.utils.tensorboard import SummaryWriter

        # events of updates that a resumed run makes again are hidden
        purge = None if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, failed: bool) -> None:
        self._writer.close()


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
