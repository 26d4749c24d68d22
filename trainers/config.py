"""The one configuration of a training run, in TRL's names where TRL has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..rollout.sampling import SamplingConfig
from .losses import LOSS_TYPES


@dataclass
class GRPOConfig:
    """Settings of `GRPOTrainer`. Defaults are the papers' (METHODS section 5).

    Args:
        output_dir: folder of metrics, completions, trajectories and checkpoints.
        max_steps: updates (rollout phases) in the whole run.
        num_tasks: tasks per update, over all processes.
        num_generations: rollouts per task (G).
        credit: name of the credit method or recipe (`turncredit.credit.list_credits`, `turncredit.trainers.RECIPES`).
        credit_options: options of the method that differ from its defaults.
        sampling: temperature, top-p, top-k and budgets of training rollouts.
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
        save_total_limit: checkpoints kept.
        log_completions: trajectories written out as readable text per update; 0 writes none.
        report_to: any of ``"wandb"``, ``"tensorboard"``; JSONL metrics are always written.
        max_skipped_steps: updates with a loss or gradient that is not finite before the run stops.
        seed: of sampling and of the task order.
        preflight: compare sampling, scoring and training with the model before and in the first update; False goes
            without.
    """

    output_dir: str = "outputs/run"
    max_steps: int = 150
    num_tasks: int = 16
    num_generations: int = 8
    credit: str = "agent_opsd"
    credit_options: Mapping[str, Any] = field(default_factory=dict)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
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
    save_total_limit: int = 2
    log_completions: int = 2
    report_to: tuple[str, ...] = ()
    max_skipped_steps: int = 3
    seed: int = 0
    preflight: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.sampling, Mapping):
            self.sampling = SamplingConfig(**self.sampling)
        self.report_to = (self.report_to,) if isinstance(self.report_to, str) else tuple(self.report_to)
        for name in (
            "num_tasks",
            "num_envs",
            "num_iterations",
            "num_minibatches",
            "micro_batch_tokens",
            "num_eval_tasks",
            "save_total_limit",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"GRPOConfig: {name} must be at least 1, got {getattr(self, name)}")
        for name in (
            "max_steps",
            "num_workers",
            "beta",
            "entropy_coef",
            "invalid_action_penalty",
            "warmup_steps",
            "eval_steps",
            "save_steps",
            "epsilon",
            "epsilon_high",
            "eval_temperature",
            "max_skipped_steps",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"GRPOConfig: {name} must not be negative, got {getattr(self, name)}")
        if self.num_generations < 2:
            raise ValueError(
                f"GRPOConfig: num_generations must be at least 2, got {self.num_generations}; "
                "a group of one has no baseline and its advantage is 0"
            )
        for name in ("learning_rate", "max_grad_norm", "env_timeout"):
            if getattr(self, name) <= 0:
                raise ValueError(f"GRPOConfig: {name} must be positive, got {getattr(self, name)}")
        if self.loss_type not in LOSS_TYPES:
            raise ValueError(f"GRPOConfig: loss_type must be one of {LOSS_TYPES}, got {self.loss_type!r}")
        if self.lr_scheduler_type not in ("constant", "linear", "cosine"):
            raise ValueError(
                f"GRPOConfig: lr_scheduler_type must be constant, linear or cosine, got {self.lr_scheduler_type!r}"
            )
        unknown = set(self.report_to) - {"wandb", "tensorboard"}
        if unknown:
            raise ValueError(f"GRPOConfig: report_to must name wandb or tensorboard, got {sorted(unknown)}")
