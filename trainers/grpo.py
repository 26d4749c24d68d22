"""The training loop: rollouts, scores, credit, clipped objective, one optimiser step; read top to bottom.

Departs from the papers' released code where docs/equations.md#departures says it must: the success rate is a fraction,
statistics count trajectories, teacher prompts are built from messages, no padded copy of a row exists.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from ..envs import Task, TaskSuite
from ..rollout._preflight import PreflightReport
from ..rollout.types import Trajectory
from .assembly import check_processes, check_tasks, make_collector, make_credit, run_preflight
from .batch import make_batch, usable
from .callbacks import TrainerCallback
from .config import GRPOConfig
from .distributed import agree_max, sharded_for_generation, whole_for_generation, zero_stage
from .encoder import Encoder, load_encoder
from .first_update import FirstUpdate
from .guard import (
    EXIT_CODE,
    Terminated,
    TerminationGuard,
    check_folder,
    keep_later_records,
    output_folder_lock,
    set_aside,
)
from .identity import describe_run
from .life import evaluation_due, finish_update, is_finished, save_on_the_way_out, save_or_go_on, together
from .loggers import MetricsLogger
from .metrics import TrajectorySummary, join_steps, rollout_metrics
from .optimization import MicroBatchLimits, TrainRows, accumulate_gradients, apply_gradients, learning_rate
from .phase import CreditPhase
from .policy import make_policy
from .recipes import get_recipe
from .records import Clock, gather_summaries, keep_rollouts, mean_over_processes, write_completions
from .resume import load_run, record_evaluation, rehearse_save, save_run
from .snapshots import TeacherSnapshot

logger = logging.getLogger(__name__)


class GRPOTrainer:
    """Trains a causal language model on a task suite with turn-level credit.

    Args:
        model: a Hugging Face causal language model; trained in place.
        tokenizer: its tokenizer, with a chat template and a padding token.
        suite: the task suite.
        config: see `GRPOConfig`.
        train_tasks, eval_tasks: instead of ``suite.tasks("train")`` and ``suite.tasks("eval")``.
        accelerator: an `accelerate.Accelerator`; None makes one.
        ref_model: the frozen reference of the KL term; None takes the policy as it is now (only if beta > 0).
        peft_config: a peft configuration: an adapter is put on the model and trained.
        encoder: sentence encoder of AlignOPSD instead of ``config.encoder``.
        callbacks: see `TrainerCallback`.
        progress: show a progress bar over episodes and turns on the main process.

    Raises:
        ValueError: no tasks, fewer tasks than ``num_tasks``, overlapping training and evaluation tasks, an unknown
            credit method, a tokenizer without chat template or padding token, or a model that the preflight refuses
            (see `turncredit.rollout.preflight`).
        TypeError: an option that the credit method does not have.
        RuntimeError: launched for several processes but running as one.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        suite: TaskSuite,
        config: GRPOConfig,
        *,
        train_tasks: Sequence[Task] | None = None,
        eval_tasks: Sequence[Task] | None = None,
        accelerator: Accelerator | None = None,
        ref_model: Any = None,
        peft_config: Any = None,
        encoder: Encoder | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        progress: bool = False,
    ):
        config.check()
        self.config = config
        self.suite = suite
        self.tokenizer = tokenizer
        self.callbacks = list(callbacks)
        self.progress = progress
        self.recipe = get_recipe(config.credit)
        self.credit = make_credit(config, self.recipe)
        self.train_tasks = list(suite.tasks("train") if train_tasks is None else train_tasks)
        self.eval_tasks = list(suite.tasks("eval") if eval_tasks is None else eval_tasks)[: config.num_eval_tasks]
        check_tasks(config, self.train_tasks, self.eval_tasks)
        self.accelerator = accelerator or Accelerator()
        check_processes(config, self.accelerator)
        self.folder = Path(config.output_dir)
        self.step = 0
        self.update_metrics: dict[str, float] | None = {}
        self.evaluation: dict[str, float] | None = None
        self.evaluation_due = True
        self.saved_step = -1
        self.resumed = self.came_from_elsewhere = False
        self.shared_errors: list[BaseException] = []
        self._stepping = False
        self._played = -1
        self.skipped_steps = self.failed_saves = self.empty_updates = 0
        self.best: dict[str, float] = {}
        self.eval_trajectories: list[Trajectory] = []
        self.limits = MicroBatchLimits.of(config)
        self.guard = TerminationGuard(immediate=self.accelerator.num_processes == 1)

        self.policy = make_policy(self.accelerator, model, config, ref_model, peft_config)
        self.scorer, self.optimizer, self.model = self.policy.scorer, self.policy.optimizer, self.policy.model
        self.description = describe_run(self)
        rehearse_save(self)
        self.preflight: PreflightReport | None = run_preflight(self)
        self.first: FirstUpdate | None = None
        if self.preflight is not None:
            temperature = config.sampling.temperature
            self.first = FirstUpdate(self.preflight.subject, self.preflight.precision, temperature)
        self.collector = make_collector(config, self.accelerator, self.model, tokenizer, suite)
        self.snapshot: TeacherSnapshot | None = None
        if self.recipe.snapshot != "current":
            self.snapshot = TeacherSnapshot(
                self.model,
                self.recipe.snapshot,
                refresh_every=self.recipe.refresh_every,
                ema_rate=self.recipe.ema_rate,
            )
        precise = next(self.model.parameters()).dtype == torch.float32 and self.accelerator.mixed_precision == "no"
        self.phase = CreditPhase(
            self.policy.scoring,
            self.model,
            self.policy.reference,
            self.collector,
            suite,
            {task.id: task for task in self.train_tasks},
            self.credit,
            self.recipe,
            config,
            self.snapshot,
            functools.cache(lambda: encoder or load_encoder(config.encoder)),
            not precise if config.recompute_logprobs is None else config.recompute_logprobs,
            self._generation,
            functools.partial(agree_max, self.accelerator) if zero_stage(self.accelerator) == 3 else None,
            gather_object if self.accelerator.num_processes > 1 else None,
        )

    # ---- the loop

    def train(self, resume_from: str | bool | None = None, *, allow_changed_config: bool = False) -> dict[str, float]:
        """Run updates until ``max_steps``; returns the last evaluation's metrics.

        Args:
            resume_from: True for the newest good checkpoint under ``output_dir`` (a fresh start when there is none), or
                the folder of one.
            allow_changed_config: resume although an option that matters differs from the checkpoint's.

        Raises:
            SystemExit: with code 143 after SIGTERM, once a checkpoint is written.
            RuntimeError: another run is writing to ``output_dir``, or every rollout of several updates failed.
            FloatingPointError: more than ``max_skipped_steps`` losses or gradients were not finite.
            OSError: `output_dir` cannot be written to, or the last checkpoint could not be written.

        An error ends the run with the last finished update in a checkpoint where that is possible; see
        docs/reliability.md.
        """
        main = self.accelerator.is_main_process
        check_folder(self.accelerator, self.folder)
        with self.guard.installed(), output_folder_lock(self.folder) if main else contextlib.nullcontext():
            if resume_from:
                self.resume(resume_from, allow_changed_config=allow_changed_config)
            if self.step == 0 and not self.resumed:
                self.evaluation = None
            if main and (self.came_from_elsewhere or (self.step == 0 and not self.resumed)):
                set_aside(self.folder)
            elif main and self.resumed:
                keep_later_records(self.folder, self.step)
            self.came_from_elsewhere = False
            self.accelerator.wait_for_everyone()
            log = self._logger()
            ended = False
            try:
                evaluation = self._train(log)
                ended = True
                return evaluation
            except Terminated:
                if self.saved_step != self.step:
                    self.save()
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                save_on_the_way_out(self, error)
                raise
            finally:
                if log is not None:
                    log.close(failed=not ended)
            raise SystemExit(EXIT_CODE)

    def _train(self, log: MetricsLogger | None) -> dict[str, float]:
        config = self.config
        if "correspondence" in self.credit.requires:
            self.phase.encoder()  # what it lacks is said now and not after the first rollouts
        if not is_finished(self, log):
            finish_update(self, log)
        while self.step < config.max_steps:
            self.train_step()
            last = self.step == config.max_steps
            if last or (config.save_steps and self.step % config.save_steps == 0):
                save_or_go_on(self, last)
            finish_update(self, log)
        return self.evaluation if self.evaluation is not None and self._played == self.step else self.evaluate()

    def train_step(self) -> dict[str, float]:
        """One update: rollouts, scores, credit, optimiser steps. Returns its metrics, equal on every process."""
        clock = Clock()
        with self.guard.interruptible():
            trajectories = self.rollout(self.tasks_of(self.step))
        stats = self.collector.stats
        times = {"generation": stats.generation_seconds, "environment": stats.environment_seconds}
        try:
            with keep_rollouts(self.folder, trajectories, self.step, self.accelerator.process_index):
                with together(self.accelerator, self.shared_errors):
                    for callback in self.callbacks:
                        callback.on_rollout(self, trajectories)
                clock.lap()
                batch = make_batch(usable(trajectories))
                with self.guard.interruptible():
                    result = self.phase(batch, self.step)
                with together(self.accelerator, self.shared_errors):
                    if result.inputs is not None and result.credit is not None:
                        for callback in self.callbacks:
                            callback.on_credit(self, result.inputs, result.credit)
                metrics = mean_over_processes(self.accelerator, result.metrics, len(batch.trajectories))
                if self.first is not None:
                    self.first.check_rollouts(self.tokenizer, batch, self.config.chat_template_kwargs)
                    self.first.check_drift(metrics)
                times["scoring"] = clock.lap()
                metrics |= self._optimise(result.rows)
                times["training"] = clock.lap()
        finally:
            if self.accelerator.is_main_process:
                write_completions(self.folder, trajectories[: self.config.log_completions], self.step)
        summaries = gather_summaries(self.accelerator, trajectories)
        metrics |= rollout_metrics(summaries)
        self._check_usable(summaries)
        metrics |= {f"time/{name}_seconds": value for name, value in times.items()}
        metrics["time/total_seconds"] = clock.total()
        metrics["rollout/workers_replaced"] = float(self.collector.envs.workers_replaced)
        metrics["rollout/workers_recycled"] = float(self.collector.envs.workers_recycled)
        self._stepping = True
        if self.snapshot is not None:
            self.snapshot.update(self.model, self.step + 1)
        self.step += 1
        self.update_metrics, self.evaluation = metrics, None
        self.evaluation_due = evaluation_due(self)
        self._stepping = False
        return dict(metrics)

    @property
    def torn(self) -> bool:
        """Whether the weights in memory are those of no finished update."""
        return self._stepping or (self.snapshot is not None and self.snapshot.swapped)

    def tasks_of(self, step: int) -> list[Task]:
        """The tasks of an update, a pure function of the step: seeded permutations, never a task twice in an update."""
        size = self.config.num_tasks
        per_epoch = len(self.train_tasks) // size
        epoch, position = divmod(step, per_epoch)
        order = np.random.default_rng([self.config.seed, epoch]).permutation(len(self.train_tasks))
        return [self.train_tasks[i] for i in order[position * size : (position + 1) * size]]

    def rollout(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """Play this process's share of the tasks; all rollouts of a task stay on one process."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        mine = list(tasks)[rank::world]
        total = len(mine) * self.config.num_generations
        with self._bar(total, f"update {self.step + 1} rollouts") as bar, self._generation():
            trajectories = self.collector.collect(
                mine,
                self.config.num_generations,
                seed=self.config.seed,
                step=self.step,
                privileged=self.recipe.student_context == "privileged",
                progress=bar,
            )
        # group ids count over the whole update: task j of this process is task rank + j * world of all
        return [replace(t, group_id=rank + t.group_id * world) for t in trajectories]

    def _optimise(self, rows: TrainRows) -> dict[str, float]:
        """One or more epochs of minibatches; trajectories stay whole, every process takes the same steps."""
        config = self.config
        collected: list[dict[str, float]] = []
        slots = config.num_tasks * config.num_generations
        for iteration in range(config.num_iterations):
            # over the slots of the whole update, so that a minibatch is the same however tasks are spread
            order = np.random.default_rng([config.seed, self.step, iteration]).permutation(slots)
            for part in range(config.num_minibatches):
                wanted = torch.from_numpy(order[part :: config.num_minibatches])
                chosen = torch.isin(rows.trajectory_ids, wanted)
                metrics = accumulate_gradients(
                    self.accelerator,
                    self.scorer,
                    rows.select(chosen.nonzero().flatten()),
                    config,
                    pad_token_id=self.tokenizer.pad_token_id,
                    auxiliary=self.recipe.auxiliary,
                    limits=self.limits,
                )
                if metrics is None:
                    continue
                if self.first is not None:
                    self.first.check_step(metrics)
                lr = learning_rate(self.step, config)
                before, self._stepping = self._stepping, True
                metrics["grad_norm"] = apply_gradients(
                    self.accelerator, self.scorer, self.optimizer, lr, config.max_grad_norm, metrics["loss"]
                )
                # a step that is not finite is not taken
                self._stepping = before or math.isfinite(metrics["grad_norm"])
                metrics["learning_rate"] = lr
                self._check_finite(metrics)
                collected.append(metrics)
        result = {f"train/{name}": value for name, value in join_steps(collected).items()}
        result["train/optimizer_steps"] = float(len(collected))
        result["train/skipped_steps"] = float(self.skipped_steps)
        return result

    def _check_finite(self, metrics: dict[str, float]) -> None:
        if math.isfinite(metrics["grad_norm"]) and math.isfinite(metrics["loss"]):
            return
        self.skipped_steps += 1
        logger.warning(
            "update %d: loss %s, gradient norm %s; the step was left out (%d so far)",
            self.step + 1,
            metrics["loss"],
            metrics["grad_norm"],
            self.skipped_steps,
        )
        if self.skipped_steps > self.config.max_skipped_steps:
            raise FloatingPointError(
                f"GRPOTrainer: loss and gradient must be finite, got {metrics['loss']} and {metrics['grad_norm']} at "
                f"update {self.step + 1}, {self.skipped_steps} times in all; the rollouts were saved for inspection"
            )

    def _check_usable(self, trajectories: Sequence[TrajectorySummary]) -> None:
        """A run in which every rollout fails, update after update, must not go on looking alive."""
        causes = [trajectory.failure for trajectory in trajectories]
        self.empty_updates = self.empty_updates + 1 if None not in causes else 0
        if self.empty_updates > self.config.max_skipped_steps:
            raise RuntimeError(
                f"GRPOTrainer: rollouts must be usable, but all failed in {self.empty_updates} updates in a row; "
                f"the last cause: {causes[-1] if causes else 'no rollouts'}"
            )

    # ---- evaluation

    def evaluate(self, tasks: Sequence[Task] | None = None, *, privileged: bool = False) -> dict[str, float]:
        """Play the fixed panel once per task; the same tasks and seeds whatever the batch size or number of processes.

        Args:
            tasks: instead of the panel.
            privileged: with the teacher's context in the prompt.

        Returns:
            ``eval/success``, per-type success, turns, validity; ``eval_privileged/...`` with privileged context.
        """
        panel = list(self.eval_tasks if tasks is None else tasks)
        metrics = self._play(panel, privileged) if panel else {}
        if tasks is None and not privileged:
            self.evaluation, self._played = metrics, self.step
            self.note_best()
            record_evaluation(self)
        if panel:
            for callback in self.callbacks:
                callback.on_evaluate(self, metrics)
        return dict(metrics)

    def _play(self, panel: Sequence[Task], privileged: bool) -> dict[str, float]:
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        mine = panel[rank::world]
        sampling = replace(self.config.sampling, temperature=self.config.eval_temperature)
        trajectories: list[Trajectory] = []
        with (
            together(self.accelerator, self.shared_errors),
            self._bar(len(mine), "evaluation") as bar,
            self.guard.interruptible(),
            self._generation(),
        ):
            if mine or self.collector.agree is not None:
                trajectories = self.collector.collect(
                    mine, 1, seed=-1, privileged=privileged, sampling=sampling, progress=bar
                )
        self.eval_trajectories = gather_object(trajectories) if world > 1 else trajectories
        prefix = "eval_privileged" if privileged else "eval"
        return rollout_metrics(gather_summaries(self.accelerator, trajectories), prefix)

    def note_best(self) -> None:
        """Keep the best evaluation so far; of equal ones the latest."""
        success = (self.evaluation or {}).get("eval/success")
        if success is not None and success >= self.best.get("success", -1.0):
            self.best = {"success": success, "step": float(self.step)}

    # ---- checkpoints

    def save(self) -> Path:
        """Write a checkpoint of the model (safetensors), the optimiser and everything that resuming needs."""
        root = save_run(self)
        self.announce_save(root)
        return root

    def announce_save(self, root: Path) -> None:
        """Call `on_save`."""
        with together(self.accelerator, self.shared_errors):
            for callback in self.callbacks:
                callback.on_save(self, str(root))

    def resume(self, source: str | bool, *, allow_changed_config: bool = False) -> None:
        """Load a checkpoint: weights, optimiser, RNG, teacher, step, best-so-far. See `train`.

        Raises:
            FileNotFoundError: `source` names no checkpoint.
            ValueError: it is damaged, or its tokenizer, tasks or options differ from this run's.
        """
        self.resumed = load_run(self, source, allow_changed_config)
        self._stepping = self._stepping and not self.resumed

    # ---- small parts

    def close(self) -> None:
        """Stop the environment processes."""
        self.collector.close()

    def __enter__(self) -> GRPOTrainer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _generation(self):
        """Sampling sees the same precision as scoring, and under ZeRO-3 whole weights, gathered once."""
        weights = whole_for_generation if self.config.ds3_gather_for_generation else sharded_for_generation
        with self.accelerator.autocast(), weights(self.scorer):
            yield

    @contextlib.contextmanager
    def _bar(self, total: int, description: str):
        if not (self.progress and self.accelerator.is_main_process):
            yield None
            return
        from tqdm import tqdm

        with tqdm(total=total, desc=description, unit="episode", leave=False) as bar:
            yield bar

    def _logger(self) -> MetricsLogger | None:
        if not self.accelerator.is_main_process:
            return None
        fresh = self.step == 0 and not self.resumed
        # the line of an update whose evaluation is missing is written again
        pending = self.update_metrics is not None and self.evaluation_due and self.evaluation is None
        return MetricsLogger(
            self.folder, self.config.report_to, self.config, None if fresh else self.step - int(pending)
        )
