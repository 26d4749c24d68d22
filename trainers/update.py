"""The optimiser steps of one update: epochs and minibatches of whole trajectories, the same on every process."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from .metrics import join_steps
from .optimization import accumulate_gradients, apply_gradients, holds_any, learning_rate
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
    metrics = _gradients(trainer, [(rows, trainer.terms), *beside])
    if metrics is None:
        return None
    if trainer.first is not None and "log_ratio_abs" in metrics:
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


def _gradients(trainer: GRPOTrainer, parts: Sequence[tuple[TrainRows, Sequence[LossTerm]]]) -> dict[str, float] | None:
    """Accumulate the gradient of the batch's rows and of those beside it, reduced once, behind the last that are there.

    Whether rows are there is asked of all processes before anything is computed: under ZeRO the last backward pass of a
    step has to be known. Of rows beside the batch's, only the losses and their denominators are told.
    """
    accelerator, config = trainer.accelerator, trainer.config
    held = [
        number
        for number, (rows, terms) in enumerate(parts)
        if len(parts) == 1 or holds_any(accelerator, rows, terms, config)
    ]
    metrics, loss = {"num_tokens": 0.0}, 0.0
    for number in held:
        rows, terms = parts[number]
        found = accumulate_gradients(
            accelerator,
            trainer.scorer,
            rows,
            config,
            pad_token_id=trainer.tokenizer.pad_token_id,  # pyright: ignore[reportArgumentType]
            terms=terms,
            limits=trainer.limits,
            added=number != held[0],
            reduces=number == held[-1],
        )
        if found is None:
            return None
        names = {f"{term.name}{kind}" for term in terms for kind in ("_loss", "_denominator")}
        metrics |= {name: value for name, value in found.items() if number == 0 or name in names}
        loss += found["loss"]
    return {**metrics, "loss": loss} if held else None


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
