"""AlignOPSD: supervision from sibling decisions, and credit shared among spans of turns (arXiv 2609.33391)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..checks import check_choice, check_range
from ..groups import faded, group_metrics, trajectory_advantages
from ..inputs import Credit, CreditInputs
from ..invalid_action import invalid_action_residual
from ..registry import register_credit
from ..segments import segment_mean, wide
from ..tokens import spread, whole_groups
from .allocation import Allocation, allocate
from .profiles import Divergence, boundary_threshold, profile_divergence
from .rectification import Sources, identity_rectification, rectify
from .report import Findings
from .spans import check_span_lengths, check_spans, random_spans, segment_spans

SPAN_MODES = ("semantic", "random", "turn", "token")


@dataclass(frozen=True)
class AlignProfile:
    """Published settings of one benchmark and model size; the last two concern the trainer, not the credit.

    Args:
        similarity_threshold: gamma_H.
        top_k: K, sources of a turn.
        credit_temperature: T_c.
        normalization_scope: what the group statistics count once.
        mixture: how several sources are combined.
        auxiliary_sdar: add the SDAR loss (coefficient 0.01, beta 5).
        action_filter: drop selected pairs whose actions disagree (cosine below 0.80; WebShop also compares verb and
            click target).
    """

    similarity_threshold: float
    top_k: int
    credit_temperature: float
    normalization_scope: str = "turn"
    mixture: str = "probability"
    auxiliary_sdar: bool = False
    action_filter: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The settings that :func:`align_opsd` takes."""
        names = ("similarity_threshold", "top_k", "credit_temperature", "normalization_scope", "mixture")
        return {name: getattr(self, name) for name in names}


ALIGN_PROFILES = {
    "align_opsd_alfworld_3b": AlignProfile(0.65, 2, 0.5, auxiliary_sdar=True, action_filter=True),
    "align_opsd_alfworld_7b": AlignProfile(0.80, 3, 0.5),
    "align_opsd_search_3b": AlignProfile(0.70, 3, 1.0, normalization_scope="trajectory", mixture="log_mean"),
    "align_opsd_search_7b": AlignProfile(0.70, 3, 0.5),
    "align_opsd_webshop_3b": AlignProfile(0.80, 3, 0.2, action_filter=True),
    "align_opsd_webshop_7b": AlignProfile(0.80, 2, 0.5),
}
_PRESETS = {
    "align_opsd_no_rectification": {"alpha_max": 0.0},
    "align_opsd_token": {"spans": "token"},
    "align_opsd_turn": {"spans": "turn"},
    "align_opsd_random": {"spans": "random"},
    "align_opsd_bounded": {"density_min": 0.8, "density_max": 1.2},
    **{name: profile.options for name, profile in ALIGN_PROFILES.items()},
}


def _reads_profiles(spans: str | Tensor, random_candidates: str) -> bool:
    return isinstance(spans, str) and (spans == "semantic" or (spans == "random" and random_candidates == "semantic"))


def _requires(options: Mapping[str, Any]) -> Iterable[str]:
    yield "teacher_logprobs"
    if options["alpha_max"] > 0 or _reads_profiles(options["spans"], options["random_candidates"]):
        yield "correspondence"


