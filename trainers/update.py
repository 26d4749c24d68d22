"""The optimiser steps of one update: epochs and minibatches of whole trajectories, the same on every process."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from .metrics import join_steps
from .optimization import accumulate_gradients, apply_gradients, learning_rate
from .rows import TrainRows

if TYPE_CHECKING:
    from .grpo import GRPOTrainer

logger = logging.getLogger(__name__)


def optimise(trainer: GRPOTrainer, rows: TrainRows) -> dict[str, float]:
    """One or more epochs of minibatches; trajectories stay whole, every process takes the same steps.

    Raises:
        FloatingPointError: see `GRPOTrainer.train`.
    """
    config = trainer.config
    collected: list[dict[str, float]] = []
    slots = config.num_tasks * config.num_generations
    for iteration in range(config.num_iterations):
        # over the slots of the whole update, so that a minibatch is the same however tasks are spread
        order = np.random.default_rng([config.seed, trainer.step, iteration]).permutation(slots)
        for part in range(config.num_minibatches):
            wanted = torch.from_numpy(order[part :: config.num_minibatches])
            chosen = torch.isin(rows.slot_ids, wanted).nonzero().flatten()
            metrics = _take_step(trainer, rows.select(chosen))
            if metrics is not None:
                collected.append(metrics)
    own = [term.name for term in trainer.terms if term.auxiliary]
    result = {f"train/{name}": value for name, value in join_steps(collected, own).items()}
    result["train/optimizer_steps"] = float(len(collected))
    result["train/skipped_steps"] = float(trainer.skipped_steps)
    return result


def _take_step(trainer: GRPOTrainer, rows: TrainRows) -> dict[str, float] | None:
    config = trainer.config
    metrics = accumulate_gradients(
        trainer.accelerator,
        trainer.scorer,
        rows,
        config,
        pad_token_id=trainer.tokenizer.pad_token_id,  # pyright: ignore[reportArgumentType]
        terms=trainer.terms,
        limits=trainer.limits,
    )
    if metrics is None:
        return None
    if trainer.first is not None:
        trainer.first.check_step(metrics)
    lr = learning_rate(trainer.step, config)
    before, trainer.stepping = trainer.stepping, True
    metrics["grad_norm"] = apply_gradients(
        trainer.accelerator, trainer.scorer, trainer.optimizer, lr, config.max_grad_norm, metrics["loss"]
    )
    # a step that is not finite is not taken
    trainer.stepping = before or math.isfinite(metrics["grad_norm"])
    metrics["learning_rate"] = lr
    _check_finite(trainer, metrics)
    return metrics


def _check_finite(trainer: GRPOTrainer, metrics: dict[str, float]) -> None:
    if math.isfinite(metrics["grad_norm"]) and math.isfinite(metrics["loss"]):
        return
    trainer.skipped_steps += 1
    logger.warning(
        "update %d: loss %s, gradient norm %s; the step was left out (%d so far)",
        trainer.step + 1,
        metrics["loss"],
        metrics["grad_norm"],
        trainer.skipped_steps,
    )
    if trainer.skipped_steps > trainer.config.max_skipped_steps:
        raise FloatingPointError(
            f"GRPOTrainer: loss and gradient must be finite, got {metrics['loss']} and {metrics['grad_norm']} at "
            f"update {trainer.step + 1}, {trainer.skipped_steps} times in all; the rollouts were saved for inspection"
        )
