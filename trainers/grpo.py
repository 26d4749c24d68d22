"""The training loop: rollouts, scores, credit, clipped objective, one optimiser step; read top to bottom.

Departs from the papers' released code where docs/equations.md#departures says it must: the success rate is a fraction,
statistics count trajectories, teacher prompts are built from messages, no padded copy of a row exists.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..envs import Task, TaskSuite
from ..rollout._preflight import PreflightReport
from ..rollout.types import Trajectory
from .batch import make_batch, usable
from .budget import count_steps, is_over
from .callbacks import GRPOCallback, check_callbacks
from .checkpoint import Ahead, Stateful
from .config import GRPOConfig
from .distributed import sharded_for_generation, whole_for_generation
from .encoder import Encoder
from .first_update import FirstUpdate
from .guard import TerminationGuard
from .hub import Published
from .identity import describe_run
from .life import evaluation_due, finish_update, is_finished, save_or_go_on, together
from .loggers import MetricsLogger
from .methods import Run, get_method
from .methods.checks import check_contexts
from .methods.modules import AttachedWeights, make_modules
from .methods.tryout import try_options
from .metrics import rollout_metrics
from .monitor import Monitor
from .phase import CreditPhase
from .play import check_usable, make_collector, play_panel, play_tasks
from .policy import make_policy
from .records import Clock, gather_summaries, keep_rollouts, mean_over_processes, write_completions
from .reference import InitialWeights
from .rehearsal import check_processes, check_tasks, run_preflight
from .resume import load_run, record_evaluation, rehearse_save, save_run
from .rollout_files import save_rollouts
from .rows import MicroBatchLimits
from .session import claim_folder, run_session
from .teacher import load_teacher, make_teacher
from .terms import objective
from .trl import given
from .update import optimise

logger = logging.getLogger(__name__)


class GRPOTrainer(Published):
    """Trains a causal language model on a task suite with turn-level credit.

    Args:
        model: a Hugging Face causal language model; trained in place.
        tokenizer: its tokenizer, with a chat template and a padding token.
        suite: the task suite.
        config: see `GRPOConfig`.
        train_tasks, eval_tasks: instead of ``suite.tasks("train")`` and ``suite.tasks("eval")``.
        accelerator: an `accelerate.Accelerator`; None makes one.
        ref_model: the frozen reference of the KL term; None takes the policy as it is now (only if beta > 0).
        teacher_model: another model with the policy's tokenizer that teaches instead of the method's teacher.
        peft_config: a peft configuration: an adapter is put on the model and trained.
        encoder: a sentence encoder instead of the one that the method names.
        callbacks: see `GRPOCallback`.
        args, processing_class: TRL's names of `config` and `tokenizer`.
        progress: show a progress bar over episodes and turns on the main process.

    Raises:
        ValueError: no tasks, fewer tasks than ``num_tasks``, overlapping training and evaluation tasks, an unknown
            method, one that reads a context which no task has, a tokenizer without chat template or padding token, or a
            model that the preflight refuses (see `turncredit.rollout.preflight`).
        TypeError: an option that the method does not have.
        RuntimeError: launched for several processes but running as one.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase | None = None,
        suite: TaskSuite | None = None,
        config: GRPOConfig | None = None,
        *,
        train_tasks: Sequence[Task] | None = None,
        eval_tasks: Sequence[Task] | None = None,
        accelerator: Accelerator | None = None,
        ref_model: Any = None,
        teacher_model: PreTrainedModel | None = None,
        peft_config: Any = None,
        encoder: Encoder | None = None,
        callbacks: Sequence[GRPOCallback] = (),
        progress: bool = False,
        args: GRPOConfig | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
    ):
        tokenizer = given("tokenizer", tokenizer, "processing_class", processing_class)
        suite = given("suite", suite)
        config = given("config", config, "args", args, GRPOConfig())
        config.check()
        self.config = config
        self.suite = suite
        self.tokenizer = tokenizer
        self.callbacks = check_callbacks(callbacks)
        self.progress = progress
        other = {} if teacher_model is None else {"teacher": teacher_model}
        if other.keys() & config.credit_options.keys():
            raise ValueError(
                f"GRPOTrainer: teacher_model must be left out where credit_options name a teacher, got both, "
                f"{config.credit_options['teacher']!r} there; keep one"
            )
        self.method = get_method(config.credit, **{**config.credit_options, **other})
        try_options(self.method.credit_method, config.num_generations)
        self.terms = objective(config, self.method.terms, self.method.policy_weight)
        self.train_tasks = list(suite.tasks("train") if train_tasks is None else train_tasks)
        self.eval_tasks = list(suite.tasks("eval") if eval_tasks is None else eval_tasks)[: config.num_eval_tasks]
        check_tasks(config, self.train_tasks, self.eval_tasks)
        check_contexts(self.method, suite, self.train_tasks)
        self.accelerator: Accelerator = accelerator or Accelerator()
        check_processes(config, self.accelerator)
        self.folder = Path(config.output_dir)
        self.step = self.environment_steps = 0
        self.update_metrics: dict[str, float] | None = {}
        self.evaluation: dict[str, float] | None = None
        self.evaluation_due = True
        self.saved_step = -1
        self.resumed = self.came_from_elsewhere = self.claimed = False
        self.shared_errors: list[BaseException] = []
        self.stepping = False
        self._played = -1
        self.skipped_steps = self.failed_saves = self.empty_updates = 0
        self.best: dict[str, float] = {}
        self.tracker_runs: dict[str, dict[str, str]] = {}
        self.monitor: Monitor | None = None
        self.eval_trajectories: list[Trajectory] = []
        self.limits = MicroBatchLimits.of(config, self.accelerator.device.type)
        self.guard = TerminationGuard(self.accelerator.num_processes == 1, self.accelerator.is_main_process)

        teacher_model = load_teacher(self.method, model, tokenizer)
        modules = make_modules(self.method, model, self.terms, config.seed)
        self.policy = make_policy(self.accelerator, model, config, ref_model, peft_config, modules)
        self.scorer, self.optimizer, self.model = self.policy.scorer, self.policy.optimizer, self.policy.model
        self.teacher = make_teacher(self.accelerator, self.policy, self.method, teacher_model, config)
        self.parts = self._stateful_parts()
        self.description = describe_run(self)
        rehearse_save(self)
        self.preflight: PreflightReport | None = run_preflight(self)
        self.first: FirstUpdate | None = None
        if self.preflight is not None:
            temperature = config.sampling.temperature
            self.first = FirstUpdate(self.preflight.subject, self.preflight.precision, temperature)
        self.collector = make_collector(config, self.accelerator, self.model, tokenizer, suite)
        self.run = Run(
            method=self.method,
            config=config,
            suite=suite,
            tasks={task.id: task for task in self.train_tasks},
            accelerator=self.accelerator,
            collector=self.collector,
            policy=self.policy,
            teacher=self.teacher,
            generation=self.generation,
            encoder=encoder,
        )
        precise = next(self.model.parameters()).dtype == torch.float32 and self.accelerator.mixed_precision == "no"
        recompute = not precise if config.recompute_logprobs is None else config.recompute_logprobs
        reads = frozenset(name for term in self.terms for name in term.reads)
        self.phase = CreditPhase(self.run, self.method, reads, recompute)

    def _stateful_parts(self) -> dict[str, Stateful]:
        """What checkpoints save beside model, optimiser and random states, by the name of its file."""
        parts: dict[str, Stateful] = {f"method-{name}": part for name, part in self.method.state.items()}
        if self.teacher.snapshot is not None:
            parts["teacher"] = self.teacher.snapshot
        if self.method.modules is not None:
            parts["modules"] = AttachedWeights(self.scorer, self.accelerator.is_main_process)
        if isinstance(self.policy.reference, InitialWeights):
            parts["reference"] = self.policy.reference.snapshot
        return parts

    # ---- the loop

    def train(self, resume_from: str | bool | None = None, *, allow_changed_config: bool = False) -> dict[str, float]:
        """Run updates until ``max_steps``; returns the last evaluation's metrics.

        Args:
            resume_from: True for the newest good checkpoint under ``output_dir`` (a fresh start when there is none), or
                the folder of one.
            allow_changed_config: resume although an option that matters differs from the checkpoint's.

        Raises:
            SystemExit: with code 143 after SIGTERM, 130 after Ctrl-C (also a KeyboardInterrupt), once a checkpoint is
                written.
            RuntimeError: another run is writing to ``output_dir``, or every rollout of several updates failed.
            FloatingPointError: more than ``max_skipped_steps`` losses or gradients were not finite.
            OSError: `output_dir` cannot be written to, or the last checkpoint could not be written.

        An error ends the run with the last finished update in a checkpoint where that is possible; see
        docs/reliability.md.
        """
        return run_session(self, resume_from, allow_changed_config)

    def run_updates(self, log: MetricsLogger | None) -> dict[str, float]:
        config = self.config
        self.run.start()
        if not is_finished(self, log):
            finish_update(self, log)
        while not is_over(self):
            self.train_step()
            last = is_over(self)
            if last or (config.save_steps and self.step % config.save_steps == 0):
                save_or_go_on(self, last)
            finish_update(self, log)
        return self.evaluation if self.evaluation is not None and self._played == self.step else self.evaluate()

    def train_step(self) -> dict[str, float]:
        """One update: rollouts, scores, credit, optimiser steps. Returns its metrics, equal on every process."""
        if not self.claimed:
            claim_folder(self)
        clock, result = Clock(), None
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
                save_rollouts(self, trajectories, result)
                metrics = mean_over_processes(self.accelerator, result.metrics, len(batch.trajectories))
                if self.first is not None:
                    self.first.check_rollouts(self.tokenizer, batch, self.collector.chat_template_kwargs)
                    self.first.check_drift(metrics)
                times["scoring"] = clock.lap()
                metrics |= optimise(self, result.rows)
                times["training"] = clock.lap()
        finally:
            if self.accelerator.is_main_process:
                write_completions(self.folder, trajectories[: self.config.log_completions], self.step, result)
        summaries = gather_summaries(self.accelerator, trajectories)
        metrics |= rollout_metrics(summaries) | count_steps(self)
        check_usable(self, summaries)
        metrics |= {f"time/{name}_seconds": value for name, value in times.items()}
        metrics["time/total_seconds"] = clock.total()
        metrics["rollout/workers_replaced"] = float(self.collector.envs.workers_replaced)
        metrics["rollout/workers_recycled"] = float(self.collector.envs.workers_recycled)
        self.stepping = True
        if self.teacher.snapshot is not None:
            self.teacher.snapshot.update(self.step + 1)
        for part in self.method.state.values():
            if isinstance(part, Ahead):
                part.finished()
        self.step += 1
        self.update_metrics, self.evaluation = metrics, None
        self.evaluation_due = evaluation_due(self)
        self.stepping = False
        return dict(metrics)

    @property
    def torn(self) -> bool:
        """Whether the weights in memory are those of no finished update."""
        ahead = any(part.ahead for part in self.method.state.values() if isinstance(part, Ahead))
        return self.stepping or ahead or (self.teacher.snapshot is not None and self.teacher.snapshot.swapped)

    def tasks_of(self, step: int) -> list[Task]:
        """The tasks of an update, a pure function of the step: seeded permutations, never a task twice in an update."""
        size = self.config.num_tasks
        per_epoch = len(self.train_tasks) // size
        epoch, position = divmod(step, per_epoch)
        order = np.random.default_rng([self.config.seed, epoch]).permutation(len(self.train_tasks))
        return [self.train_tasks[i] for i in order[position * size : (position + 1) * size]]

    def rollout(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """Play this process's share of the tasks; all rollouts of a task stay on one process."""
        return play_tasks(self, tasks)

    # ---- evaluation

    def evaluate(self, tasks: Sequence[Task] | None = None, *, privileged: bool = False) -> dict[str, float]:
        """Play the fixed panel once per task; the same tasks and seeds whatever the batch size or number of processes.

        Args:
            tasks: instead of the panel.
            privileged: with the suite's privileged context in the prompt, whatever the method's teacher reads.

        Returns:
            ``eval/success``, per-type success, turns, validity; ``eval_privileged/...`` with privileged context.
        """
        panel = list(self.eval_tasks if tasks is None else tasks)
        metrics = play_panel(self, panel, privileged) if panel else {}
        if tasks is None and not privileged:
            self.evaluation, self._played = metrics, self.step
            self.note_best()
            record_evaluation(self)
        if panel:
            for callback in self.callbacks:
                callback.on_evaluate(self, metrics)
        return dict(metrics)

    def note_best(self) -> None:
        """Keep the best evaluation so far; of equal ones the latest."""
        success = (self.evaluation or {}).get("eval/success")
        if success is not None and success >= self.best.get("success", -1.0):
            self.best = {"success": success, "step": float(self.step)}

    # ---- checkpoints

    def save(self) -> Path:
        """Write a checkpoint of the model (safetensors), the optimiser and everything that resuming needs."""
        if not self.claimed:
            claim_folder(self)
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
        self.stepping = self.stepping and not self.resumed

    # ---- small parts

    def close(self) -> None:
        """Stop the environment processes."""
        self.collector.close()

    def __enter__(self) -> GRPOTrainer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextlib.contextmanager
    def generation(self) -> Iterator[None]:
        """Sampling sees the same precision as scoring, and under ZeRO-3 whole weights, gathered once."""
        weights = whole_for_generation if self.config.ds3_gather_for_generation else sharded_for_generation
        with self.accelerator.autocast(), weights(self.scorer):
            yield
