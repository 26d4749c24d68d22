"""The one configuration of a training run, in TRL's names where TRL has them."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..rollout.options import check_options, count, flag, number, text
from ..rollout.sampling import SamplingConfig
from ..rollout.templates import check_template_kwargs
from .losses import LOSS_TYPES

logger = logging.getLogger(__name__)

TRACKERS = ("wandb", "tensorboard")


@dataclass
class GRPOConfig:
    """Settings of `GRPOTrainer`. Defaults are the papers' (docs/equations.md#policy-objective).

    Args:
        output_dir: folder of metrics, completions, trajectories and checkpoints.
        max_steps: updates (rollout phases) in the whole run.
        num_tasks: tasks per update, over all processes.
        num_generations: rollouts per task (G).
        credit: name of the credit method or recipe (`turncredit.credit.list_credits`, `turncredit.trainers.RECIPES`).
        credit_options: options of the method that differ from its defaults.
        sampling: temperature, top-p, top-k and budgets of training rollouts.
        chat_template_kwargs: further variables of the chat template, for student and teacher, such as
            ``{"enable_thinking": False}``; ``strftime_now`` is the date its clock shows (``"2025-01-01"``).
        num_envs: episodes in play at once, per process.
        num_workers: environment processes, per process; 0 plays in this one.
        env_timeout: seconds before a silent environment process is replaced.
        max_worker_rss_mb: replace an environment process of more memory than this between episodes; None never does.
        ds3_gather_for_generation: under ZeRO-3, gather the weights once for every rollout phase; False keeps them
            sharded (less memory, every token a collective call).
        epsilon, epsilon_high: clip range of the ratio below and above 1.
        delta: dual clip for negative advantages; None turns it off.
        beta: coefficient of the KL (k3) to the initial policy; 0 keeps no reference model.
        entropy_coef: coefficient of the entropy bonus.
        loss_type: ``seq-mean-token-mean``, ``token-mean`` or ``seq-mean-token-sum-norm``.
        invalid_action_penalty: taken off the reward of an invalid turn, as a residual after credit; 0 turns it off.
        learning_rate, weight_decay, warmup_steps, lr_scheduler_type: AdamW and ``constant``, ``linear`` or ``cosine``.
        max_grad_norm: gradient clipping.
        num_iterations: epochs over the rollouts of one update.
        num_minibatches: optimiser steps per epoch; trajectories stay whole.
        micro_batch_tokens: rows x longest row in one forward pass; accumulation takes as many as are needed.
        per_device_train_batch_size: rows in one training micro-batch at most; None leaves it to micro_batch_tokens.
        recompute_logprobs: score the rollouts again before training; None does so unless the model is float32.
        encoder: sentence encoder of AlignOPSD: a SentenceTransformer's name or folder, or ``"hashing"`` (no model).
        teacher_max_completion_length: response budget of the generating teacher (AlignOPSD); None is the student's.
        eval_steps: evaluate every so many updates; 0 only before and after.
        num_eval_tasks: size of the fixed panel, the first tasks of the evaluation split.
        eval_temperature: sampling temperature in evaluation.
        save_steps: checkpoint every so many updates; 0 only at the end.
        save_total_limit: checkpoints kept; None keeps all.
        log_completions: trajectories written out as readable text per update; 0 writes none.
        report_to: any of ``"wandb"``, ``"tensorboard"``, or ``"all"`` that are installed, or ``"none"``; JSONL metrics
            are always written.
        max_skipped_steps: updates with a loss or gradient that is not finite before the run stops.
        seed: of sampling and of the task order.
        preflight: compare sampling, scoring and training with the model before and in the first update; False goes
            without.

    Raises:
        TypeError: an option of another kind, such as text where a number is needed (``"1e-6"``), or an unknown one.
        ValueError: an option out of range, or two that do not go together.
    """

    output_dir: str = "outputs/run"
    max_steps: int = 150
    num_tasks: int = 16
    num_generations: int = 8
    credit: str = "agent_opsd"
    credit_options: Mapping[str, Any] = field(default_factory=dict)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_envs: int = 64
    num_workers: int = 2
    env_timeout: float = 120.0
    max_worker_rss_mb: float | None = None
    ds3_gather_for_generation: bool = True
    epsilon: float = 0.2
    epsilon_high: float = 0.24
    delta: float | None = 3.0
    beta: float = 0.01
    entropy_coef: float = 0.001
    loss_type: str = "seq-mean-token-mean"
    invalid_action_penalty: float = 0.1
    learning_rate: float = 1e-6
    weight_decay: float = 0.0
    warmup_steps: int = 0
    lr_scheduler_type: str = "constant"
    max_grad_norm: float = 1.0
    num_iterations: int = 1
    num_minibatches: int = 1
    micro_batch_tokens: int = 16384
    per_device_train_batch_size: int | None = None
    recompute_logprobs: bool | None = None
    encoder: str = "Qwen/Qwen3-Embedding-0.6B"
    teacher_max_completion_length: int | None = None
    eval_steps: int = 10
    num_eval_tasks: int = 64
    eval_temperature: float = 0.4
    save_steps: int = 50
    save_total_limit: int | None = 2
    log_completions: int = 2
    report_to: tuple[str, ...] = ()
    max_skipped_steps: int = 3
    seed: int = 0
    preflight: bool = True

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise unless every option is of its kind and in its range; a trainer asks again when it is made.

        Raises:
            TypeError: an option is of another kind, text where a number is needed for instance, or unknown.
            ValueError: an option is out of range, or two do not go together.
        """
        # None, as an empty entry of a YAML file, holds nothing
        self.sampling = _sampling(self.sampling)
        kwargs = {} if self.chat_template_kwargs is None else self.chat_template_kwargs
        self.chat_template_kwargs = check_template_kwargs(kwargs, "GRPOConfig")
        self.credit_options = {} if self.credit_options is None else self.credit_options
        self.report_to = trackers(self.report_to)
        self.output_dir = os.fspath(self.output_dir) if isinstance(self.output_dir, os.PathLike) else self.output_dir
        for name, value in check_options("GRPOConfig", vars(self), _RULES).items():
            setattr(self, name, value)
        if not isinstance(self.credit_options, Mapping) or not all(isinstance(key, str) for key in self.credit_options):
            raise TypeError(
                f"GRPOConfig: credit_options must map option names to values, got {self.credit_options!r}; "
                'write {"gamma": 0.95}'
            )
        self._check_together()

    def _check_together(self) -> None:
        slots = self.num_tasks * self.num_generations
        pairs = [
            (
                "delta",
                self.delta is None or self.delta > 1 + self.epsilon_high,
                f"exceed 1 + epsilon_high = {1 + self.epsilon_high:g}",
                "raise it, or use None to turn the dual clip off",
            ),
            (
                "num_minibatches",
                self.num_minibatches <= slots,
                f"be at most the {slots} trajectories of an update (num_tasks x num_generations)",
                "lower it",
            ),
        ]
        for name, ok, rule, fix in pairs:
            if not ok:
                raise ValueError(f"GRPOConfig: {name} must {rule}, got {getattr(self, name)!r}; {fix}")
        if 0 < self.max_steps < self.warmup_steps:
            logger.warning(
                "warmup_steps = %d is more than max_steps = %d: the learning rate of %g is never reached",
                self.warmup_steps,
                self.max_steps,
                self.learning_rate,
            )


