"""Demonstrations: the scripted player in the real environment, with and without the hint, as prompts and responses."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiny_policy.demonstrations import Demonstration

from turncredit.envs import HistoryEntry, Task
from turncredit.envs.webshop import ShopConfig, WebShopEnv, WebShopSuite
from turncredit.envs.webshop.data import DATA_VARIABLE
from turncredit.rollout.prompts import with_privileged_context

from .player import Habits, next_move
from .prompt import Notebook, compact_messages, read_wish

MAX_TURNS = 8
"""Turns of an episode of the embedded default: enough for a shopper that wastes none, who needs five or six. The
benchmark's own limit is 15."""


@dataclass(frozen=True)
class Played:
    """One demonstrated episode. Args: its turns, whether it had the hint, success, score from 0 to 100."""

    turns: list[Demonstration]
    hinted: bool
    success: bool
    score: float


def embedded_suite(config: ShopConfig | None = None, **options: Any) -> WebShopSuite:
    """The suite of the embedded default: the generated shop, compact prompts, a teacher that reads the goal's hint.

    Official files are left aside, so ``WEBSHOP_DATA`` is taken out of this process's environment.

    Args:
        config: of a generated shop; None takes the usual one.
        options: other arguments of `WebShopSuite`.
    """
    os.environ.pop(DATA_VARIABLE, None)
    defaults = {"privileged": "hint", "max_turns": MAX_TURNS, "build_messages": compact_messages}
    return WebShopSuite(config or ShopConfig(), **{**defaults, **options})


def demonstrate(
    suite: WebShopSuite, tasks: Sequence[Task], *, episodes_per_goal: int, max_turns: int, habits: Habits, seed: int
) -> list[Played]:
    """Play every goal `episodes_per_goal` times without and as often with the hint.

    Args:
        suite: the shop and its prompts.
        tasks: goals to play.
        episodes_per_goal: episodes of each kind.
        max_turns: turns after which an episode is given up.
        habits: see `player.Habits`.
        seed: every episode's chances follow from it, the goal and the episode's number.

    Raises:
        ValueError: a number is not positive.
    """
    if min(episodes_per_goal, max_turns) < 1:
        raise ValueError(
            f"demonstrate: episodes_per_goal and max_turns must be at least 1, got {episodes_per_goal} and "
            f"{max_turns}; 2 and 15 are the usual values"
        )
    environment = WebShopEnv(suite.shop)
    played = []
    for task in tasks:
        for episode in range(episodes_per_goal):
            for context in (None, suite.privileged_context(task)):
                rng = random.Random(f"{seed}/{task.id}/{episode}/{context is None}")
                played.append(play_episode(environment, task, context, max_turns, habits, rng))
    return played


def play_episode(
    environment: WebShopEnv, task: Task, hint: str | None, max_turns: int, habits: Habits, rng: random.Random
) -> Played:
    """One episode of the scripted player."""
    observation = environment.reset(task.id)
    notes = Notebook(read_wish(observation.text))
    history: list[HistoryEntry] = []
    turns = []
    for _ in range(max_turns):
        move = next_move(notes, hint, rng, habits)
        messages = compact_messages(task, history, observation)
        shown = messages if hint is None else with_privileged_context(messages, hint)
        turns.append(Demonstration(shown, move.response, hint is not None))
        result = environment.step(move.command)
        history.append(HistoryEntry(observation.text, move.command))
        observation = result.observation
        if result.done:
            return Played(turns, hint is not None, result.success > 0, result.info["score"])
        notes.read(move.command, observation.text)
    return Played(turns, hint is not None, False, 0.0)
