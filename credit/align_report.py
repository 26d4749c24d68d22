"""What an AlignOPSD run logs and what it leaves to be plotted; formulas in :func:`~.align_opsd.align_opsd`."""

from __future__ import annotations

import torch
from torch import Tensor

from ._segments import segment_sum
from .allocation import Allocation
from .inputs import CreditInputs
from .metrics import Deviation, Largest, Mean
from .profiles import Divergence
from .rectification import Rectification


def align_metrics(
    inputs: CreditInputs,
    token_counts: Tensor,
    gap_sums: Tensor,
    shifts: Tensor,
    rectification: Rectification,
    divergence: Divergence | None,
    threshold: float | None,
    span_ids: Tensor,
    allocation: Allocation,
    bounds: tuple[float, float],
) -> dict[str, float]:
    """Scalars of one run, fetched from the device together.

    Args:
        inputs: the batch.
        token_counts: ``[M]`` sampled tokens.
        gap_sums: ``[M]`` sum of the rectified gap.
        shifts: ``[M]`` sum of |rectified - identity|.
        rectification: scores, confidence, strength and counts.
        divergence: of the profiles, or None where spans need none.
        threshold: of the boundaries, or None.
        span_ids: ``[M]``.
        allocation: per turn.
        bounds: smallest and largest density allowed.
    """
    counts = token_counts.double()
    tokens, rows = counts.sum(), inputs.num_rows
    ids, trajectories = inputs.trajectory_ids, inputs.num_trajectories
    spans = (ids * (span_ids.max() + 1) + span_ids).unique().numel()
    totals = segment_sum(counts, ids, trajectories)
    budgets = segment_sum(counts * allocation.weights.double(), ids, trajectories)
    sources = rectification.source_counts.double()
    density = allocation.density.double()
    weights = allocation.weights.double()
    over_rows = {
        "source_share": (sources > 0).double().mean(),
        "sources_per_turn": sources.mean(),
        "mean_confidence": rectification.confidence.double().mean(),
        "mean_strength": rectification.strength.double().mean(),
        "capped_share": (density >= bounds[1] - 1e-6).double().mean(),
        "floored_share": (density <= bounds[0] + 1e-6).double().mean(),
    }
    if inputs.valid_actions is not None:
        over_rows["invalid_action_share"] = (~inputs.valid_actions).double().mean()
    others = [tokens, gap_sums.sum(), shifts.sum(), weights.std(correction=0), weights.mean()]
    others += [((budgets - totals).abs() / totals).max()]
    if divergence is not None and threshold is not None:
        others += [(inputs.turn_ids > 0).sum(), divergence.defined.sum(), divergence.values.sum()]
    fetched = torch.stack([value.double() for value in (*over_rows.values(), *others)]).tolist()
    scalars: dict[str, float] = {name: Mean(value, rows) for name, value in zip(over_rows, fetched, strict=False)}
    n, gap, shift, deviation, mean, error, *profiles = fetched[len(over_rows) :]
    scalars |= {
        "mean_gap": Mean(gap / n, n),
        "mean_shift": Mean(shift / n, n),
        "turns_per_span": Mean(rows / spans, spans),
        "spans_per_trajectory": Mean(spans / trajectories, trajectories),
        "weight_std": Deviation(deviation, mean, rows),
        "budget_error": Largest(error),
    }
    if profiles and threshold is not None:
        later, defined, total = profiles
        scalars["boundary_threshold"] = float(threshold)
        scalars["divergence_defined_share"] = Mean(defined / max(later, 1), later)
        scalars["mean_divergence"] = Mean(total / max(defined, 1), defined)
    return scalars


def align_details(
    gap: Tensor,
    turn_gaps: Tensor,
    rectification: Rectification,
    divergence: Divergence | None,
    span_ids: Tensor,
    allocation: Allocation,
    residual: Tensor | None,
) -> dict[str, Tensor]:
    """Tensors of one run, ``[M]`` each but ``rectified_gap`` and ``rectified_logprobs`` ``[M, T]``."""
    details = {
        "spans": span_ids,
        "span_budgets": allocation.span_budget.to(gap.dtype),
        "density": allocation.density.to(gap.dtype),
        "raw_density": allocation.raw_density.to(gap.dtype),
        "turn_gaps": turn_gaps.to(gap.dtype),
        "rectified_gap": gap,
        "rectified_logprobs": rectification.logprobs,
        "confidence": rectification.confidence,
        "strength": rectification.strength,
        "source_counts": rectification.source_counts,
    }
    if divergence is not None:
        details["divergence"], details["divergence_defined"] = divergence.values, divergence.defined
    if residual is not None:
        details["invalid_residual"] = residual
    return details
