"""A small bank of skills in words, general and per question kind: read by a teacher, not by the student."""

from __future__ import annotations

from functools import lru_cache

from ..kit import Skill, SkillBank, skill_lines
from .data import question_kind


@lru_cache(maxsize=1)
def skill_bank() -> SkillBank:
    """All skills by kind; ``"general"`` holds those of every question."""
    return SkillBank.read(str(__package__), question_kind)


def skills_for(kind: str = "", question: str = "") -> tuple[Skill, ...]:
    """General skills, then those of the kind (``"lookup"``, ``"bridge"`` or ``"comparison"``), or of the wording of
    `question`."""
    return skill_bank().chosen(kind, question)


def skills_text(kind: str = "", question: str = "") -> str:
    """The chosen skills as a list, one a line."""
    return skill_lines(skills_for(kind, question))
