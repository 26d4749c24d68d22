"""A small bank of skills in words, general and per department: read by a teacher, not by the student."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .words import package_json

DEPARTMENTS = ("beauty", "electronics", "fashion", "garden", "grocery")


@dataclass(frozen=True)
class Skill:
    """One skill. Args: title, text (one or two sentences), type (a department, or "general")."""

    title: str
    text: str
    type: str


@lru_cache(maxsize=1)
def skill_bank() -> dict[str, tuple[Skill, ...]]:
    """All skills by department; ``"general"`` holds those of every task."""
    raw = package_json("skills.json")
    return {kind: tuple(Skill(item["title"], item["text"], kind) for item in items) for kind, items in raw.items()}


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
    """General skills, then those of the task's department.

    Args:
        task_type: a department; None or an unknown name leaves the choice to `task`.
        task: the wish in words, read where the department is not known.
    """
    department = task_type if task_type in DEPARTMENTS else task_type_from_text(task)
    return (*skill_bank()["general"], *(skill_bank()[department] if department else ()))


def skills_text(task_type: str | None = None, task: str = "") -> str:
    """The skills of a task as lines of text."""
    return "\n".join(f"- {skill.title}: {skill.text}" for skill in skills_for(task_type, task))
