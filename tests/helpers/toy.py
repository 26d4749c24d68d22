"""A toy environment for tests; imports no torch, so that worker processes start at once.

The task id names a colour; the agent sees a door and must say the colour of the first observation twice, with wrong
words costing a turn. It is solvable, has invalid actions and a turn limit.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from turncredit.envs import HistoryEntry, Message, Observation, ParsedResponse, StepResult, Task

COLOURS = ("red", "green", "blue", "black")


class ToyEnv:
    """See the module's docstring. Task ids: ``"<colour>-<anything>"``; ``-broken`` cannot be reset, ``-die`` kills its
    process in the second turn."""

    def __init__(self, needed: int = 2):
        self.needed = needed
        self.colour = ""
        self.correct = self.turns = 0

    def reset(self, task_id: str) -> Observation:
        self.task_id = task_id
        self.colour = task_id.split("-")[0]
        self.correct = self.turns = 0
        if task_id.endswith("-broken"):
            raise RuntimeError("this task cannot be reset")
        return Observation(f"room {self.colour} door", COLOURS)

    def step(self, action: str) -> StepResult:
        self.turns += 1
        if self.task_id.endswith("-die") and self.turns == 2:
            os._exit(9)
        valid = action in COLOURS
        self.correct += action == self.colour
        success = self.correct >= self.needed
        return StepResult(
            Observation(f"door {'one' if self.correct == 1 else 'two' if success else 'key'}", COLOURS),
            reward=float(success),
            done=success,
            success=success,
            valid=valid,
        )

    def close(self) -> None:
        self.colour = ""


@dataclass
class ToySuite:
    """Task suite of `ToyEnv`; a lenient one takes the first colour of any response, which a random policy finds."""

    name: str = "toy"
    max_turns: int = 4
    history_length: int = 2
    stop_strings: tuple[str, ...] = ("</action>",)
    num_tasks: int = 4
    needed: int = 2
    lenient: bool = False

    def tasks(self, split: str) -> Sequence[Task]:
        ids = [f"{COLOURS[index % 4]}-{split}{index}" for index in range(self.num_tasks)]
        return [Task(task_id, task_id.split("-")[0], split) for task_id in ids]

    def make_env(self):
        return functools.partial(ToyEnv, self.needed)

    def messages(self, task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
        past = " ".join(f"{entry.observation} {entry.action}" for entry in history[-self.history_length :])
        return [{"role": "user", "content": f"{past} {observation.text}".strip()}]

    def parse(self, response: str) -> ParsedResponse:
        match = re.search(r"<action>(.*?)</action>", response, re.DOTALL)
        if self.lenient:
            match = re.search("(" + "|".join(COLOURS) + ")", response)
        think = re.search(r"<think>(.*?)</think>", response, re.DOTALL)
        return ParsedResponse(
            thinking=think.group(1).strip() if think else "",
            action=match.group(1).strip() if match else "",
            valid=bool(match),
            thinking_span=think.span(1) if think else None,
            action_span=match.span(1) if match else None,
        )

    def privileged_context(self, task: Task) -> str | None:
        return f"hint say {task.id.split('-')[0]}"

    def gold_answer(self, task: Task) -> str:
        return task.id.split("-")[0]
