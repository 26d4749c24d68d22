"""A small bank of skills in words, general and per department: read by a teacher, not by the student."""

from __future__ import annotations

from functools import lru_cache

from ..kit import Skill, SkillBank, skill_lines
from .words import package_json


@lru_cache(maxsize=1)
def skill_bank() -> SkillBank:
    """All skills by department; ``"general"`` holds those of every task."""
    return SkillBank.read(str(__package__), task_type_from_text)


def task_type_from_text(task: str) -> str | None:
    """The department that a wish's wording tells, None where it tells nothing.

    >>> task_type_from_text("i need a 120 ml hair mask treatment"), task_type_from_text("a gift")
    ('beauty', None)
    """
    words = set("".join(letter if letter.isalnum() else " " for letter in task.lower()).split())
    for department, keywords in package_json("words.json")["departments"].items():
        if words & set(" ".join(keywords).split()):
            return department
    return None


def skills_for(task_type: str | None = None, task: str = "") -> tuple[Skill, ...]:
    """General skills, then those of the task's department, or of the one that the wording of `task` tells."""
    return skill_bank().chosen(task_type, task)


def skills_text(task_type: str | None = None, task: str = "") -> str:
    """The skills of a task as lines of text."""
    return skill_lines(skills_for(task_type, task))
