"""Hooks into a training run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..credit import Credit, CreditInputs
from ..rollout.types import Trajectory

if TYPE_CHECKING:
    from .grpo import GRPOTrainer


class TrainerCallback:
    """Override what you need; every hook runs on every process and must not change what it is given.

    An error in a hook ends the run and loses nothing that was finished: the checkpoint of an update is written before
    its evaluation and before the hooks that follow it, and its line in ``metrics.jsonl`` even when one of them raises.
    """

    def on_rollout(self, trainer: GRPOTrainer, trajectories: Sequence[Trajectory]) -> None:
        """After a rollout phase, with this process's trajectories."""

    def on_credit(self, trainer: GRPOTrainer, inputs: CreditInputs, credit: Credit) -> None:
        """After credit, before the update."""

    def on_step_end(self, trainer: GRPOTrainer, metrics: dict[str, float]) -> None:
        """After an update, its checkpoint and its evaluation, with the metrics about to be logged."""

    def on_evaluate(self, trainer: GRPOTrainer, metrics: dict[str, float]) -> None:
        """After an evaluation; the update's checkpoint, where one was due, is already written."""

    def on_save(self, trainer: GRPOTrainer, folder: str) -> None:
        """After a checkpoint was written."""
