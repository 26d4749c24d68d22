"""How many turns a run has played, and whether it may play more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .grpo import GRPOTrainer


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


def is_over(trainer: GRPOTrainer) -> bool:
    """Whether the last update was made: `max_steps` of them, or `max_environment_steps` turns played."""
    limit = trainer.config.max_environment_steps
    spent = limit is not None and trainer.environment_steps >= limit
    return trainer.step >= trainer.config.max_steps or spent
