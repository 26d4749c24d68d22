"""AlignOPSD stage 1, part three: blend a turn's own privileged score with those of its sibling sources."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ._checks import check_choice, check_range
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
    identity, cross = teacher_logprobs.detach().to(dtype), cross_logprobs.detach().to(dtype)
    similarity, target = sources.similarity.to(dtype), sources.target
    counts = torch.bincount(target, minlength=rows)
    slots = int(counts.max()) if target.numel() else 0
    rank = torch.arange(target.numel(), device=target.device) - (counts.cumsum(0) - counts)[target]
    table = similarity.new_full((rows, slots), -torch.inf)
    table[target, rank] = similarity / aggregation_temperature
    log_omega = table.log_softmax(dim=1)[target, rank]
    gamma = sources.similarity_threshold
    evidence = log_omega.exp() * ((similarity - gamma) / (1 - gamma)).clamp(0, 1)
    # One slot is added after another, so that the order of summation, and with it the result, is fixed on any device.
    confidence = identity.new_zeros(rows)
    mixed = torch.full_like(identity, -torch.inf) if mixture == "probability" else torch.zeros_like(identity)
    for slot in range(slots):
        pick = rank == slot
        row, weight, scores = target[pick], log_omega[pick, None], cross[pick]
        confidence[row] += evidence[pick]
        if mixture == "probability":
            mixed[row] = torch.logaddexp(mixed[row], weight + scores)
        else:
            mixed[row] += weight.exp() * scores
    confidence = confidence.clamp(0, 1)
    strength = alpha_max * confidence
    blend = torch.lerp(identity, mixed, strength[:, None])
    return Rectification(torch.where(strength[:, None] > 0, blend, identity), confidence, strength, counts)
