"""AlignOPSD stage 1, part two: pick the few sibling turns whose privileged context may score a turn, and blend its own
score with theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..checks import check_bool, check_choice, check_range, check_shape, suspect_rows
from ..tokens import row_blocks

if TYPE_CHECKING:
    from ..inputs import CreditInputs
    from .correspondence import Correspondence, TaskBlock

MIXTURES = ("probability", "log_mean")


@dataclass(frozen=True)
class Sources:
    """Selected (source, target) pairs, ordered by target row and, for one target, best first.

    Args:
        source: ``[P]`` int64, the batch row whose privileged context scores the target's response.
        target: ``[P]`` int64, the batch row that is scored.
        similarity: ``[P]`` float, their cosine.
        similarity_threshold: the gamma_H they were selected with.
        top_k: the largest number of sources of a target.

    Raises:
        ValueError: the three tensors differ in length, or the targets are not in ascending order.
    """

    source: Tensor
    target: Tensor
    similarity: Tensor
    similarity_threshold: float
    top_k: int

    def __post_init__(self) -> None:
        for name in ("target", "similarity"):
            check_shape("Sources", name, getattr(self, name), tuple(self.source.shape))
        if bool((self.target.diff() < 0).any()):
            raise ValueError(
                f"Sources: target must be in ascending order, got {self.target[:8].tolist()} ..; sort by it"
            )

    def keep(self, mask: Tensor) -> Sources:
        """Return the pairs where ``mask [P]`` (bool) is True: an action filter's verdict, say.

        A dropped pair is not replaced by the next best one.

        Raises:
            ValueError: ``mask`` is not a bool tensor of shape [P].
        """
        check_shape("Sources.keep", "mask", mask, (self.source.numel(),))
        check_bool("Sources.keep", "mask", mask)
        return replace(self, source=self.source[mask], target=self.target[mask], similarity=self.similarity[mask])

    def to(self, device: torch.device | str) -> Sources:
        """The same pairs with every tensor on ``device``."""
        return replace(
            self, source=self.source.to(device), target=self.target.to(device), similarity=self.similarity.to(device)
        )


def select_sources(correspondence: Correspondence, *, similarity_threshold: float = 0.8, top_k: int = 3) -> Sources:
    """Pick, for every turn, the sibling turns whose privileged context may score it.

    ``sources(u) = {v eligible, H[v, u] >= gamma_H}``, at most the best of each sibling rollout, then the K best.
    Ties: the smaller (rollout, turn) wins.

    Source: AlignOPSD, docs/equations.md#correspondence, Eq. (13).

    Args:
        correspondence: blocks per task.
        similarity_threshold: gamma_H in [-1, 1).
        top_k: K >= 1.

    Returns:
        Sources: P pairs ordered by target row, best first; P may be 0.

    Raises:
        ValueError: an option is out of range.
    """
    check_selection("select_sources", similarity_threshold, top_k)
    parts = [_select_in_block(block, similarity_threshold, top_k) for block in correspondence.blocks]
    if not parts:
        empty = torch.empty(0, dtype=torch.long)
        return Sources(empty, empty, torch.empty(0), similarity_threshold, top_k)
    source, target, similarity = (torch.cat(column) for column in zip(*parts, strict=True))
    order = target.argsort(stable=True)
    return Sources(source[order], target[order], similarity[order], similarity_threshold, top_k)


def action_similarity(sources: Sources, teacher_actions: Tensor, student_actions: Tensor) -> Tensor:
    """Cosine of the teacher's action at the source and the student's action at the target of each pair.

    The published filter keeps a pair where it is at least 0.80:
    ``sources.keep(action_similarity(sources, teacher, student) >= 0.80)``.

    Args:
        sources: P pairs.
        teacher_actions: ``[M, D]`` float, embedding of the teacher's action at each row.
        student_actions: ``[M, D]`` float, embedding of the student's action at each row.

    Returns:
        ``[P]`` float in [-1, 1]; a zero embedding has cosine 0.

    Raises:
        ValueError: the two shapes differ.
    """
    if teacher_actions.ndim != 2 or teacher_actions.shape != student_actions.shape:
        raise ValueError(
            f"action_similarity: student_actions must have the shape of teacher_actions {tuple(teacher_actions.shape)}"
            f", got {tuple(student_actions.shape)}; embed the actions of every row, [M, D]"
        )
    teacher, student = teacher_actions[sources.source], student_actions[sources.target]
    return torch.nn.functional.cosine_similarity(teacher.detach().float(), student.detach().float(), dim=-1)


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

    Source: AlignOPSD, docs/equations.md#rectification, Eq. (14) to (17).

    Args:
        teacher_logprobs: ``[M, T]`` float, the identity score: each row's tokens under its own privileged context.
        sources: P pairs from :func:`select_sources`.
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


def check_selection(function: str, similarity_threshold: float, top_k: int) -> None:
    """Raise ValueError unless -1 <= similarity_threshold < 1 and top_k >= 1."""
    if not -1 <= similarity_threshold < 1:
        raise ValueError(
            f"{function}: similarity_threshold must lie in [-1, 1), got {similarity_threshold}; the paper uses 0.8"
        )
    if isinstance(top_k, bool) or top_k < 1 or top_k != int(top_k):
        raise ValueError(f"{function}: top_k must be a whole number >= 1, got {top_k}; the paper uses 3")


def check_pairs(where: str, sources: Sources, scores: Tensor, inputs: CreditInputs) -> None:
    """Raise ValueError unless pairs and their scores fit the batch, and scores are finite on sampled tokens."""
    mask = inputs.response_mask
    if scores.device != mask.device or sources.target.device != mask.device:
        raise ValueError(
            f"{where}: cross_logprobs must be on the device of the batch ({mask.device}), got {scores.device}; "
            f"call correspondence.to('{mask.device}')"
        )
    if scores.shape[1] != mask.shape[1]:
        raise ValueError(
            f"{where}: cross_logprobs must be [P, T] with T = {mask.shape[1]}, got T = {scores.shape[1]}; "
            "pad them like the responses"
        )
    if not sources.target.numel():
        return
    for name in ("source", "target"):
        index = getattr(sources, name)
        if int(index.min()) < 0 or int(index.max()) >= inputs.num_rows:
            raise ValueError(
                f"{where}: sources.{name} must index the {inputs.num_rows} rows of this batch, got {int(index.min())} "
                f".. {int(index.max())}; select sources from this batch's correspondence"
            )
    sampled = mask[sources.target]
    suspects = suspect_rows(scores, sampled)
    bad = ~scores[suspects].isfinite() & sampled[suspects]
    if bool(bad.any()):
        pair, token = bad.nonzero()[0].tolist()
        pair = int(suspects[pair])
        raise ValueError(
            f"{where}: cross_logprobs must be finite on the sampled tokens of the target, got "
            f"{float(scores[pair, token])} in pair {pair}, token {token}; check the scoring pass"
        )


def _select_in_block(block: TaskBlock, threshold: float, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    m, device = block.rows.numel(), block.rows.device
    _, sibling = block.trajectory_ids.unique_consecutive(return_inverse=True)
    siblings = int(sibling[-1]) + 1 if m else 0
    score = block.similarity.masked_fill(~block.eligible | (block.similarity < threshold), -torch.inf)
    to_sibling = sibling[:, None].expand(m, m)
    best = score.new_full((siblings, m), -torch.inf).scatter_reduce(0, to_sibling, score, "amax")
    is_best = (score == best[sibling]) & (score > -torch.inf)
    place = torch.where(is_best, torch.arange(m, device=device)[:, None], m)
    first = place.new_full((siblings, m), m).scatter_reduce(0, to_sibling, place, "amin")
    ranked, by_rank = best.sort(dim=0, descending=True, stable=True)
    first, ranked = first.gather(0, by_rank)[:top_k].T, ranked[:top_k].T
    target, rank = (ranked > -torch.inf).nonzero(as_tuple=True)
    return block.rows[first[target, rank]], block.rows[target], ranked[target, rank]


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
