"""What a run plays: its tasks with several rollouts each, and the fixed panel, on however many processes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator
from accelerate.utils import gather_object
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..envs import Task, TaskSuite
from ..rollout.collector import RolloutCollector
from ..rollout.types import Trajectory
from .config import GRPOConfig
from .distributed import agree_max, zero_stage
from .life import together
from .metrics import TrajectorySummary, rollout_metrics
from .monitor import bars_shown
from .records import gather_summaries

if TYPE_CHECKING:
    from .grpo import GRPOTrainer


def make_collector(
    config: GRPOConfig,
    accelerator: Accelerator,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    suite: TaskSuite,
) -> RolloutCollector:
    """The collector of one process, with as many environments as its share of the rollouts can use."""
    share = -(-config.num_tasks * config.num_generations // accelerator.num_processes)
    sharded = zero_stage(accelerator) == 3 and not config.ds3_gather_for_generation
    return RolloutCollector(
        model,
        tokenizer,
        suite,
        config.sampling,
        num_envs=min(config.num_envs, max(share, 1)),
        num_workers=config.num_workers,
        env_timeout=config.env_timeout,
        max_worker_rss_mb=config.max_worker_rss_mb,
        chat_template_kwargs=config.chat_template_kwargs,
        agree=functools.partial(agree_max, accelerator) if sharded else None,
        continuous_batching=config.continuous_batching,
    )


def play_tasks(trainer: GRPOTrainer, tasks: Sequence[Task]) -> list[Trajectory]:
    """This process's share of an update's tasks, in the context that the method's student reads."""
    rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
    mine = list(tasks)[rank::world]
    if trainer.method.rollouts is not None:
        return _played_by_method(trainer, mine, rank, world)
    total = len(mine) * trainer.config.num_generations
    with _bar(trainer, total, f"update {trainer.step + 1} rollouts") as bar, trainer.generation():
        trajectories = trainer.collector.collect(
            mine,
            trainer.config.num_generations,
            seed=trainer.config.seed,
            step=trainer.step,
            context=trainer.method.student_context,
            progress=bar,
        )
    trainer.run.environment_steps += sum(len(one.turns) for one in trajectories)
    # group ids count over the whole update: task j of this process is task rank + j * world of all
    return [replace(t, group_id=rank + t.group_id * world) for t in trajectories]


def _played_by_method(trainer: GRPOTrainer, mine: Sequence[Task], rank: int, world: int) -> list[Trajectory]:
    """What the method's own rollouts are, checked; collective: where one process fails, all of them do."""
    rollouts, size = trainer.method.rollouts, trainer.config.num_generations
    assert rollouts is not None
    with together(trainer.accelerator, trainer.shared_errors):
        trainer.run.step, trainer.run.metrics = trainer.step, {}
        trajectories = list(rollouts(mine, trainer.run))
        trainer.run.early = trainer.run.metrics
        places = [(t.group_id, t.rollout_index) for t in trajectories]
        inside = all(0 <= group < len(mine) and 0 <= index < size for group, index in places)
        if not inside or len(set(places)) < len(places):
            raise ValueError(
                f"{trainer.method.name}: rollouts must give every trajectory a place of its own, group_id below "
                f"{len(mine)} and rollout_index below {size}, got {sorted(places)[:8]}; set both in its EpisodeStart"
            )
    return [replace(t, group_id=rank + t.group_id * world) for t in trajectories]


def play_panel(trainer: GRPOTrainer, panel: Sequence[Task], privileged: bool) -> dict[str, float]:
    """Play every task of the panel once; its trajectories are then ``trainer.eval_trajectories``; collective."""
    rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
    mine = panel[rank::world]
    sampling = replace(trainer.config.sampling, temperature=trainer.config.eval_temperature)
    trajectories: list[Trajectory] = []
    with (
        together(trainer.accelerator, trainer.shared_errors),
        _bar(trainer, len(mine), "evaluation") as bar,
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


def check_usable(trainer: GRPOTrainer, trajectories: Sequence[TrajectorySummary]) -> None:
    """A run in which every rollout fails, update after update, must not go on looking alive.

    Raises:
        RuntimeError: all failed in more than ``max_skipped_steps`` updates in a row.
    """
    causes = [trajectory.failure for trajectory in trajectories]
    trainer.empty_updates = trainer.empty_updates + 1 if None not in causes else 0
    if trainer.empty_updates > trainer.config.max_skipped_steps:
        raise RuntimeError(
            f"GRPOTrainer: rollouts must be usable, but all failed in {trainer.empty_updates} updates in a row; "
            f"the last cause: {causes[-1] if causes else 'no rollouts'}"
        )


@contextlib.contextmanager
def _bar(trainer: GRPOTrainer, total: int, description: str) -> Iterator[Any]:
    """A progress bar on the main process, or None."""
    shown = trainer.progress and bars_shown(trainer.config.disable_tqdm)
    if not (shown and trainer.accelerator.is_main_process):
        yield None
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=description, unit="episode", leave=False) as bar:
        yield bar
