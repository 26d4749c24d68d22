"""What an AlignOPSD run logs and what it leaves to be plotted; formulas in :func:`~.align_opsd.align_opsd`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..inputs import CreditInputs
from ..invalid_action import residual_metrics
from ..metrics import Deviation, Largest, Mean
from ..segments import segment_sum
from .allocation import Allocation
from .profiles import Divergence
from .rectification import Rectification


@dataclass(frozen=True)
class Findings:
    """Everything that was found on the way from scores to credit."""

    inputs: CreditInputs
    gap: Tensor  # [M, T] rectified - student, nats
    gap_sums: Tensor  # [M] its sum
    shifts: Tensor  # [M] sum of |rectified - identity|
    rectification: Rectification
    divergence: Divergence | None  # None where spans need no profiles
    threshold: float | None  # of the boundaries
    span_ids: Tensor  # [M]
    allocation: Allocation  # per turn
    residual: Tensor | None  # [M] of invalid actions

    def metrics(self, density_min: float, density_max: float) -> dict[str, float]:
        """Scalars, fetched from the device together; the bounds are those of the density."""
        inputs, allocation, divergence = self.inputs, self.allocation, self.divergence
        counts = inputs.token_counts.double()
        tokens, rows = counts.sum(), inputs.num_rows
        ids, trajectories = inputs.trajectory_ids, inputs.num_trajectories
        spans = (ids * (self.span_ids.max() + 1) + self.span_ids).unique().numel()
        totals = segment_sum(counts, ids, trajectories)
        budgets = segment_sum(counts * allocation.weights.double(), ids, trajectories)
        sources = self.rectification.source_counts.double()
        density = allocation.density.double()
        weights = allocation.weights.double()
        over_rows = {
            "source_share": (sources > 0).double().mean(),
            "sources_per_turn": sources.mean(),
            "mean_confidence": self.rectification.confidence.double().mean(),
            "mean_strength": self.rectification.strength.double().mean(),
            "capped_share": (density >= density_max - 1e-6).double().mean(),
            "floored_share": (density <= density_min + 1e-6).double().mean(),
        }
        if inputs.valid_actions is not None:
            over_rows["invalid_action_share"] = (~inputs.valid_actions).double().mean()
        others = [tokens, self.gap_sums.sum(), self.shifts.sum(), weights.std(correction=0), weights.mean()]
        others += [((budgets - totals).abs() / totals).max()]
        if divergence is not None and self.threshold is not None:
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
        if profiles and self.threshold is not None:
            later, defined, total = profiles
            scalars["boundary_threshold"] = float(self.threshold)
            scalars["divergence_defined_share"] = Mean(defined / max(later, 1), later)
            scalars["mean_divergence"] = Mean(total / max(defined, 1), defined)
        if self.residual is not None:
            scalars |= residual_metrics(self.residual)
        return scalars

    def details(self) -> dict[str, Tensor]:
        """Tensors, ``[M]`` each but ``rectified_gap`` and ``rectified_logprobs`` ``[M, T]``."""
        dtype, rectification, allocation = self.gap.dtype, self.rectification, self.allocation
        details = {
            "spans": self.span_ids,
            "span_budgets": allocation.span_budget.to(dtype),
            "density": allocation.density.to(dtype),
            "raw_density": allocation.raw_density.to(dtype),
            "turn_gaps": (self.gap_sums / self.inputs.token_counts).to(dtype),
            "rectified_gap": self.gap,
            "rectified_logprobs": rectification.logprobs,
            "confidence": rectification.confidence,
            "strength": rectification.strength,
            "source_counts": rectification.source_counts,
        }
        if self.divergence is not None:
            details["divergence"], details["divergence_defined"] = self.divergence.values, self.divergence.defined
        if self.residual is not None:
            details["invalid_residual"] = self.residual
        return details
