"""An early warning when a policy that had learned something loses it."""

from __future__ import annotations

from collections import deque

WINDOW = 5
"""Updates that the running mean is taken over."""

FLOOR = 0.1
"""The best running mean below which nothing was learned yet that could collapse."""


class CollapseWatch:
    """Success of training rollouts, update by update: m_t is its mean over the last `WINDOW` updates.

    A collapse is ``patience`` updates in a row with m_t < max_s m_s / 2, where that maximum is at least `FLOOR`. It is
    told once, and again only after m_t was back above the half.

    Args:
        patience: updates in a row; 0 never warns.
    """

    def __init__(self, patience: int):
        self.patience = patience
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._best = 0.0
        self._under = 0

    def see(self, success: float | None) -> str | None:
        """Take an update's success, None where it has none; returns a warning in the update in which it is due."""
        if success is None or not self.patience:
            return None
        self._recent.append(success)
        if len(self._recent) < WINDOW:
            return None
        mean = sum(self._recent) / WINDOW
        self._best = max(self._best, mean)
        collapsed = self._best >= FLOOR and mean < self._best / 2
        self._under = self._under + 1 if collapsed else 0
        if self._under != self.patience:
            return None
        return (
            f"success has collapsed: over the last {WINDOW} updates it is {mean:.3f}, for {self.patience} updates "
            f"under half of its best {self._best:.3f}; lower learning_rate, or go on from an earlier checkpoint"
        )
