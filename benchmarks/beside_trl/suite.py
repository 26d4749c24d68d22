"""Append-only episodes of made-up text, for a trainer of turncredit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from turncredit.envs import HistoryEntry, Message, Observation, ParsedResponse, StepResult, Task

Observe = Callable[[int, int], str]
"""Task and turn -> what the environment says behind that turn."""


class TextEnv:
    """Shows the prompt of its task, then one observation a turn; every turn's text has a reward."""

    def __init__(self, prompts: Sequence[str], turns: int, observe: Observe, reward: Callable[[str], float]):
        self.prompts, self.turns, self.observe, self.reward = prompts, turns, observe, reward

    def reset(self, task_id: str) -> Observation:
        self.task, self.turn = int(task_id), 0
        return Observation(self.prompts[self.task])

    def step(self, action: str) -> StepResult:
        self.turn += 1
        done = self.turn == self.turns
        seen = Observation("" if done else self.observe(self.task, self.turn))
        return StepResult(seen, self.reward(action) / self.turns, done=done)

    def close(self) -> None:
        """Nothing to free."""


@dataclass(frozen=True)
class TextSuite:
    """Its prompts hold the whole dialogue; every response is a valid action."""

    prompts: Sequence[str]
    max_turns: int
    observe: Observe
    reward: Callable[[str], float]
    name: str = "text"
    stop_strings: tuple[str, ...] = ()

    @property
    def history_length(self) -> int:
        return self.max_turns

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(str(index), "text", split) for index in range(len(self.prompts))] if split == "train" else []

    def make_env(self) -> Any:
        return functools.partial(TextEnv, self.prompts, self.max_turns, self.observe, self.reward)

    def messages(self, task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
        seen = [*(entry.observation for entry in history), observation.text]
        messages: list[Message] = [{"role": "user", "content": seen[0]}]
        for entry, text in zip(history, seen[1:], strict=True):
            messages.append({"role": "assistant", "content": entry.response})
            messages.append({"role": "tool", "name": "act", "content": text})
        return messages

    def parse(self, response: str) -> ParsedResponse:
        return ParsedResponse(thinking="", action=response, valid=True)

    def privileged_context(self, task: Task) -> str | None:
        return None
