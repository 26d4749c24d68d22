"""Hooks into a training run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..credit import Credit, CreditInputs
from ..rollout.types import Trajectory

if TYPE_CHECKING:
    from .grpo import GRPOTrainer


class TrainerCallback:
    """Override what you need; every hook runs on every process and must not change what it is given."""

    def on_rollout(self, trainer: GRPOTrainer, trajectories: Sequence[Trajectory]) -> None:
        """After a rollout phase, with this process's trajectories."""

    def on_credit(self, trainer: GRPOTrainer, inputs: CreditInputs, credit: Credit) -> None:
        """After credit, before the update."""

    def on_step_end(self, trainer: GRPOTrainer, metrics: dict[str, float]) -> None:
        """After an update, with the metrics about to be logged."""

    def on_evaluate(self, trainer: GRPOTrainer, metrics: dict[str, float]) -> None:
        """After an evaluation."""

    def on_save(self, trainer: GRPOTrainer, folder: str) -> None:
        """After a checkpoint was written."""
