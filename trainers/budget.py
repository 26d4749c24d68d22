"""How many turns a run has played, and whether it may play more."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .grpo import GRPOTrainer

logger = logging.getLogger(__name__)


def count_steps(trainer: GRPOTrainer) -> dict[str, float]:
    """Add the turns of the update just played, by every process, to the run's; collective.

    A method's continuations count, and turns of its teacher; replayed turns and evaluations do not.

    Returns:
        ``rollout/environment_steps``, of this update, and ``rollout/environment_steps_total``.
    """
    played = sum(trainer.run.all_gather([trainer.run.environment_steps]))
    trainer.run.environment_steps = 0
    trainer.environment_steps += played
    return {
        "rollout/environment_steps": float(played),
        "rollout/environment_steps_total": float(trainer.environment_steps),
    }


def restore_steps(trainer: GRPOTrainer, state: Mapping[str, Any]) -> None:
    """Count on from a checkpoint's state; one of a version that did not count begins at 0, and that is said."""
    trainer.environment_steps = state.get("environment_steps", 0)
    limit = trainer.config.max_environment_steps
    if limit is not None and "environment_steps" not in state:
        logger.warning(
            "max_environment_steps = %d counts from update %d on: the checkpoint does not say what was played before",
            limit,
            state["step"],
        )


def is_over(trainer: GRPOTrainer) -> bool:
    """Whether the last update was made: `max_steps` of them, or `max_environment_steps` turns played."""
    limit = trainer.config.max_environment_steps
    spent = limit is not None and trainer.environment_steps >= limit
    return trainer.step >= trainer.config.max_steps or spent
