"""One optimiser step over rows of turns: global denominators, micro-batches in step on every process, one reduction."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..rollout.scoring import pack_rows
from .config import GRPOConfig
from .distributed import agree_max, backward, no_sync, zero_stage
from .losses import clipped_policy_loss, kl_k3, loss_coefficients, sdar_loss, skill_sd_loss
from .rows import MicroBatchLimits, TrainRows

logger = logging.getLogger(__name__)


class MicroBatchTooLarge(RuntimeError):
    """Memory ran out in a micro-batch, here or on another process; nothing was reduced yet."""


@dataclass(frozen=True)
class AuxiliaryLoss:
    """A distillation term beside the policy gradient.

    Args:
        kind: ``"sdar"`` or ``"skill_sd"``.
        coef: its weight in the loss.
        beta: SDAR's gate; 0 is OPSD's ungated term.
        policy_weight: weight of the policy gradient; 0 leaves the auxiliary term alone (OPSD).
    """

    kind: str
    coef: float
    beta: float = 5.0
    policy_weight: float = 1.0
    teacher: str = "teacher_logprobs"

    @property
    def reads(self):
        return (self.teacher,)

    def __post_init__(self) -> None:
        if self.kind not in ("sdar", "skill_sd"):
            raise ValueError(f'AuxiliaryLoss: kind must be "sdar" or "skill_sd", got {self.kind!r}')


def interim_terms(method):
    from dataclasses import replace

    return replace(method.terms[0], policy_weight=method.policy_weight) if method.terms else None


def _terms(
    rows: TrainRows,
    index: list[int],
    logprobs: Tensor,
    entropy: Tensor | None,
    coefficients: tuple[Tensor, Tensor],
    config: GRPOConfig,
    auxiliary: AuxiliaryLoss | None,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Weighted sums of the policy terms and of the auxiliary term over one micro-batch, and sums for logging."""
    device = logprobs.device
    at = torch.tensor(index)
    inside = rows.response_mask[at]
    lengths = inside.sum(1)

    def flat(value: Tensor) -> Tensor:
        return value[at][inside].to(device)

    def per_token(value: Tensor) -> Tensor:
        return value[at].repeat_interleave(lengths).to(device)

    weight = per_token(coefficients[0])
    counted = per_token(rows.active.float())
    old = flat(rows.old_logprobs)
    policy = clipped_policy_loss(
        logprobs,
        old,
        flat(rows.advantages),
        epsilon=config.epsilon,
        epsilon_high=config.epsilon_high,
        delta=config.delta,
    )
    per_token_loss = policy.loss * (auxiliary.policy_weight if auxiliary else 1.0)
    log_ratio = (logprobs.detach() - old) * counted
    sums: dict[str, Tensor] = {
        "ratio": (policy.ratio * counted).sum(),
        "log_ratio_abs": log_ratio.abs().sum(),
        "clip_low": (policy.clipped_low * counted).sum(),
        "clip_high": (policy.clipped_high * counted).sum(),
        "clip_dual": (policy.clipped_dual * counted).sum(),
        "policy_loss": (policy.loss.detach() * weight).sum(),
    }
    if rows.ref_logprobs is not None:
        kl = kl_k3(logprobs, flat(rows.ref_logprobs))
        per_token_loss = per_token_loss + config.beta * kl
        sums["kl"] = (kl.detach() * counted).sum()
    if entropy is not None:
        per_token_loss = per_token_loss - config.entropy_coef * entropy
        sums["entropy"] = (entropy.detach() * counted).sum()
    main = (per_token_loss * weight).sum()
    extra = logprobs.sum() * 0.0
    if auxiliary is not None:
        assert rows.teacher_logprobs is not None
        teacher = flat(rows.teacher_logprobs)
        if auxiliary.kind == "sdar":
            term = sdar_loss(logprobs, teacher, old, beta=auxiliary.beta)
        else:
            term = skill_sd_loss(logprobs, teacher, old)
        extra = auxiliary.coef * (term * per_token(coefficients[1])).sum()
        sums["auxiliary_loss"] = extra.detach()
    return main, extra, sums


