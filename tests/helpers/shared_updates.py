"""Append-only rollouts of siblings for whole updates: every turn's prompt continues the one before, token for token."""

from __future__ import annotations

import random
from dataclasses import replace

import torch

from helpers.tiny import WORDS, tiny_model
from helpers.update_cases import NUM_GENERATIONS, NUM_TASKS, REWARDS, SUITE, score
from turncredit.rollout import StopReason, Trajectory, Turn


@torch.no_grad()
def play_append_only(model, tasks, seed: int, temperature: float = 0.7, noise: float = 0.9) -> list[Trajectory]:
    """Four rollouts of each task, all from one observation; recorded log-probs are the policy's plus noise.

    The first two rollouts of a task say the same in their first turn, with other log-probs on record. What a teacher
    reads grows with the history too, so that its prompts begin alike.
    """
    rng = random.Random(seed)
    system = tuple(rng.randrange(2, len(WORDS)) for _ in range(10))
    trajectories = []
    for group, task in enumerate(tasks):
        first = system + tuple(rng.randrange(2, len(WORDS)) for _ in range(6))
        text = " ".join(rng.choice(WORDS[9:]) for _ in range(5))
        said_by_both = tuple(rng.randrange(2, len(WORDS)) for _ in range(4))
        for rollout in range(NUM_GENERATIONS):
            turns, history, told = [], first, text
            for k in range(rng.randint(1, 4)):
                response = tuple(rng.randrange(2, len(WORDS)) for _ in range(rng.randint(1, 5)))
                response = said_by_both if k == 0 and rollout < 2 else response
                own, _ = score(model, history, response, temperature)
                old = tuple(float(value) + rng.gauss(0, noise) for value in own)
                valid = group != 1 or (rollout, k) != (2, 0)
                spans = {"action_tokens": (len(response) - 1, len(response)), "thinking_tokens": (0, 1)}
                thinking = f"{rng.uniform(0, 1.2):.3f}"  # an angle, see `helpers.update_cases.Angles`
                messages = ({"role": "user", "content": told},)
                turns.append(
                    Turn(history, response, old, messages, "r", thinking, "0.5", told, (), 0.0, valid, **spans)
                )
                history += response + tuple(rng.randrange(2, len(WORDS)) for _ in range(rng.randint(1, 3)))
                told += " " + rng.choice(WORDS[9:])
            reward = REWARDS[group][rollout]
            done = Trajectory(
                task.id, task.type, group, rollout, tuple(turns), reward, float(reward == 1.0), StopReason.DONE
            )
            trajectories.append(replace(done, failure="died") if (group, rollout) == (3, 3) else done)
    return trajectories


def append_only_rollouts(updates: int = 2) -> list[list[Trajectory]]:
    tasks = SUITE.tasks("train")[:NUM_TASKS]
    return [play_append_only(tiny_model(), tasks, seed) for seed in range(updates)]
