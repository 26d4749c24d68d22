"""What an AgentOPSD run found, gathered from parts of the batch; formulas in :func:`~.agent_opsd.agent_opsd`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..inputs import CreditInputs
from ..metrics import Deviation, Mean, deviation
from .units import Units

_SATURATED = 0.01


class Findings:
    """Results per turn, written part by part, and sums over units for the metrics."""

    def __init__(self, inputs: CreditInputs, prior: Tensor) -> None:
        self._inputs = inputs
        wide = prior.new_empty(inputs.num_rows)
        self.turn_weights = wide  # [M] w_k, for tokens the mean over the turn
        self._evidence, self._beliefs, self._revisions = (torch.empty_like(wide) for _ in range(3))
        self._prior = prior[inputs.trajectory_ids]
        self._sums: dict[str, Tensor] = {}

    def add(
        self, units: Units, evidence: Tensor, beliefs: Tensor, moves: Tensor, scores: Tensor, weights: Tensor
    ) -> None:
        """Take in one part: whole trajectories, ``[E]`` each."""
        last = torch.bincount(units.line, minlength=units.rows.numel()).cumsum(0) - 1
        self.turn_weights[units.rows] = units.per_turn(weights, mean=True)
        self._evidence[units.rows] = units.per_turn(evidence)
        self._revisions[units.rows] = units.per_turn(moves)
        self._beliefs[units.rows] = beliefs[last]
        first = self._inputs.turn_ids[units.rows][units.line] == 0
        sums = {
            "units": torch.ones_like(moves).sum(),
            "saturated": ((beliefs < _SATURATED) | (beliefs > 1 - _SATURATED)).sum(),
            "clipped": (scores.abs() >= 1).sum(),
            "first": moves.abs()[first].sum(),
            "moved": moves.abs().sum(),
            "offset": (weights - 1).sum(),
            "square": (weights - 1).square().sum(),
        }
        self._sums = {name: value.double() + self._sums.get(name, 0.0) for name, value in sums.items()}

    def details(self) -> dict[str, Tensor]:
        """``[M]`` each: evidence, belief after the turn, revision over the turn, prior."""
        details = {
            "evidence": self._evidence,
            "beliefs": self._beliefs,
            "revisions": self._revisions,
            "prior": self._prior,
        }
        return {name: value.to(self._inputs.dtype) for name, value in details.items()}

    def metrics(self, advantages: Tensor) -> dict[str, float]:
        """Scalars; ``advantages`` ``[M]`` are those of each row's trajectory."""
        sums, evidence = self._sums, self._evidence.to(self._inputs.dtype).double()
        credited = advantages != 0
        agree = (evidence.sign() == advantages.sign()) & credited
        variance = sums["square"] / sums["units"] - (sums["offset"] / sums["units"]).square()
        units, moved, agreed = float(sums["units"]), float(sums["moved"]), float(credited.sum())
        return {
            "evidence_mean": Mean(float(evidence.mean()), evidence.numel()),
            "evidence_std": deviation(evidence),
            "belief_saturated_share": Mean(float(sums["saturated"]) / units, units),
            "first_turn_revision_share": Mean(float(sums["first"]) / moved if moved else 0.0, moved),
            "evidence_agreement_share": Mean(float(agree.sum()) / max(agreed, 1.0), agreed),
            "weight_clip_share": Mean(float(sums["clipped"]) / units, units),
            "weight_std": Deviation(float(variance.clamp(min=0).sqrt()), float(sums["offset"]) / units, units),
        }
