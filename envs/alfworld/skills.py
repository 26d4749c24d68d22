"""A small bank of skills in words, general and per task type: read by a teacher, not by the student."""

from __future__ import annotations

from functools import lru_cache

from ..kit import Skill, SkillBank, skill_lines
from .data import TASK_TYPES

_KEYWORDS = (
    ("Look", ("look at", "examine", "lamp")),
    ("Clean", ("clean", "wash", "rinse")),
    ("Heat", ("heat", "hot", "warm", "microwaved", "cook")),
    ("Cool", ("cool", "cold", "chill")),
    ("Pick2", ("two", "both", "pair")),
)
"""Words that tell a task's type, in the order they are tried; without any of them it is Pick."""


@lru_cache(maxsize=1)
def skill_bank() -> SkillBank:
    """All skills by type; ``"general"`` holds those of every task."""
    return SkillBank.read(str(__package__), task_type_from_text)


def task_type_from_text(task: str) -> str:
    """The short label that a task's wording tells.

    >>> task_type_from_text("put a hot apple in fridge")
    'Heat'
    """
    words = task.lower()
    padded = " " + "".join(letter if letter.isalnum() else " " for letter in words) + " "
    for label, keywords in _KEYWORDS:
        if any(f" {keyword} " in padded for keyword in keywords) or (label == "Look" and "lamp" in words):
            return label
    return "Pick"


def skills_for(task_type: str | None = None, task: str = "") -> tuple[Skill, ...]:
    """General skills, then those of the task's type (a folder name or a short label), or of the wording of `task`."""
    return skill_bank().chosen(TASK_TYPES.get(task_type or "", task_type), task)


def skills_text(task_type: str | None = None, task: str = "") -> str:
    """The chosen skills as a list, one a line."""
    return skill_lines(skills_for(task_type, task))
