"""Demonstrations: a scripted player in the real environment, with and without privileged context."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from turncredit.envs import Environment, HistoryEntry, Message, Observation, Task, TaskSuite
from turncredit.rollout import with_privileged_context


@dataclass(frozen=True)
class Demonstration:
    """One turn to imitate. Args: chat messages, response, whether privileged context stands in the messages."""

    messages: list[Message]
    response: str
    hinted: bool


@dataclass(frozen=True)
class Played:
    """One demonstrated episode. Args: its turns, whether it had the context, whether it was won within `max_turns`."""

    turns: list[Demonstration]
    hinted: bool
    success: bool


@dataclass(frozen=True)
class Lesson:
    """How tasks are demonstrated; all of it travels to other processes.

    Args:
        make_suite: called as ``()``, in every process.
        player: called as ``(history, observation, context, rng) -> response``.
        max_turns: turns after which an episode is given up.
        seed: an episode's chances follow from ``seed.format(task=, episode=, plain=)``, `plain` meaning
            without privileged context, or ``hinted=`` with it``.
        episodes: of a task, without and as many with privileged context.

    Raises:
        ValueError: a number is not positive.
    """

    make_suite: Callable[[], TaskSuite]
    player: Callable[[Sequence[HistoryEntry], Observation, str | None, random.Random], str]
    max_turns: int
    seed: str
    episodes: int = 1

    def __post_init__(self) -> None:
        if min(self.episodes, self.max_turns) < 1:
            raise ValueError(
                f"Lesson: episodes and max_turns must be at least 1, got {self.episodes} and {self.max_turns}; "
                "2 and 15 are usual values"
            )

    def play(self, tasks: Sequence[Task]) -> list[Played]:
        """All episodes of some tasks, in order."""
        suite = self.make_suite()
        environment = suite.make_env()()
        try:
            return [
                self._episode(suite, environment, task, number, hinted)
                for task in tasks
                for number in range(self.episodes)
                for hinted in (False, True)
            ]
        finally:
            environment.close()

    def _episode(self, suite: TaskSuite, environment: Environment, task: Task, number: int, hinted: bool) -> Played:
        rng = random.Random(self.seed.format(task=task.id, episode=number, plain=not hinted, hinted=hinted))
        context = suite.privileged_context(task) if hinted else None
        observation = environment.reset(task.id)
        history: list[HistoryEntry] = []
        turns = []
        for _ in range(self.max_turns):
            messages = suite.messages(task, history, observation)
            shown = messages if context is None else with_privileged_context(messages, context)
            response = self.player(history, observation, context, rng)
            turns.append(Demonstration(shown, response, hinted))
            action = suite.parse(response).action
            result = environment.step(action)
            history.append(HistoryEntry(observation.text, action))
            observation = result.observation
            if result.done:
                return Played(turns, hinted, bool(result.success))
        return Played(turns, hinted, False)


def demonstrate(lesson: Lesson, tasks: Sequence[Task], num_workers: int = 0) -> list[Played]:
    """All episodes of a lesson, by that many processes; 0 plays in this one, and the outcome is the same."""
    if num_workers == 0:
        return lesson.play(tasks)
    size = 25
    chunks = [tasks[start : start + size] for start in range(0, len(tasks), size)]
    with ProcessPoolExecutor(num_workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return [played for chunk in pool.map(lesson.play, chunks) for played in chunk]
