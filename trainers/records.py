"""What an update leaves behind: its rollouts when it fails, readable completions, numbers of all processes, times."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accelerate import Accelerator
from accelerate.utils import gather_object

from ..credit.metrics import join_metrics
from ..rollout.io import save_trajectories
from ..rollout.text import plain_text
from ..rollout.types import Trajectory
from .batch import usable
from .guard import unused
from .loggers import readable
from .metrics import TrajectorySummary, summarise

if TYPE_CHECKING:
    from .phase import PhaseResult

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def keep_rollouts(folder: Path, trajectories: Sequence[Trajectory], step: int, process: int) -> Iterator[None]:
    """A finished rollout is never lost: an error inside leaves the trajectories on disk."""
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):
            path = folder / f"failed-update-{step + 1:06d}-process-{process}.jsonl.gz"
            path = save_trajectories(trajectories, unused(path) if path.exists() else path)
            logger.error("update %d failed; its rollouts are in %s", step + 1, path)
        raise


def write_completions(
    folder: Path, trajectories: Sequence[Trajectory], step: int, result: PhaseResult | None = None
) -> None:
    """Write trajectories as readable text; a full disk costs this file only.

    Args:
        folder: the run's.
        trajectories: the first ones of this process, in order.
        step: updates done before.
        result: their credit, which then stands beside every turn; None where the update did not come so far.
    """
    if not trajectories:
        return
    path = folder / "completions" / f"step-{step + 1:06d}.txt"
    texts = [readable(t, *credit) for t, credit in zip(trajectories, _credit_of(trajectories, result), strict=True)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(plain_text("\n".join(texts)), encoding="utf-8")
    except OSError as error:
        logger.warning("completions of update %d could not be written: %s", step + 1, error)


def _credit_of(trajectories: Sequence[Trajectory], result: PhaseResult | None) -> Iterator[tuple[list[float], ...]]:
    """Of each trajectory the advantages of its turns, mean over tokens of what the loss reads, and their weights."""
    if result is None or result.credit is None:
        yield from ((),) * len(trajectories)
        return
    counts = result.rows.response_mask.sum(1).clamp(min=1)
    advantages = (result.rows.advantages.double().sum(1) / counts).tolist()
    weights, row = result.credit.turn_weights.double().tolist(), 0
    for trajectory in trajectories:
        size = len(trajectory.turns) - trajectory.replayed if usable([trajectory]) else 0
        yield (advantages[row : row + size], weights[row : row + size]) if size else ()
        row += size


def gather_summaries(accelerator: Accelerator, trajectories: Sequence[Trajectory]) -> list[TrajectorySummary]:
    """Every process's trajectories as far as the metrics read them; collective."""
    own = [summarise(trajectory) for trajectory in trajectories]
    return own if accelerator.num_processes == 1 else gather_object(own)


def mean_over_processes(accelerator: Accelerator, metrics: Mapping[str, float], weight: int) -> dict[str, float]:
    """Metrics of all processes from those of each, however the tasks are spread; collective.

    Args:
        accelerator: the processes.
        metrics: of this process, joined by what each says it was taken over.
        weight: trajectories of this process, the weight of metrics that do not say.
    """
    own = [(weight, dict(metrics))]
    everyone = own if accelerator.num_processes == 1 else gather_object(own)
    return join_metrics([values for _, values in everyone], [weight for weight, _ in everyone])


class Clock:
    """Seconds since it was made, and since the last lap."""

    def __init__(self) -> None:
        self.start = self.last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.perf_counter()
        elapsed, self.last = now - self.last, now
        return elapsed

    def total(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start
