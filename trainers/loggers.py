"""Where metrics go: JSON lines always, Weights & Biases and TensorBoard when asked for."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..rollout.types import Trajectory

logger = logging.getLogger(__name__)


class MetricsLogger:
    """Appends one JSON object per update to ``metrics.jsonl`` and forwards it; its step only grows.

    A tracker that fails (no network, full disk) is dropped with a warning; it never stops a run.

    Args:
        folder: output folder.
        report_to: ``"wandb"`` and/or ``"tensorboard"``.
        config: logged once to the trackers.
        resume_step: on resume, lines of later updates are removed first; None starts a new file.
    """

    def __init__(self, folder: Path, report_to: Sequence[str], config: Any, resume_step: int | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "metrics.jsonl"
        self._last = -1
        kept: list[str] = []
        if resume_step is not None and self.path.exists():
            lines = self.path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if json.loads(line)["step"] <= resume_step]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        temporary.replace(self.path)
        if kept:
            self._last = json.loads(kept[-1])["step"]
        self._trackers: list[Any] = []
        for name in report_to:
            try:
                self._trackers.append(_wandb(folder, config) if name == "wandb" else _tensorboard(folder))
            except Exception as error:
                logger.warning("%s is not available and is left out: %s", name, error)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of an update.

        Raises:
            ValueError: `step` is smaller than one logged before.
        """
        if step < self._last:
            raise ValueError(f"MetricsLogger.log: step must not go back, got {step} after {self._last}")
        self._last = step
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **_as_json(metrics)}) + "\n")
        except OSError as error:
            logger.warning("metrics of update %d could not be written: %s", step, error)
        for tracker in list(self._trackers):
            try:
                tracker(step, metrics)
            except Exception as error:
                logger.warning("a tracker failed and is left out from now on: %s", error)
                self._trackers.remove(tracker)


def _as_json(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no nan and no infinity: such a number is null."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def _wandb(folder: Path, config: Any):
    import wandb

    run = wandb.init(project="turncredit", dir=str(folder), config=asdict(config))
    return lambda step, metrics: run.log(dict(metrics), step=step)


def _tensorboard(folder: Path):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))

    def write(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return write


def readable(trajectory: Trajectory, advantages: Sequence[float] | None = None) -> str:
    """A trajectory as text a person can read: every turn's observation, response, validity and credit."""
    head = (
        f"task {trajectory.task_id} ({trajectory.task_type}), rollout {trajectory.rollout_index}: "
        f"reward {trajectory.reward:g}, success {trajectory.success:g}, ended by {trajectory.stop_reason.value}"
    )
    lines = [head + (f" [{trajectory.failure}]" if trajectory.failure else "")]
    for index, turn in enumerate(trajectory.turns):
        credit = f"  advantage {advantages[index]:+.3f}" if advantages is not None else ""
        lines.append(f"--- turn {index}{'' if turn.valid else '  INVALID'}{credit}")
        lines.append(f"observation: {turn.observation}")
        lines.append(f"response: {turn.response}")
    return "\n".join(lines) + "\n"