_RULES = {
    "output_dir": text(),
    "max_steps": count(0),
    "num_tasks": count(1),
    "num_generations": count(2, fix="a group of one has no baseline and its advantage is 0"),
    "credit": text(),
    "num_envs": count(1),
    "num_workers": count(0, fix="0 plays in this process"),
    "env_timeout": number(above=True),
    "max_worker_rss_mb": number(above=True, none="for no limit"),
    "ds3_gather_for_generation": flag(),
    "epsilon": number(0.0, 1.0, fix="1 leaves the ratio unclipped below"),
    "epsilon_high": number(),
    "delta": number(none="to turn the dual clip off"),
    "beta": number(),
    "entropy_coef": number(),
    "loss_type": text(*LOSS_TYPES),
    "invalid_action_penalty": number(),
    "learning_rate": number(above=True),
    "weight_decay": number(),
    "warmup_steps": count(0),
    "lr_scheduler_type": text("constant", "linear", "cosine"),
    "max_grad_norm": number(above=True, fix="a very large one never clips"),
    "num_iterations": count(1),
    "num_minibatches": count(1),
    "micro_batch_tokens": count(1),
    "per_device_train_batch_size": count(1, none="to let micro_batch_tokens decide"),
    "recompute_logprobs": flag(none="to do so unless the model is float32"),
    "encoder": text(),
    "teacher_max_completion_length": count(1, none="for the student's"),
    "eval_steps": count(0, fix="0 evaluates only before and after"),
    "num_eval_tasks": count(1),
    "eval_temperature": number(fix="0 is greedy"),
    "save_steps": count(0, fix="0 saves only at the end"),
    "save_total_limit": count(1, none="to keep all"),
    "log_completions": count(0),
    "max_skipped_steps": count(0),
    "seed": count(0),
    "preflight": flag(),
}


def _sampling(value: Any) -> SamplingConfig:
    if isinstance(value, SamplingConfig):
        return value
    known = [field.name for field in fields(SamplingConfig)]
    if not isinstance(value, Mapping):
        raise TypeError(
            f"GRPOConfig: sampling must be a SamplingConfig or a mapping of its options, got {value!r}; "
            f"its options are {known}"
        )
    if unknown := sorted(map(str, value.keys() - set(known))):
        raise TypeError(f"GRPOConfig: sampling must hold options among {known}, got {unknown}; use one of them")
    return SamplingConfig(**value)


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