@register_credit("align_opsd", requires=_requires, presets=_PRESETS, adds_invalid_penalty=True)
def align_opsd(
    inputs: CreditInputs,
    *,
    similarity_threshold: float = 0.8,
    top_k: int = 3,
    aggregation_temperature: float = 0.1,
    alpha_max: float = 0.8,
    mixture: str = "probability",
    profile_temperature: float = 0.1,
    distance: str = "jensen_shannon",
    boundary_quantile: float = 0.8,
    boundary_low: float = 0.01,
    boundary_high: float = 0.10,
    threshold: float | None = None,
    spans: str | Tensor = "semantic",
    random_candidates: str = "all",
    seed: int = 0,
    min_span: int = 2,
    max_span: int = 8,
    credit_temperature: float = 0.5,
    mix: float = 0.5,
    density_min: float = 0.0,
    density_max: float = 4.0,
    invalid_penalty: float = 0.1,
    invalid_normalization: str = "bounded",
    scale_rewards: bool = True,
    normalization_scope: str = "trajectory",
    eps: float = 1e-4,
    outcome_discount: float = 1.0,
) -> Credit:
    """Rectify the privileged scores, cut trajectories into spans, and share the outcome's credit among their turns.

    ``g_k`` = mean of (rectified - student) over the tokens of turn k; ``score_k = sign(A_i) g_k``;
    ``x`` = projected hierarchical density; ``A~_k = A_i ((1 - mu) + mu x_k)`` plus the invalid-action residual.
    Per trajectory ``sum_k n_k w_k = sum_k n_k``.

    Source: AlignOPSD, docs/equations.md#alignopsd, every default the paper's. The pieces can be used alone:
    :func:`rectify`, :func:`profile_divergence`, :func:`boundary_threshold`, :func:`segment_spans`,
    :func:`random_spans`, :func:`allocate`, :func:`invalid_action_residual`.

    Args:
        inputs: a batch with ``teacher_logprobs`` and, unless ``alpha_max = 0`` and the spans need none, a
            ``correspondence`` with the sources selected and scored.
        similarity_threshold: gamma_H; must be the one the sources were selected with.
        top_k: K; likewise.
        aggregation_temperature: T_agg of the weights of several sources.
        alpha_max: strength of rectification; 0 leaves it out.
        mixture: ``"probability"`` or ``"log_mean"``.
        profile_temperature: T_prof of the dense profiles.
        distance: ``"jensen_shannon"``, ``"entropy"`` or ``"cosine"``.
        boundary_quantile: quantile of the defined divergences that marks boundaries.
        boundary_low: lower clip of that threshold, and the smallest D that attracts the cut of an over-long span.
        boundary_high: upper clip of that threshold.
        threshold: the threshold itself, where several processes agreed on one; None computes it from this batch.
        spans: ``"semantic"``; ``"random"`` positions; ``"turn"``: one softmax over the turns of a trajectory;
            ``"token"``: one over its tokens, the density being the weight itself; or ``[M]`` int64 of one's own.
        random_candidates: for random spans, ``"all"`` turns or only the ``"semantic"`` candidates in random order.
        seed: of the random spans.
        min_span: L_min turns.
        max_span: L_max turns, at least 2 L_min - 1.
        credit_temperature: T_c.
        mix: mu.
        density_min: smallest density, ``1 - b`` in the bounded variant.
        density_max: largest density, x_max or ``1 + b``.
        invalid_penalty: coefficient of the residual; read only where ``inputs.valid_actions`` is given.
        invalid_normalization: ``"bounded"`` or the ``"paper"``'s, see :func:`invalid_action_residual`.
        scale_rewards: as in :func:`group_relative_advantages`.
        normalization_scope: likewise.
        eps: likewise.
        outcome_discount: in (0, 1], fades every return, see :func:`~turncredit.credit.groups.faded`.

    Returns:
        Credit. ``turn_weights`` hold w without the residual. Details, ``[M]`` unless said otherwise: ``spans``,
        ``span_budgets`` (beta), ``density`` and ``raw_density`` (x after and before projection), ``turn_gaps`` (g),
        ``rectified_gap`` ``[M, T]``, ``confidence`` (rho), ``strength`` (alpha), ``source_counts``, where they exist
        ``divergence``, ``divergence_defined`` and ``invalid_residual``; for ``"token"`` ``density`` and
        ``raw_density`` are means over the turn. Metrics:

        - ``source_share`` turns with a source / M; ``sources_per_turn`` P / M; ``mean_confidence``, ``mean_strength``
          over all turns;
        - ``mean_gap`` sum of the rectified gap / tokens; ``mean_shift`` sum of |rectified - identity| / tokens;
        - ``boundary_threshold``; ``divergence_defined_share`` defined D / turns that have a predecessor;
          ``mean_divergence`` over the defined; ``turns_per_span`` M / spans; ``spans_per_trajectory``;
        - ``capped_share``, ``floored_share`` elements with x at density_max, at density_min / elements;
          ``weight_std`` over turns; ``budget_error`` max_i |sum n w - N| / N;
        - ``invalid_action_share`` invalid turns / M; ``invalid_residual_mean_abs``, ``invalid_residual_max_abs`` over
          turns; and those of :func:`~turncredit.credit.groups.group_metrics`.

    Raises:
        ValueError: a field is missing, an option is out of range, or correspondence and batch do not belong together.
    """
    where = "align_opsd"
    check_choice(where, "spans", spans if isinstance(spans, str) else "semantic", SPAN_MODES)
    check_choice(where, "random_candidates", random_candidates, ("all", "semantic"))
    check_span_lengths(where, min_span, max_span)
    check_range(where, "alpha_max", alpha_max, 0, 1)
    assert inputs.teacher_logprobs is not None  # required by the registration
    mask, counts = inputs.response_mask, inputs.token_counts
    teacher, student = (x.detach().to(inputs.dtype) for x in (inputs.teacher_logprobs, inputs.student_logprobs))

    rectification, shifts = identity_rectification(teacher), teacher.new_zeros(len(mask), dtype=wide(mask.device))
    if alpha_max > 0:
        sources, scores = _scored_pairs(inputs, similarity_threshold, top_k)
        blend = {"aggregation_temperature": aggregation_temperature, "alpha_max": alpha_max, "mixture": mixture}
        rectification = rectify(teacher, sources, scores, **blend)
        shifts = spread(rectification.logprobs - teacher, mask).abs_().sum(-1).to(shifts.dtype)
    gap = spread(rectification.logprobs - student, mask)
    gap_sums = gap.sum(-1).to(shifts.dtype)

    divergence = None
    if inputs.correspondence is not None and _reads_profiles(spans, random_candidates):
        divergence = profile_divergence(
            inputs.correspondence,
            inputs.num_rows,
            similarity_threshold=similarity_threshold,
            profile_temperature=profile_temperature,
            distance=distance,
        )
        if threshold is None:
            defined = divergence.values[divergence.defined]
            threshold = boundary_threshold(defined, quantile=boundary_quantile, low=boundary_low, high=boundary_high)
    lengths = {"min_span": min_span, "max_span": max_span}
    span_ids = _span_ids(inputs, spans, divergence, threshold, lengths, split_floor=boundary_low, seed=seed)

    scaling = {"scale_rewards": scale_rewards, "normalization_scope": normalization_scope, "eps": eps}
    advantages = trajectory_advantages(inputs, **scaling, outcome_discount=outcome_discount)
    by_row = advantages[inputs.trajectory_ids]
    limits = {"credit_temperature": credit_temperature, "density_min": density_min, "density_max": density_max}
    if isinstance(spans, str) and spans == "token":
        token_weights, allocation = _by_token(inputs, by_row, gap, limits)
    else:
        scores = by_row.sign() * (gap_sums / counts)
        allocation = allocate(scores, counts, span_ids, inputs.trajectory_ids, mix=mix, **limits)
        token_weights = spread(allocation.weights.to(inputs.dtype), mask)
    credit, residual = token_weights.mul_(by_row[:, None]), None
    if inputs.valid_actions is not None:
        residual = invalid_action_residual(
            faded(inputs.rewards, inputs.turn_counts, outcome_discount),
            inputs.valid_actions,
            inputs.trajectory_ids,
            inputs.group_ids,
            penalty=invalid_penalty,
            normalization=invalid_normalization,
            **scaling,
        ).to(inputs.dtype)
        credit.add_(spread(residual, mask))
    found = Findings(
        inputs, gap, gap_sums, shifts, rectification, divergence, threshold, span_ids, allocation, residual
    )
    metrics = {**group_metrics(inputs, advantages), **found.metrics(density_min, density_max)}
    return Credit(credit, allocation.weights.to(inputs.dtype), metrics, found.details())