def _token_mean_coefficients(rows: TrainRows, auxiliary: AuxiliaryLoss | None) -> tuple[Tensor, Tensor]:
    everything = torch.ones_like(rows.active) if auxiliary else torch.zeros_like(rows.active)
    return loss_coefficients(rows.response_mask, rows.trajectory_ids, everything, loss_type="token-mean")


def accumulate_gradients(
    accelerator: Any,
    scorer: Any,
    rows: TrainRows,
    config: GRPOConfig,
    *,
    pad_token_id: int,
    auxiliary: AuxiliaryLoss | None = None,
    limits: MicroBatchLimits | None = None,
) -> dict[str, float] | None:
    """Add the gradient of one optimiser step to the parameters, whatever this process holds.

    Rows are cut into as many micro-batches as their lengths ask for. Every process runs the same number of them (short
    ones are filled with a weightless dummy), and gradients are reduced once, in the last. When memory runs out before
    that, all processes drop what they have, halve the micro-batches and begin again, once: the gradient is the same.
    Under ZeRO, whose every backward pass is collective and adds to what DeepSpeed keeps, nothing can begin again.

    Args:
        accelerator, scorer: the policy as `PolicyScorer`, prepared by the accelerator.
        rows: what this process holds, possibly nothing.
        config: the objective.
        pad_token_id: any id.
        auxiliary: a distillation term.
        limits: size of the micro-batches, halved in place when memory runs out; None takes the configuration's.

    Returns:
        Global means for logging with their denominators (see `.metrics.join_steps`), or None when no process holds an
        active row (nothing was done).

    Raises:
        MicroBatchTooLarge: memory ran out again, or with one row, or under ZeRO.
    """
    limits = limits or MicroBatchLimits.of(config)
    if auxiliary is None:
        rows = rows.select(rows.active.nonzero().flatten())
    plan = limits.plan(rows)
    try:
        return _accumulate(accelerator, scorer, rows, plan, config, pad_token_id, auxiliary)
    except MicroBatchTooLarge as error:
        if zero_stage(accelerator):  # no agreement: the others may be inside a collective call of their own
            raise MicroBatchTooLarge(
                f"accumulate_gradients: micro_batch_tokens must leave a micro-batch that fits into memory, got "
                f"{limits.tokens} ({error}); lower it and resume with allow_changed_config"
            ) from error
        largest = agree_max(accelerator, [max(map(len, plan), default=0)])[0]
        scorer.zero_grad(set_to_none=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if not limits.halve(largest):
            raise
        logger.warning("%s; the step begins again with micro-batches of at most %s rows", error, limits.rows)
    return _accumulate(accelerator, scorer, rows, limits.plan(rows), config, pad_token_id, auxiliary)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that a device or the machine has no memory left."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
    )


