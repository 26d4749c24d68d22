"""Schedules of a method's mixing share over optimiser updates."""

from __future__ import annotations


def linear_decay(value: float, *, step: int, decay_steps: int | None) -> float:
    """``value * max(0, 1 - step / decay_steps)``; constant if ``decay_steps`` is None.

    Args:
        value: the share before the first update.
        step: optimiser updates done, 0 or more.
        decay_steps: updates until the share is 0, positive.

    Raises:
        ValueError: ``step`` is negative or ``decay_steps`` is not positive.

    >>> [linear_decay(0.5, step=step, decay_steps=100) for step in (0, 50, 100, 500)]
    [0.5, 0.25, 0.0, 0.0]
    """
    if step < 0:
        raise ValueError(f"linear_decay: step must be at least 0, got {step}; pass the number of updates done")
    if decay_steps is None:
        return value
    if decay_steps <= 0:
        raise ValueError(f"linear_decay: decay_steps must be positive, got {decay_steps}; pass None for no decay")
    return value * max(0.0, 1.0 - step / decay_steps)
