"""A small bank of skills in words, general and per task type: read by a teacher, not by the student."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from .data import TASK_TYPES

_KEYWORDS = (
    ("Look", ("look at", "examine", "lamp")),
    ("Clean", ("clean", "wash", "rinse")),
    ("Heat", ("heat", "hot", "warm", "microwaved", "cook")),
    ("Cool", ("cool", "cold", "chill")),
    ("Pick2", ("two", "both", "pair")),
)
"""Words that tell a task's type, in the order they are tried; without any of them it is Pick."""


@dataclass(frozen=True)
class Skill:
    """One skill. Args: title, text (one or two sentences), type (a short label, or "general")."""

    title: str
    text: str
    type: str


@lru_cache(maxsize=1)
def skill_bank() -> dict[str, tuple[Skill, ...]]:
    """All skills by type; ``"general"`` holds those of every task."""
    raw = json.loads(resources.files(str(__package__)).joinpath("skills.json").read_text(encoding="utf-8"))
    return {kind: tuple(Skill(item["title"], item["text"], kind) for item in items) for kind, items in raw.items()}


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
    """General skills, then those of the task's type.

    Args:
        task_type: a folder name or a short label; None or an unknown name leaves the choice to `task`.
        task: the task in words, read where the type is not known.
    """
    label = TASK_TYPES.get(task_type or "", task_type or "")
    if label not in TASK_TYPES.values():
        label = task_type_from_text(task)
    bank = skill_bank()
    return (*bank["general"], *bank[label])


def skills_text(task_type: str | None = None, task: str = "") -> str:
    """The chosen skills as a list, one a line."""
    return "\n".join(f"- {skill.title}: {skill.text}" for skill in skills_for(task_type, task))