def _scored_pairs(inputs: CreditInputs, similarity_threshold: float, top_k: int) -> tuple[Sources, Tensor]:
    """The selected pairs and their scores.

    Raises:
        ValueError: they are missing, or were selected with another threshold or K.
    """
    where = "align_opsd"
    correspondence = inputs.correspondence
    if correspondence is None or correspondence.sources is None or correspondence.cross_logprobs is None:
        lacking = "correspondence" if correspondence is None else "correspondence.sources and cross_logprobs"
        raise ValueError(
            f"{where}: inputs.{lacking} must be given while alpha_max > 0, got None; attach them with "
            "correspondence.with_scores(select_sources(correspondence), scores), or set alpha_max=0"
        )
    sources = correspondence.sources
    for name, used, wanted in (
        ("similarity_threshold", sources.similarity_threshold, similarity_threshold),
        ("top_k", sources.top_k, top_k),
    ):
        if used != wanted:
            raise ValueError(
                f"{where}: {name} must be the one the sources were selected with ({used}), got {wanted}; "
                f"call select_sources(.., {name}={wanted}) and score those pairs"
            )
    return sources, correspondence.cross_logprobs


def _span_ids(
    inputs: CreditInputs,
    spans: str | Tensor,
    divergence: Divergence | None,
    threshold: float | None,
    lengths: Mapping[str, int],
    *,
    split_floor: float,
    seed: int,
) -> Tensor:
    """``[M]`` int64: the span of each turn within its trajectory."""
    ids, turns = inputs.trajectory_ids, inputs.turn_ids
    if isinstance(spans, Tensor):
        check_spans(spans, ids, turns, max_span=lengths["max_span"])
        return spans
    if spans == "random":
        candidates = None
        if divergence is not None and threshold is not None:
            candidates = divergence.defined & (divergence.values > threshold)
        return random_spans(ids, turns, seed=seed, candidates=candidates, **lengths)
    if divergence is None or threshold is None:
        return torch.zeros_like(ids)
    return segment_spans(
        divergence.values,
        divergence.defined,
        ids,
        turns,
        threshold=threshold,
        split_floor=split_floor,
        **lengths,
    )


