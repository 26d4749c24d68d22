"""A small bank of skills in words, general and per task type: read by a teacher, not by the student."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

GENERAL = "general"


@dataclass(frozen=True)
class Skill:
    """One skill. Args: title, text (one or two sentences), type (of the tasks it helps with, or "general")."""

    title: str
    text: str
    type: str


class SkillBank(dict[str, tuple[Skill, ...]]):
    """Skills by task type; ``"general"`` holds those of every task.

    Args:
        skills: by type, each ``{"title": .., "text": ..}``.
        guess: the type that a task's wording tells, or None; asked where the type is not known.

    Raises:
        ValueError: a skill without title or text, or no general skills.
    """

    def __init__(
        self, skills: Mapping[str, Iterable[Mapping[str, str]]], guess: Callable[[str], str | None] | None = None
    ) -> None:
        super().__init__({kind: tuple(_skill(kind, item) for item in items) for kind, items in skills.items()})
        if GENERAL not in self:
            raise ValueError(
                f"SkillBank: skills must hold the type {GENERAL!r}, got {sorted(self)}; an empty list of it will do"
            )
        self.guess = guess

    @classmethod
    def read(cls, package: str, guess: Callable[[str], str | None] | None = None) -> SkillBank:
        """The bank of the file ``skills.json`` in an importable package."""
        return cls(json.loads(resources.files(package).joinpath("skills.json").read_text(encoding="utf-8")), guess)

    def chosen(self, task_type: str | None = None, task: str = "") -> tuple[Skill, ...]:
        """General skills, then those of the task's type.

        Args:
            task_type: None or an unknown one leaves the choice to `task`.
            task: the task in words.
        """
        if task_type not in self or task_type == GENERAL:
            task_type = self.guess(task) if self.guess else None
        return (*self[GENERAL], *(self.get(task_type, ()) if task_type else ()))


def _skill(kind: str, item: Any) -> Skill:
    if not isinstance(item, Mapping) or not {"title", "text"} <= set(item):
        raise ValueError(f"SkillBank: skills must have a title and a text, got {item!r} of type {kind!r}; give it both")
    return Skill(item["title"], item["text"], kind)


def skill_lines(skills: Iterable[Skill]) -> str:
    """Skills as a list, one a line."""
    return "\n".join(f"- {skill.title}: {skill.text}" for skill in skills)
