"""The fixed panel: the same tasks and seeds at every evaluation, on however many processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from accelerate.utils import gather_object

from ..envs import Task
from ..rollout.types import Trajectory
from .life import together
from .metrics import rollout_metrics
from .records import gather_summaries

if TYPE_CHECKING:
    from .grpo import GRPOTrainer


def play_panel(trainer: GRPOTrainer, panel: Sequence[Task], privileged: bool) -> dict[str, float]:
    """Play every task of the panel once; its trajectories are then ``trainer.eval_trajectories``; collective."""
    rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
    mine = panel[rank::world]
    sampling = replace(trainer.config.sampling, temperature=trainer.config.eval_temperature)
    trajectories: list[Trajectory] = []
    with (
        together(trainer.accelerator, trainer.shared_errors),
        trainer.bar(len(mine), "evaluation") as bar,
        trainer.guard.interruptible(),
        trainer.generation(),
    ):
        if mine or trainer.collector.agree is not None:
            trajectories = trainer.collector.collect(
                mine, 1, seed=-1, privileged=privileged, sampling=sampling, progress=bar
            )
    trainer.eval_trajectories = gather_object(trajectories) if world > 1 else trajectories
    prefix = "eval_privileged" if privileged else "eval"
    return rollout_metrics(gather_summaries(trainer.accelerator, trajectories), prefix)
