"""ALFWorld as a task suite: which games, how they are asked, how answers are read, and what the teacher may know."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

from ..base import Environment, HistoryEntry, Message, Observation, ParsedResponse, Task
from .data import SPLITS, Game, data_root, find_games, read_game
from .env import AlfWorldEnv, task_text
from .hints import Hint, hint_from_walkthrough
from .prompts import STOP_STRINGS, alfworld_messages, parse_response
from .skills import skills_text

Privileged = Literal["skills", "hint", "both", "none"]
PromptBuilder = Callable[[Task, Sequence[HistoryEntry], Observation], list[Message]]


class AlfWorldSuite:
    """ALFWorld games of one data root.

    Args:
        data: folder of games (official or generated), see `data_root`; None reads ``ALFWORLD_DATA``.
        splits: for the names used by the trainer, the folder each stands for; a sequence of folder names stands for
            itself. None takes every folder of `SPLITS` and "eval" that is there.
        privileged: what the teacher reads: ``"skills"`` of the task's type, a ``"hint"`` with the instance's facts,
            ``"both"`` (hint first), or ``"none"``.
        history_length: past turns shown in the prompt.
        max_turns: turns after which the collector ends an episode.
        limits: per split, at most so many tasks, taken in turn from the task types so that the selection is balanced.
        build_messages: replaces the prompt: called as ``(task, history, observation) -> messages``.
        parse: replaces the parser of responses.
        build_hint: replaces the words of the hint: called as ``hint -> text``.
        anchor, translate_old_actions: see `AlfWorldEnv`.

    Raises:
        FileNotFoundError: no data folder.
        ValueError: an argument is out of range.
    """

    name = "alfworld"
    stop_strings = STOP_STRINGS

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        splits: Mapping[str, str] | Sequence[str] | None = None,
        privileged: Privileged = "skills",
        history_length: int = 2,
        max_turns: int = 50,
        limits: Mapping[str, int] | None = None,
        build_messages: PromptBuilder | None = None,
        parse: Callable[[str], ParsedResponse] = parse_response,
        build_hint: Callable[[Hint], str] | None = None,
        anchor: Literal["observation", "situation"] = "observation",
        translate_old_actions: bool = False,
    ) -> None:
        if privileged not in ("skills", "hint", "both", "none"):
            raise ValueError(
                f'AlfWorldSuite: privileged must be "skills", "hint", "both" or "none", got {privileged!r}; '
                "choose one of them"
            )
        if history_length < 0 or max_turns < 1:
            raise ValueError(
                f"AlfWorldSuite: history_length must be at least 0 and max_turns at least 1, got {history_length} "
                f"and {max_turns}; 2 and 50 are the usual values"
            )
        self.root = data_root(data)
        self.privileged = privileged
        self.history_length = history_length
        self.max_turns = max_turns
        self.anchor: Literal["observation", "situation"] = anchor
        self.translate_old_actions = translate_old_actions
        self._limits = dict(limits or {})
        self._build_messages = build_messages
        self._parse = parse
        self._build_hint = build_hint
        if splits is None:
            splits = [name for name in (*SPLITS, "eval") if (self.root / name).is_dir()]
        self._splits = dict(splits) if isinstance(splits, Mapping) else {name: name for name in splits}
        self._games: dict[str, Game] = {}
        self._tasks: dict[str, tuple[Task, ...]] = {}

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The tasks of a split in a fixed order: sorted by id, or balanced over types where a limit is set."""
        if split not in self._tasks:
            if split not in self._splits:
                raise ValueError(
                    f"tasks: split must be one of {sorted(self._splits)}, got {split!r}; "
                    f"name it in splits= if {str(self.root)!r} has it"
                )
            games = find_games(self.root, [self._splits[split]])
            if split in self._limits:
                games = balanced(games, self._limits[split])
            self._games.update({game.id: game for game in games})
            self._tasks[split] = tuple(Task(game.id, game.task.type, split) for game in games)
        return self._tasks[split]

    def make_env(self) -> Callable[[], Environment]:
        """A picklable factory of `AlfWorldEnv`."""
        return partial(AlfWorldEnv, self.root, anchor=self.anchor, translate_old_actions=self.translate_old_actions)

    def messages(self, task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
        """The chat messages of the next turn."""
        if self._build_messages is not None:
            return self._build_messages(task, history, observation)
        words = observation.info.get("task") or task_text(history[0].observation if history else observation.text)
        return alfworld_messages(words, history, observation, history_length=self.history_length)

    def parse(self, response: str) -> ParsedResponse:
        """Take a response apart; never raises."""
        return self._parse(response)

    def privileged_context(self, task: Task) -> str | None:
        """Skills, hint, both or nothing, as the suite was asked."""
        parts = []
        if self.privileged in ("hint", "both"):
            hint = self.hint(task)
            parts.append(f"Hint for this house: {self._build_hint(hint) if self._build_hint else hint.text}.")
        if self.privileged in ("skills", "both"):
            parts.append(f"Useful skills:\n{skills_text(task.type)}")
        return "\n\n".join(parts) or None

    def hint(self, task: Task) -> Hint:
        """The facts that solve `task`, read from its game file."""
        game = self._game(task)
        return hint_from_walkthrough(read_game(game.path)["walkthrough"], game.task_type)

    def walkthrough(self, task: Task) -> list[str]:
        """Commands that win `task`."""
        return list(read_game(self._game(task).path)["walkthrough"])

    def _game(self, task: Task) -> Game:
        if task.id not in self._games:
            self.tasks(task.split)
        if task.id not in self._games:
            raise KeyError(
                f"AlfWorldSuite: task must be one of split {task.split!r}, got {task.id!r}; take it from tasks(split)"
            )
        return self._games[task.id]


def balanced(games: Sequence[Game], limit: int) -> list[Game]:
    """At most `limit` games, dealt from the task types in turn, each type in its own order."""
    if limit < 1:
        raise ValueError(f"balanced: limit must be at least 1, got {limit}; leave it out for all games")
    by_type: dict[str, list[Game]] = {}
    for game in games:
        by_type.setdefault(game.task_type, []).append(game)
    longest = max((len(group) for group in by_type.values()), default=0)
    return [group[i] for i in range(longest) for group in by_type.values() if i < len(group)][:limit]
