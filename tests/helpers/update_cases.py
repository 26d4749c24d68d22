"""Hand-made trajectories for tests of whole updates: ragged turns, both signs, recorded log-probs off the policy's."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from unittest import mock

import numpy as np
import torch

from helpers.tiny import WORDS, tiny_tokenizer
from helpers.toy import ToySuite
from turncredit.rollout import SamplingConfig, StopReason, Trajectory, Turn, render_prompt
from turncredit.trainers import GRPOConfig, GRPOTrainer
from turncredit.trainers.methods import align_opsd

TOKENIZER = tiny_tokenizer()
SUITE = ToySuite(num_tasks=8)
NUM_TASKS, NUM_GENERATIONS = 4, 4
ADAM_EPS = 1e-4  # for torch's 1e-8: an entry whose gradient is all rounding would move by the learning rate
REWARDS = ([1.0, 0.0, 0.0, 0.5], [0.0] * 4, [1.0] * 4, [0.1, 0.4, 0.7, 1.0])
"""Mixed; equal with invalid turns; equal and valid throughout: no signal; one failed rollout."""


def score(model, prompt, response, temperature: float):
    """Log-probs ``[n]`` and entropies ``[n]`` of a response, from the model's own logits, one row at a time."""
    logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0].float()
    log_all = (logits / temperature).log_softmax(-1)[len(prompt) - 1 : -1]
    return log_all[range(len(response)), list(response)], -(log_all.exp() * log_all).sum(-1)


@torch.no_grad()
def play(model, tasks, seed: int, temperature: float = 0.7, noise: float = 0.9) -> list[Trajectory]:
    """Four rollouts of each task. Recorded log-probs are the policy's plus noise, so that every clip bound acts."""
    rng = random.Random(seed)
    trajectories = []
    for group, task in enumerate(tasks):
        for rollout in range(NUM_GENERATIONS):
            turns = []
            for k in range(rng.randint(1, 3)):
                content = " ".join(rng.choice(WORDS[9:]) for _ in range(rng.randint(1, 5)))
                messages = ({"role": "user", "content": content},)
                prompt = render_prompt(TOKENIZER, messages)
                response = tuple(rng.randrange(2, len(WORDS)) for _ in range(rng.randint(1, 5)))
                own, _ = score(model, prompt, response, temperature)
                old = tuple(min(float(value) + rng.gauss(0, noise), 0.0) for value in own)
                valid = group != 1 or (rollout, k) != (2, 0)
                spans = {"action_tokens": (len(response) - 1, len(response)), "thinking_tokens": (0, 1)}
                thinking = f"{rng.uniform(0, 1.2):.3f}"  # an angle, see `Angles`
                turns.append(
                    Turn(prompt, response, old, messages, "r", thinking, "0.5", content, (), 0.0, valid, **spans)
                )
            reward = REWARDS[group][rollout]
            done = Trajectory(
                task.id, task.type, group, rollout, tuple(turns), reward, float(reward == 1.0), StopReason.DONE
            )
            trajectories.append(replace(done, failure="died") if (group, rollout) == (3, 3) else done)
    return trajectories


class Angles:
    """A sentence encoder for texts that are an angle in radians."""

    def encode(self, texts):
        angles = np.array([float(text) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def config(folder, **changes) -> GRPOConfig:
    """Everything at once: epochs, minibatches, temperature, decay, KL, entropy, penalty, dual clip, warm-up."""
    settings = {
        "output_dir": str(folder),
        "max_steps": 5,
        "num_tasks": NUM_TASKS,
        "num_generations": NUM_GENERATIONS,
        "credit": "grpo",
        "sampling": SamplingConfig(temperature=0.7, max_completion_length=8),
        "num_workers": 0,
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        "warmup_steps": 1,
        "lr_scheduler_type": "cosine",
        "num_iterations": 2,
        "num_minibatches": 2,
        "beta": 0.05,
        "entropy_coef": 0.02,
        "max_grad_norm": 0.5,
        "seed": 3,
        "preflight": False,  # recorded log-probs are moved away from the policy's on purpose
    }
    return GRPOConfig(**{**settings, **changes})


def run_updates(model, settings: GRPOConfig, rollouts, answers=None, encoder=None):
    """The trainer's updates on given rollouts; returns the metrics of each. ``answers(prompts)``: the teacher's."""
    answering = contextlib.nullcontext()
    if answers is not None:
        answering = mock.patch.object(align_opsd, "teacher_answers", lambda batch, *_: answers(batch))
    with answering, GRPOTrainer(model, tiny_tokenizer(), SUITE, settings, encoder=encoder) as run:
        for group in run.optimizer.param_groups:
            group["eps"] = ADAM_EPS
        metrics = []
        for trajectories in rollouts:
            run.rollout = lambda tasks, trajectories=trajectories: trajectories
            metrics.append(run.train_step())
    return metrics