def _by_token(
    inputs: CreditInputs, by_row: Tensor, gap: Tensor, bounds: Mapping[str, float]
) -> tuple[Tensor, Allocation]:
    """``[M, T]`` weights from one softmax over the tokens of each trajectory, and their means over turns.

    Whole groups at a time, so that the token-level temporaries stay small.
    """
    turn_weights, density, raw = (
        torch.empty(inputs.num_rows, dtype=wide(gap.device), device=gap.device) for _ in range(3)
    )
    weights = torch.empty_like(gap)
    for rows in whole_groups(inputs):
        sampled = inputs.response_mask[rows]
        line = torch.repeat_interleave(inputs.token_counts[rows])
        owner = inputs.trajectory_ids[rows].unique_consecutive(return_inverse=True)[1][line]
        elements = allocate(
            by_row.sign()[rows][line] * gap[rows][sampled],
            torch.ones_like(line),
            torch.zeros_like(line),
            owner,
            mix=1.0,
            **bounds,
        )
        for whole, part in (
            (turn_weights, elements.weights), (density, elements.density), (raw, elements.raw_density),
        ):  # fmt: skip
            whole[rows] = segment_mean(part, line, rows.numel()).to(whole.dtype)
        values = elements.weights.to(gap.dtype)
        weights[rows] = values.new_zeros(sampled.shape).masked_scatter_(sampled, values)
    return weights, Allocation(turn_weights, density, raw, torch.ones_like(raw))
