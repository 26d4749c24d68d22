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
    from .terms import LossTerm

logger = logging.getLogger(__name__)


def optimise(trainer: GRPOTrainer, rows: TrainRows) -> dict[str, float]:
    """One or more epochs of minibatches; trajectories stay whole, every process takes the same steps.

    Raises:
        FloatingPointError: see `GRPOTrainer.train`.
    """
    config = trainer.config
    collected: list[dict[str, float]] = []
    slots = config.num_tasks * config.num_generations
    extra = trainer.run.extra
    for iteration in range(config.num_iterations):
        # over the slots of the whole update, so that a minibatch is the same however tasks are spread
        order = np.random.default_rng([config.seed, trainer.step, iteration]).permutation(slots)
        for part in range(config.num_minibatches):
            wanted = torch.from_numpy(order[part :: config.num_minibatches])
            chosen = torch.isin(rows.slot_ids, wanted).nonzero().flatten()
            beside = [(one.select(torch.isin(one.slot_ids, wanted).nonzero().flatten()), t) for one, t in extra]
            metrics = _take_step(trainer, rows.select(chosen), beside)
            if metrics is not None:
                collected.append(metrics)
    own = [term.name for term in (*trainer.terms, *(term for _, terms in extra for term in terms)) if term.auxiliary]
    result = {f"train/{name}": value for name, value in join_steps(collected, own).items()}
    result["train/optimizer_steps"] = float(len(collected))
    result["train/skipped_steps"] = float(trainer.skipped_steps)
    return result


def _take_step(
    trainer: GRPOTrainer, rows: TrainRows, beside: list[tuple[TrainRows, tuple[LossTerm, ...]]]
) -> dict[str, float] | None:
    config = trainer.config
    found = [
        accumulate_gradients(
            trainer.accelerator,
            trainer.scorer,
            part,
            config,
            pad_token_id=trainer.tokenizer.pad_token_id,  # pyright: ignore[reportArgumentType]
            terms=terms,
            limits=trainer.limits,
            added=number > 0,
        )
        for number, (part, terms) in enumerate(((rows, trainer.terms), *beside))
    ]
    if all(one is None for one in found):
        return None
    metrics, *others = (one or {} for one in found)
    names = {f"{term.name}{kind}" for _, terms in beside for term in terms for kind in ("_loss", "_denominator")}
    metrics |= {name: value for other in others for name, value in other.items() if name in names}
    metrics["loss"] = sum(one["loss"] for one in found if one is not None)
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
