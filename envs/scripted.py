"""What the scripted players have in common: a move in words, and habits that a privileged context makes rare."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Move:
    """What a player thinks, in one or two words, and the command it types."""

    thought: str
    command: str

    @property
    def response(self) -> str:
        """The move in the policy's format."""
        return f"<think> {self.thought} </think> <action> {self.command} </action>"


@dataclass(frozen=True)
class Habits:
    """Chances of a bad turn, by what has just happened; a privileged context leaves `hurry` times as much."""

    hurry: float = 0.1

    def tempt(self, chance: float, informed: bool, rng: random.Random) -> bool:
        """Whether a player gives way this time; draws once."""
        return rng.random() < chance * (self.hurry if informed else 1.0)
