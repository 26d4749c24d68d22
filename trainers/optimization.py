"""One optimiser step over rows of turns: global denominators, micro-batches in step on every process, one reduction."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from ..rollout.packing import Pack, pack, pack_rows, waste
from .config import GRPOConfig
from .distributed import agree_max, backward, no_sync, zero_stage
from .losses import loss_coefficients
from .rows import MicroBatchLimits, TrainRows
from .sequence_ratios import LOG_RATIO, with_log_ratios
from .terms import LossTerm, TokenBatch, check_terms, evaluate, objective

logger = logging.getLogger(__name__)

_TAKEN = ("loss", "num_tokens", "grad_norm", "learning_rate", "optimizer_steps", "skipped_steps", "failed_saves")
_TAKEN += ("padding_share", "shared_share")


class MicroBatchTooLarge(RuntimeError):
    """Memory ran out in a micro-batch, here or on another process; nothing was reduced yet."""


@dataclass(frozen=True)
class _Weights:
    """What the tokens of every row weigh, by what a term is averaged over (`LossTerm.over`).

    Args:
        rows: ``[M]`` float32 each.
        denominators: over all processes, one each.
        tokens: active tokens of all processes.
    """

    rows: Mapping[tuple[str, str], Tensor]
    denominators: Mapping[tuple[str, str], float]
    tokens: float


def _weights(accelerator: Any, rows: TrainRows, terms: Sequence[LossTerm], config: GRPOConfig) -> _Weights:
    """Collective."""
    keys = list(dict.fromkeys(term.over(config.loss_type) for term in terms))
    found = [
        loss_coefficients(
            rows.response_mask,
            rows.slot_ids,
            rows.active if taken == "active" else torch.ones_like(rows.active),
            loss_type=average,
            max_completion_length=config.sampling.max_completion_length,
        )
        for average, taken in keys
    ]
    tokens = (rows.response_mask.sum(1) * rows.active).sum()
    local = torch.stack([*(denominator for _, denominator in found), tokens.float()]).double().to(accelerator.device)
    *denominators, total = accelerator.reduce(local, "sum").tolist()
    by_row = {key: weights for key, (weights, _) in zip(keys, found, strict=True)}
    return _Weights(by_row, dict(zip(keys, denominators, strict=True)), total)


@dataclass(frozen=True)
class _Scored:
    """What a forward pass of the scorer gave for one micro-batch; see `PolicyScorer.forward`."""

    logprobs: Tensor
    entropy: Tensor | None
    outputs: Mapping[str, Tensor]

    def nothing(self) -> Tensor:
        """0, with a gradient of 0 for everything that the forward pass took part in."""
        parts = [*self.outputs.values(), *([] if self.entropy is None else [self.entropy])]
        return sum((value[:0].sum() for value in parts), self.logprobs[:0].sum())


def _losses(
    rows: TrainRows, index: Sequence[int], scored: _Scored, terms: Sequence[LossTerm], weights: _Weights, loss_type: str
) -> tuple[dict[tuple[str, str], Tensor], dict[str, Tensor]]:
    """Weighted sums of the terms over one micro-batch, by what they are averaged over, and sums for logging."""
    device = scored.logprobs.device
    at = torch.tensor(index)
    inside = rows.response_mask[at]
    lengths = inside.sum(1)

    def flat(value: Tensor) -> Tensor:
        return (value[at].repeat_interleave(lengths) if value.dim() == 1 else value[at][inside]).to(device)

    batch = TokenBatch(
        scored.logprobs,
        flat(rows.old_logprobs),
        flat(rows.advantages),
        scored.entropy,
        {name: flat(rows.signals[name]) for name in dict.fromkeys(name for term in terms for name in term.reads)},
        scored.outputs,
        torch.arange(len(index)).repeat_interleave(lengths).to(device),
        flat(rows.signals[LOG_RATIO]) if LOG_RATIO in rows.signals else None,
    )
    counted = flat(rows.active.float())
    weight = {key: flat(value) for key, value in weights.rows.items()}
    groups: dict[tuple[str, str], list[tuple[float, Tensor]]] = {}
    sums: dict[str, Tensor] = {}
    for term in terms:
        key = term.over(loss_type)
        loss, metrics = evaluate(term, batch)
        groups.setdefault(key, []).append((term.coef, loss))
        for name, value in metrics.items():
            if name in sums or name in _TAKEN or name.endswith(("_loss", "_denominator")):
                raise ValueError(
                    f"LossTerm: metrics must have names of their own, got {name!r} of {term.name!r}; rename it"
                )
            sums[name] = (value.detach() * counted).sum()
        sums[f"{term.name}_loss"] = term.logged_coef * (loss.detach() * weight[key]).sum()
    totals = {}
    for key, ((coef, loss), *others) in groups.items():
        if others:  # added up token by token, weighed once
            total = coef * loss
            for coef, loss in others:
                total = total + coef * loss
            totals[key] = (total * weight[key]).sum()
        else:
            totals[key] = coef * (loss * weight[key]).sum()
    return totals, sums


def accumulate_gradients(
    accelerator: Any,
    scorer: Any,
    rows: TrainRows,
    config: GRPOConfig,
    *,
    pad_token_id: int,
    terms: Sequence[LossTerm] | None = None,
    limits: MicroBatchLimits | None = None,
    added: bool = False,
    reduces: bool = True,
) -> dict[str, float] | None:
    """Add the gradient of one optimiser step to the parameters, whatever this process holds.

    Rows are cut into as many micro-batches as their lengths ask for. Every process runs the same number of them (short
    ones are filled with a weightless dummy), and gradients are reduced once, in the last. When memory runs out before
    that, all processes drop what they have, halve the micro-batches and begin again, once: the gradient is the same.
    Under ZeRO, whose every backward pass is collective and adds to what DeepSpeed keeps, nothing can begin again.

    Args:
        accelerator, scorer: the policy as `PolicyScorer`, prepared by the accelerator.
        rows: what this process holds, possibly nothing.
        config: the loss type and the sampling.
        pad_token_id: any id.
        terms: the objective; None takes the configuration's (see `.terms.objective`).
        limits: size of the micro-batches, halved in place when memory runs out; None takes the configuration's.
        added: whether the gradient of other rows is there already, which a second beginning would lose: it is refused.
        reduces: whether the gradient is reduced behind these rows; False where others of the same step follow.

    Returns:
        Global means for logging with their denominators (see `.metrics.join_steps`), or None when no process holds a
        row that a term is averaged over (nothing was done).

    Raises:
        TypeError, ValueError: a term that returns something else than one loss per token, or reads what is not there.
        MicroBatchTooLarge: memory ran out again, or with one row, or under ZeRO, or in rows that were added.
    """
    limits = limits or MicroBatchLimits.of(config, accelerator.device.type)
    terms = objective(config) if terms is None else terms
    check_terms(terms, rows.signals, accelerator.unwrap_model(scorer).attached)
    rows = _taken(rows, terms)
    module = accelerator.unwrap_model(scorer)
    if any(term.needs_trajectory_ratio for term in terms):
        rows = with_log_ratios(accelerator, scorer, rows, config, pad_token_id, limits)
    plan = limits.plan(rows, module)
    try:
        return _accumulate(accelerator, scorer, rows, plan, config, pad_token_id, terms, reduces=reduces)
    except MicroBatchTooLarge as error:
        if zero_stage(accelerator) or added:  # ZeRO: no agreement, the others may be inside a collective call
            raise MicroBatchTooLarge(
                f"accumulate_gradients: micro_batch_tokens must leave a micro-batch that fits into memory, got "
                f"{limits.tokens} ({error}); lower it and resume with allow_changed_config"
            ) from error
        sizes = [max((len(p.rows) for p in plan), default=0), max((p.branches for p in plan), default=0)]
        sizes = agree_max(accelerator, sizes)
        scorer.zero_grad(set_to_none=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if not limits.halve(*sizes):
            raise
        logger.warning("%s; the step begins again with micro-batches of at most %s rows", error, limits.rows)
    plan = limits.plan(rows, module)
    return _accumulate(accelerator, scorer, rows, plan, config, pad_token_id, terms, reduces=reduces)


def holds_any(accelerator: Any, rows: TrainRows, terms: Sequence[LossTerm], config: GRPOConfig) -> bool:
    """Whether some process holds a row that a term is averaged over; collective."""
    return any(_weights(accelerator, _taken(rows, terms), terms, config).denominators.values())


def _taken(rows: TrainRows, terms: Sequence[LossTerm]) -> TrainRows:
    """The rows that some term is averaged over."""
    return rows.select(rows.active.nonzero().flatten()) if all(term.rows == "active" for term in terms) else rows


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
    plan: list[Pack],
    config: GRPOConfig,
    pad_token_id: int,
    terms: Sequence[LossTerm],
    *,
    reduces: bool,
) -> dict[str, float] | None:
    weights = _weights(accelerator, rows, terms, config)
    if not any(weights.denominators.values()):
        return None
    packs = [pack(entry, rows.prompts, rows.responses, pad_token_id) for entry in plan]
    module = accelerator.unwrap_model(scorer)
    visits = max((module.chunks_for(len(packed.positions)) for packed in packs), default=1)
    batches, chunks = agree_max(accelerator, [len(plan), visits])
    # with several processes, the reducing micro-batch comes after all work that could run out of memory
    careful = accelerator.num_processes > 1 and not zero_stage(accelerator)
    batches += careful
    processes = accelerator.num_processes
    scale = {key: processes / max(value, 1.0) for key, value in weights.denominators.items()}
    needs_entropy, attached = any(term.needs_entropy for term in terms), tuple(module.attached)
    totals: dict[str, Tensor] = {}
    scorer.train()
    failure: RuntimeError | None = None
    for number in range(batches):
        index = plan[number].rows if number < len(plan) and failure is None else ()
        last = number == batches - 1
        if last and careful and agree_max(accelerator, [int(failure is not None)])[0]:
            raise MicroBatchTooLarge(str(failure or "another process ran out of memory").split("\n")[0])
        try:
            packed = packs[number] if index else pack_rows([(0,)], [(0,)], pad_token_id)
            # the same outputs in every micro-batch: under ZeRO-3 each of them is one more call of all processes
            asked = (config.sampling.temperature or 1.0, needs_entropy, chunks, attached)
            inputs = packed.to(accelerator.device).inputs(*asked)
            with no_sync(accelerator, scorer, last and reduces):
                logprobs, entropy, *outputs = scorer(*inputs, **_teacher_side(accelerator, rows, index, terms, module))
                scored = _Scored(logprobs, entropy, *(outputs or [{}]))
                loss, sums = scored.nothing(), {}
                if index:
                    parts, sums = _losses(rows, index, scored, terms, weights, config.loss_type)
                    for key, part in parts.items():
                        loss = loss + part * scale[key]
                    sums["loss"] = loss.detach() / processes
                backward(accelerator, scorer, loss, last and reduces)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if not careful:
                raise MicroBatchTooLarge(str(error).split("\n")[0]) from error
            failure = error
            continue
        for name, value in sums.items():
            totals[name] = totals.get(name, torch.zeros((), device=accelerator.device)) + value
    return _reduce_metrics(accelerator, totals, weights, terms, config.loss_type) | _reduce_waste(accelerator, plan)


def _teacher_side(
    accelerator: Any, rows: TrainRows, index: Sequence[int], terms: Sequence[LossTerm], module: Any
) -> dict[str, Any]:
    """What a micro-batch hands to the scorer where a term wants the divergence from a teacher."""
    kind = next((term.divergence for term in terms if term.divergence), "")
    if not kind or not (index or zero_stage(accelerator) == 3):
        return {}
    hidden = torch.zeros(1, module.teacher_width(kind))  # a process without a row visits the head along with the others
    if index:
        at = torch.tensor(index)
        hidden = rows.signals["teacher_hidden"][at][rows.response_mask[at]]
    return {"teacher_hidden": hidden.to(accelerator.device), "kind": kind}


def _reduce_metrics(
    accelerator: Any, totals: Mapping[str, Tensor], weights: _Weights, terms: Sequence[LossTerm], loss_type: str
) -> dict[str, float]:
    # a process without rows does not know what the terms report
    names = sorted({name for known in gather_object([list(totals)]) for name in known})
    zero = torch.zeros((), device=accelerator.device)
    summed = accelerator.reduce(torch.stack([totals.get(name, zero).double() for name in names]), "sum").tolist()
    denominators = {f"{term.name}_loss": weights.denominators[term.over(loss_type)] for term in terms}
    divisors = {"loss": 1.0, **denominators}
    metrics = {n: value / max(divisors.get(n, weights.tokens), 1.0) for n, value in zip(names, summed, strict=True)}
    if any(term.auxiliary for term in terms):
        metrics["auxiliary_loss"] = math.fsum(metrics[f"{term.name}_loss"] for term in terms if term.auxiliary)
    metrics["num_tokens"] = weights.tokens
    return metrics | {name.removesuffix("_loss") + "_denominator": value for name, value in denominators.items()}


def _reduce_waste(accelerator: Any, plan: Sequence[Pack]) -> dict[str, float]:
    counts = torch.tensor([[p.size, p.tokens, p.separate] for p in plan], dtype=torch.double).view(-1, 3).sum(0)
    return waste(*accelerator.reduce(counts.to(accelerator.device), "sum").tolist())


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
        group["lr"] = lr * group.get("lr_scale", 1.0)
    if zero_stage(accelerator):
        scorer.step()
        return float(scorer.get_global_grad_norm())
    norm = accelerator.clip_grad_norm_(scorer.parameters(), max_grad_norm)
    value = float(norm) if norm is not None else 0.0
    if math.isfinite(value) and math.isfinite(loss):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return value