def _accumulate(
    accelerator: Any,
    scorer: Any,
    rows: TrainRows,
    plan: list[list[int]],
    config: GRPOConfig,
    pad_token_id: int,
    auxiliary: AuxiliaryLoss | None,
) -> dict[str, float] | None:
    policy_coef, denominator = loss_coefficients(
        rows.response_mask,
        rows.trajectory_ids,
        rows.active,
        loss_type=config.loss_type,
        max_completion_length=config.sampling.max_completion_length,
    )
    aux_coef, aux_denominator = _token_mean_coefficients(rows, auxiliary)
    tokens = (rows.response_mask.sum(1) * rows.active).sum()
    local = torch.stack([denominator, aux_denominator, tokens.float()]).double().to(accelerator.device)
    denominators = accelerator.reduce(local, "sum")
    if float(denominators[:2].sum()) == 0:
        return None
    tokens_of = [sum(len(rows.responses[i]) for i in index) for index in plan]
    module = accelerator.unwrap_model(scorer)
    batches, chunks = agree_max(accelerator, [len(plan), max(map(module.chunks_for, tokens_of), default=1)])
    # with several processes, the reducing micro-batch comes after all work that could run out of memory
    careful = accelerator.num_processes > 1 and not zero_stage(accelerator)
    batches += careful
    scale = accelerator.num_processes / denominators[:2].clamp(min=1)
    totals: dict[str, Tensor] = {}
    scorer.train()
    failure: RuntimeError | None = None
    for number in range(batches):
        index = plan[number] if number < len(plan) and failure is None else []
        prompts, responses = ([rows.prompts[i] for i in index], [rows.responses[i] for i in index])
        last = number == batches - 1
        if last and careful and agree_max(accelerator, [int(failure is not None)])[0]:
            raise MicroBatchTooLarge(str(failure or "another process ran out of memory").split("\n")[0])
        try:
            packed = pack_rows(prompts or [(0,)], responses or [(0,)], pad_token_id, accelerator.device)
            with no_sync(accelerator, scorer, last):
                logprobs, entropy = scorer(
                    packed.input_ids,
                    packed.positions,
                    packed.targets,
                    config.sampling.temperature or 1.0,
                    bool(index) and config.entropy_coef > 0,
                    chunks,
                )
                loss, sums = logprobs.sum() * 0.0, {}
                if index:
                    coefficients = (policy_coef, aux_coef)
                    main, extra, sums = _terms(rows, index, logprobs, entropy, coefficients, config, auxiliary)
                    loss = main * scale[0].float() + extra * scale[1].float()
                    sums["loss"] = loss.detach() / accelerator.num_processes
                backward(accelerator, scorer, loss, last)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if not careful:
                raise MicroBatchTooLarge(str(error).split("\n")[0]) from error
            failure = error
            continue
        for name, value in sums.items():
            totals[name] = totals.get(name, torch.zeros((), device=accelerator.device)) + value
    return _reduce_metrics(accelerator, totals, denominators, config, auxiliary)


def _reduce_metrics(
    accelerator: Any,
    totals: Mapping[str, Tensor],
    denominators: Tensor,
    config: GRPOConfig,
    auxiliary: AuxiliaryLoss | None,
) -> dict[str, float]:
    names = ["ratio", "log_ratio_abs", "clip_low", "clip_high", "clip_dual", "policy_loss", "loss"]
    names += ["kl"] * (config.beta > 0) + ["entropy"] * (config.entropy_coef > 0)
    names += ["auxiliary_loss"] * (auxiliary is not None)
    zero = torch.zeros((), device=accelerator.device)
    summed = accelerator.reduce(torch.stack([totals.get(name, zero).double() for name in names]), "sum").tolist()
    by_token = max(float(denominators[2]), 1.0)
    divisors = {
        "policy_loss": max(float(denominators[0]), 1.0),
        "auxiliary_loss": max(float(denominators[1]), 1.0),
        "loss": 1.0,
    }
    metrics = {name: value / divisors.get(name, by_token) for name, value in zip(names, summed, strict=True)}
    metrics["num_tokens"] = float(denominators[2])
    metrics["policy_denominator"], metrics["auxiliary_denominator"] = denominators[:2].tolist()
    return metrics


def learning_rate(step: int, config: GRPOConfig) -> float:
    """Learning rate of optimiser update `step` (0-based): linear warm-up, then constant, linear or cosine to 0.

    A pure function of the step, so that resuming needs no scheduler state.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.lr_scheduler_type == "constant":
        return config.learning_rate
    progress = (step - config.warmup_steps) / max(config.max_steps - config.warmup_steps, 1)
    if config.lr_scheduler_type == "linear":
        return config.learning_rate * max(1.0 - progress, 0.0)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def apply_gradients(
    accelerator: Any, scorer: Any, optimizer: Any, lr: float, max_grad_norm: float, loss: float = 0.0
) -> float:
    """Clip, step and clear, or only clear where the gradient or the `loss` is not finite (DeepSpeed: the gradient).

    Returns:
        The gradient norm before clipping, over all processes.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr
    if zero_stage(accelerator):
        scorer.step()
        return float(scorer.get_global_grad_norm())
    norm = accelerator.clip_grad_norm_(scorer.parameters(), max_grad_norm)
    value = float(norm) if norm is not None else 0.0
    if math.isfinite(value) and math.isfinite(loss):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return value
