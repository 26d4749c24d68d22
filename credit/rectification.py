"""AlignOPSD stage 1, part three: blend a turn's own privileged score with those of its sibling sources."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ._checks import check_choice, check_range
from ._masks import row_blocks
from .sources import Sources

MIXTURES = ("probability", "log_mean")


@dataclass(frozen=True)
class Rectification:
    """Rectified privileged scores.

    Args:
        logprobs: ``[M, T]`` float, nats; a row without a source holds its identity score unchanged.
        confidence: ``[M]`` float in [0, 1], rho; 0 without a source.
        strength: ``[M]`` float in [0, alpha_max], alpha = alpha_max * rho.
        source_counts: ``[M]`` int64, sources of each row.
    """

    logprobs: Tensor
    confidence: Tensor
    strength: Tensor
    source_counts: Tensor


def identity_rectification(teacher_logprobs: Tensor) -> Rectification:
    """No rectification: ``[M, T]`` identity scores as they are, no source, confidence and strength 0."""
    zeros = teacher_logprobs.new_zeros(teacher_logprobs.shape[0])
    return Rectification(teacher_logprobs.detach(), zeros, zeros, zeros.long())


def rectify(
    teacher_logprobs: Tensor,
    sources: Sources,
    cross_logprobs: Tensor,
    *,
    aggregation_temperature: float = 0.1,
    alpha_max: float = 0.8,
    mixture: str = "probability",
) -> Rectification:
    """Blend identity and cross scores in log space, by the confidence of the correspondence.

    ``omega_v = softmax_v(H[v, u] / T_agg)``;
    ``cross = log sum_v omega_v pi_v`` (``"probability"``) or ``sum_v omega_v log pi_v`` (``"log_mean"``);
    ``rho = sum_v omega_v clip((H[v, u] - gamma_H) / (1 - gamma_H), 0, 1)``; ``alpha = alpha_max rho``;
    ``rectified = (1 - alpha) teacher + alpha cross``. gamma_H is the threshold the sources were selected with.

    Source: AlignOPSD, stage 1 (METHODS.md section 2.1).

    Args:
        teacher_logprobs: ``[M, T]`` float, the identity score: each row's tokens under its own privileged context.
        sources: P pairs from :func:`~turncredit.credit.sources.select_sources`.
        cross_logprobs: ``[P, T]`` float, the target's tokens under the source's privileged context, in the order of
            the pairs.
        aggregation_temperature: T_agg > 0.
        alpha_max: the largest strength, in [0, 1]; 0 is the identity.
        mixture: ``"probability"`` or ``"log_mean"``.

    Returns:
        Rectification in float32 (float64 for float64 scores), detached. Padding stays in padding: no token reads
        another.

    Raises:
        ValueError: an option is out of range or a shape does not fit.
    """
    where = "rectify"
    check_range(where, "aggregation_temperature", aggregation_temperature, 0, float("inf"), "()")
    check_range(where, "alpha_max", alpha_max, 0, 1)
    check_choice(where, "mixture", mixture, MIXTURES)
    rows, tokens = teacher_logprobs.shape
    if tuple(cross_logprobs.shape) != (sources.source.numel(), tokens):
        raise ValueError(
            f"{where}: cross_logprobs must be [P, T] = {[sources.source.numel(), tokens]}, got "
            f"{list(cross_logprobs.shape)}; score every pair of sources, padded like the responses"
        )
    dtype = torch.promote_types(teacher_logprobs.dtype, torch.float32)
    pairs, log_omega, counts = _source_table(sources, rows, aggregation_temperature, dtype)
    gamma = sources.similarity_threshold
    reach = ((sources.similarity.to(dtype) - gamma) / (1 - gamma)).clamp(0, 1)
    if not pairs.numel():
        zeros = reach.new_zeros(rows)
        return Rectification(teacher_logprobs.detach().to(dtype), zeros, zeros, counts)
    confidence = (log_omega.exp() * reach[pairs]).sum(dim=1).clamp(0, 1)
    strength = alpha_max * confidence
    out = teacher_logprobs.detach().to(dtype, copy=True)
    for block in row_blocks(teacher_logprobs):
        scores, weight = cross_logprobs.detach()[pairs[block]].to(dtype), log_omega[block, :, None]
        likely = mixture == "probability"
        mixed = (scores + weight).logsumexp(dim=1) if likely else (scores * weight.exp()).sum(dim=1)
        alpha = strength[block, None]
        out[block] = torch.where(alpha > 0, torch.lerp(out[block], mixed, alpha), out[block])
    return Rectification(out, confidence, strength, counts)


def _source_table(sources: Sources, rows: int, temperature: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of each row ``[M, K]``, their log-weights ``[M, K]`` and the number of pairs ``[M]``.

    A free place repeats the row's first pair (any pair, for a row without one) with weight 0.
    """
    target = sources.target
    counts = torch.bincount(target, minlength=rows)
    first = counts.cumsum(0) - counts
    place = torch.arange(target.numel(), device=target.device) - first[target]
    slots = int(counts.max()) if target.numel() else 0
    pairs = first.clamp(max=max(target.numel() - 1, 0))[:, None].repeat(1, slots)
    pairs[target, place] = torch.arange(target.numel(), device=target.device)
    logits = torch.full((rows, slots), -torch.inf, dtype=dtype, device=target.device)
    logits[target, place] = sources.similarity.to(dtype) / temperature
    log_omega = torch.where(counts[:, None] > 0, logits.log_softmax(dim=1), -torch.inf)
    return pairs, log_omega, counts
