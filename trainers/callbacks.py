"""Hooks into a training run."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..credit import Credit, CreditInputs
from ..rollout.types import Trajectory

if TYPE_CHECKING:
    from .grpo import GRPOTrainer


class GRPOCallback:
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


HOOKS = tuple(name for name in vars(GRPOCallback) if name.startswith("on_"))


def check_callbacks(callbacks: Sequence[GRPOCallback]) -> list[GRPOCallback]:
    """The callbacks, each with every hook; transformers' own have others and would fail after the first rollouts.

    Raises:
        TypeError: one lacks a hook, or is a class.
    """
    for callback in callbacks:
        missing = [name for name in HOOKS if not callable(getattr(callback, name, None))]
        if missing or isinstance(callback, type):
            got = f"the class {callback.__name__}" if isinstance(callback, type) else type(callback).__name__
            raise TypeError(
                f"GRPOTrainer: callbacks must be GRPOCallback objects, got {got}"
                f"{f' without {missing}' if missing else ''}; subclass turncredit.trainers.GRPOCallback"
            )
    return list(callbacks)


if TYPE_CHECKING:
    TrainerCallback = GRPOCallback
else:

    def __getattr__(name: str) -> Any:
        if name == "TrainerCallback":
            warnings.warn(
                "TrainerCallback is now GRPOCallback: transformers' class of the old name has other hooks",
                FutureWarning,
                stacklevel=2,
            )
            return GRPOCallback
        raise AttributeError(f"turncredit.trainers has no attribute {name!r}")
