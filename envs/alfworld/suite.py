"""ALFWorld as a task suite: which games, how they are asked, how answers are read, and what the teacher may know."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from ..base import Environment, HistoryEntry, Message, Observation, Task
from ..kit import BaseSuite, SuiteOptions
from ..kit.checks import check_choice
from .data import SPLITS, data_root, find_games, game_path, read_game
from .env import AlfWorldEnv, task_text
from .hints import Hint, hint_from_walkthrough
from .prompts import STOP_STRINGS, alfworld_messages, parse_response
from .skills import skills_text

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AlfWorldSuite(BaseSuite):
    """ALFWorld games of one data root.

    Contexts: ``"skills"`` of the task's type, and a ``"hint"`` with the instance's facts; ``privileged="both"`` is the
    hint, then the skills. A limit is balanced over the task types.

    Args:
        data: folder of games (official or generated), see `data_root`; None reads ``ALFWORLD_DATA``.
        splits: for the names used by the trainer, the folder each stands for; a sequence of folder names stands for
            itself. None takes every folder of `SPLITS` and "eval" that is there.
        build_hint: replaces the words of the hint: called as ``hint -> text``.
        anchor, translate_old_actions: see `AlfWorldEnv`.
        options: ``privileged`` ("skills"), ``history_length`` (2), ``max_turns`` (50), ``limits``, ``build_messages``
            and ``parse``, see `turncredit.envs.kit.SuiteOptions`.

    Raises:
        FileNotFoundError: no data folder.
        TypeError, ValueError: see `BaseSuite`.
    """

    name = "alfworld"
    max_turns = 50
    splits: dict[str, str]
    stop_strings = STOP_STRINGS
    parser = parse_response
    privileged = "skills"
    context_names = ("skills", "hint")
    both = "hint+skills"

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        splits: Mapping[str, str] | Sequence[str] | None = None,
        build_hint: Callable[[Hint], str] | None = None,
        anchor: Literal["observation", "situation"] = "observation",
        translate_old_actions: bool = False,
        **options: Unpack[SuiteOptions],
    ) -> None:
        self.root = data_root(data)
        if splits is None:
            splits = [name for name in (*SPLITS, "eval") if (self.root / name).is_dir()]
        self.splits = dict(splits) if isinstance(splits, Mapping) else {name: name for name in splits}
        self.anchor: Literal["observation", "situation"] = anchor
        self.translate_old_actions = translate_old_actions
        self._build_hint = build_hint
        super().__init__(**options)

    def load(self, split: str) -> list[Task]:
        """The games of a split, sorted by id."""
        return [Task(game.id, game.task.type, split) for game in find_games(self.root, [self.splits[split]])]

    def make_env(self) -> Callable[[], Environment]:
        """A picklable factory of `AlfWorldEnv`."""
        return partial(AlfWorldEnv, self.root, anchor=self.anchor, translate_old_actions=self.translate_old_actions)

    def prompt(self, task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
        """The chat messages of the next turn."""
        words = observation.info.get("task") or task_text(history[0].observation if history else observation.text)
        return alfworld_messages(words, history, observation, history_length=self.history_length)

    def context(self, task: Task, name: str) -> str:
        """Skills of the task's type, or the hint, which reads the game file."""
        if name == "skills":
            return f"Useful skills:\n{skills_text(task.type)}"
        hint = self.hint(task)
        return f"Hint for this house: {self._build_hint(hint) if self._build_hint else hint.text}."

    def check_split(self, split: str) -> None:
        """Raise a ValueError unless there is such a split."""
        check_choice("tasks", "split", split, self.splits, f"name it in splits= if {str(self.root)!r} has it")

    def hint(self, task: Task) -> Hint:
        """The facts that solve `task`, read from its game file."""
        return hint_from_walkthrough(self.walkthrough(task), PurePosixPath(task.id).parent.name.partition("-")[0])

    def walkthrough(self, task: Task) -> list[str]:
        """Commands that win `task`."""
        return list(read_game(game_path(self.root, task.id))["walkthrough"])
