"""Demonstrations: the scripted player on the real engine, with and without the hint, as prompts and responses."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from turncredit.envs import HistoryEntry, Message, Task
from turncredit.envs.alfworld import AlfWorldSuite
from turncredit.rollout.prompts import with_privileged_context

from .demonstrator import Habits, next_move
from .prompt import compact_messages, keep_notes, trained_hint


@dataclass(frozen=True)
class Demonstration:
    """One turn to imitate. Args: chat messages, response, whether the hint stands in the messages."""

    messages: list[Message]
    response: str
    hinted: bool


@dataclass(frozen=True)
class Played:
    """One demonstrated episode. Args: its turns, whether it had the hint, whether it was won within `turns`."""

    turns: list[Demonstration]
    hinted: bool
    success: bool


def make_suite(data: str | os.PathLike[str], split: str, max_turns: int) -> AlfWorldSuite:
    """The suite of the embedded default: compact prompts, and a teacher that reads the instance's hint."""
    return AlfWorldSuite(
        data,
        splits=[split],
        privileged="hint",
        max_turns=max_turns,
        build_messages=compact_messages,
        build_hint=trained_hint,
    )


def demonstrate(
    data: str | os.PathLike[str],
    split: str,
    *,
    episodes_per_game: int,
    max_turns: int,
    habits: Habits,
    seed: int,
    num_workers: int,
) -> list[Played]:
    """Play every game of a split `episodes_per_game` times without and as often with the hint.

    Args:
        data: folder of games.
        split: name of the split.
        episodes_per_game: episodes of each kind.
        max_turns: turns after which an episode is given up.
        habits: see `demonstrator.Habits`.
        seed: every episode's chances follow from it, the game and the episode's number, whatever the workers.
        num_workers: processes; 0 plays in this one.

    Raises:
        ValueError: a number is not positive.
    """
    if min(episodes_per_game, max_turns) < 1:
        raise ValueError(
            f"demonstrate: episodes_per_game and max_turns must be at least 1, got {episodes_per_game} and "
            f"{max_turns}; 2 and 18 are the usual values"
        )
    tasks = make_suite(data, split, max_turns).tasks(split)
    play = partial(_play_games, data, split, episodes_per_game, max_turns, habits, seed)
    if num_workers == 0:
        return play(range(len(tasks)))
    size = 25
    chunks = [range(start, min(start + size, len(tasks))) for start in range(0, len(tasks), size)]
    with ProcessPoolExecutor(num_workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return [played for chunk in pool.map(play, chunks) for played in chunk]


def _play_games(
    data: str | os.PathLike[str],
    split: str,
    episodes_per_game: int,
    max_turns: int,
    habits: Habits,
    seed: int,
    numbers: Sequence[int],
) -> list[Played]:
    suite = make_suite(data, split, max_turns)
    tasks = suite.tasks(split)
    environment = suite.make_env()()
    played = []
    try:
        for number in numbers:
            hint = suite.privileged_context(tasks[number])
            for episode in range(episodes_per_game):
                for context in (None, hint):
                    rng = random.Random(f"{seed}/{tasks[number].id}/{episode}/{context is None}")
                    played.append(play_episode(environment, tasks[number], context, max_turns, habits, rng))
    finally:
        environment.close()
    return played


def play_episode(environment, task: Task, hint: str | None, max_turns: int, habits: Habits, rng) -> Played:
    """One episode of the scripted player in an environment of the suite."""
    observation = environment.reset(task.id)
    notes = keep_notes(observation.text, [])
    history: list[HistoryEntry] = []
    turns = []
    for _ in range(max_turns):
        move = next_move(notes, [entry.action for entry in history], hint, rng, habits)
        messages = compact_messages(task, history, observation)
        shown = messages if hint is None else with_privileged_context(messages, hint)
        turns.append(Demonstration(shown, move.response, hint is not None))
        result = environment.step(move.command)
        history.append(HistoryEntry(observation.text, move.command))
        observation = result.observation
        notes.read(observation.text)
        if result.done:
            return Played(turns, hint is not None, result.success)
    return Played(turns, hint is not None, False)
