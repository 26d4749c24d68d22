"""Demonstrations: the scripted player in the real environment, with and without the privileged facts."""

from __future__ import annotations

import random
from collections.abc import Iterable

from tiny_policy.demonstrations import Demonstration, Played

from turncredit.envs import Environment, HistoryEntry, Task
from turncredit.envs.search_qa import SearchQASuite
from turncredit.envs.search_qa.generator import KINDS
from turncredit.rollout.prompts import with_privileged_context

from .player import Habits, next_move
from .prompt import keep_notes
from .worlds import demonstration_suite


def demonstrate(seeds: Iterable[int], *, questions_per_kind: int, habits: Habits, seed: int) -> list[Played]:
    """Play questions of every kind in the worlds of `seeds`, each once without and once with the facts.

    Args:
        seeds: of the worlds.
        questions_per_kind: questions of a world and kind, at most 60.
        habits: see `player.Habits`.
        seed: every episode's chances follow from it and the question.

    Raises:
        ValueError: the number of questions is out of range.
    """
    if not 1 <= questions_per_kind <= 60:
        raise ValueError(
            f"demonstrate: questions_per_kind must lie in [1, 60], got {questions_per_kind}; a world has 60 comparisons"
        )
    played = []
    for world in seeds:
        suite = demonstration_suite(world)
        environment = suite.make_env()()
        for kind in KINDS:
            tasks = [task for task in suite.tasks("demonstrations") if suite.question(task).kind == kind]
            for task in random.Random(f"{seed}/{world}/{kind}").sample(tasks, questions_per_kind):
                for informed in (False, True):
                    rng = random.Random(f"{seed}/{world}/{task.id}/{informed}")
                    played.append(play_episode(suite, environment, task, informed, habits, rng))
        environment.close()
    return played


def play_episode(
    suite: SearchQASuite, environment: Environment, task: Task, informed: bool, habits: Habits, rng: random.Random
) -> Played:
    """One episode of the scripted player in an environment of the suite."""
    context = suite.privileged_context(task) if informed else None
    observation = environment.reset(task.id)
    history: list[HistoryEntry] = []
    turns = []
    while True:
        messages = suite.messages(task, history, observation)
        shown = messages if context is None else with_privileged_context(messages, context)
        move = next_move(keep_notes(history, observation.text), informed, rng, habits)
        turns.append(Demonstration(shown, move.response, informed))
        result = environment.step(move.action)
        if result.done:
            return Played(turns, informed, bool(result.success))
        history.append(HistoryEntry(observation.text, move.action))
        observation = result.observation
