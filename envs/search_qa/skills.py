"""A small bank of skills in words, general and per question kind: read by a teacher, not by the student."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from .data import question_kind


@dataclass(frozen=True)
class Skill:
    """One skill. Args: title, text (one or two sentences), type (a question kind, or "general")."""

    title: str
    text: str
    type: str


@lru_cache(maxsize=1)
def skill_bank() -> dict[str, tuple[Skill, ...]]:
    """All skills by kind; ``"general"`` holds those of every question."""
    raw = json.loads(resources.files(str(__package__)).joinpath("skills.json").read_text(encoding="utf-8"))
    return {kind: tuple(Skill(item["title"], item["text"], kind) for item in items) for kind, items in raw.items()}


def skills_for(kind: str = "", question: str = "") -> tuple[Skill, ...]:
    """General skills, then those of the question's kind.

    Args:
        kind: ``"lookup"``, ``"bridge"`` or ``"comparison"``; anything else leaves the choice to `question`.
        question: the question in words, read where the kind is not known.
    """
    bank = skill_bank()
    if kind not in bank or kind == "general":
        kind = question_kind(question)
    return (*bank["general"], *bank[kind])


def skills_text(kind: str = "", question: str = "") -> str:
    """The chosen skills as a list, one a line."""
    return "\n".join(f"- {skill.title}: {skill.text}" for skill in skills_for(kind, question))
