"""A whole update as a plain loop, written from the equations: one row at a time, full logits, AdamW by its formula.

Nothing of the trainer is used: settings and trajectories are read, everything else is computed here.
"""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import numpy as np
import torch

from helpers.reference import group_advantages, step_opsd
from helpers.tiny import tiny_model
from helpers.update_cases import ADAM_EPS, NUM_GENERATIONS, NUM_TASKS, SUITE, play, run_updates, score


class Row:
    """One turn: its trajectory's slot and group, ids, recorded log-probs, and what the loss adds to it."""

    def __init__(self, index: int, k: int, trajectory, turn) -> None:
        self.index, self.k, self.turn = index, k, turn
        self.group, self.slot = trajectory.group_id, trajectory.group_id * NUM_GENERATIONS + trajectory.rollout_index
        self.prompt, self.response = turn.prompt_ids, turn.response_ids
        self.old = torch.tensor(turn.logprobs)
        self.advantages = torch.zeros(len(turn.response_ids))
        self.reference = self.teacher = None


def rows_of(trajectories) -> list[Row]:
    """Rows of the rollouts that did not fail."""
    good = [t for t in trajectories if t.failure is None]
    return [Row(i, k, t, turn) for i, t in enumerate(good) for k, turn in enumerate(t.turns)]


def rewards_and_groups(trajectories):
    """Of the rollouts that did not fail."""
    good = [t for t in trajectories if t.failure is None]
    return [t.reward for t in good], [t.group_id for t in good]


def residuals(rows: list[Row], rewards, groups, penalty=0.1, scale=True, eps=1e-4) -> list[float]:
    """-penalty (invalid - its mean over the group's turns) / (max(std of the group's rewards, penalty) + eps)."""
    result = []
    for row in rows:
        turns = [other for other in rows if other.group == row.group]
        share = sum(not other.turn.valid for other in turns) / len(turns)
        members = [r for r, g in zip(rewards, groups, strict=True) if g == row.group]
        mean = sum(members) / len(members)
        std = math.sqrt(sum((r - mean) ** 2 for r in members) / max(len(members) - 1, 1))
        result.append(-penalty * ((not row.turn.valid) - share) / ((max(std, penalty) + eps) if scale else 1.0))
    return result


def give_grpo_credit(rows: list[Row], trajectories, scale=True, penalty=0.1) -> None:
    """The trajectory's advantage on every token, and the residual of its turn."""
    rewards, groups = rewards_and_groups(trajectories)
    advantages = group_advantages(rewards, groups, scale=scale)
    for row, extra in zip(rows, residuals(rows, rewards, groups, penalty, scale), strict=True):
        base = 0.0 if abs(advantages[row.index]) < 1e-6 else advantages[row.index]
        row.advantages = torch.full((len(row.response),), base + extra)


def learning_rate(step: int, settings) -> float:
    """Linear warm-up to the rate, then as the schedule says, to 0 at the last update."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    left = 1 - (step - settings.warmup_steps) / (settings.max_steps - settings.warmup_steps)
    shape = {"constant": 1.0, "linear": left, "cosine": (1 + math.cos(math.pi * (1 - left))) / 2}
    return settings.learning_rate * shape[settings.lr_scheduler_type]


class AdamW:
    """Decoupled weight decay, betas 0.9 and 0.999, after clipping the gradient's norm."""

    def __init__(self, model, weight_decay: float, max_norm: float) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]
        self.decay, self.max_norm, self.time = weight_decay, max_norm, 0

    @torch.no_grad()
    def step(self, gradients, rate: float) -> float:
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        gradients = [g * min(1.0, self.max_norm / norm) for g in gradients]
        self.time += 1
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
            p *= 1 - rate * self.decay
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            mean, square = m / (1 - 0.9**self.time), v / (1 - 0.999**self.time)
            p -= rate * mean / (square.sqrt() + ADAM_EPS)
        return norm


def token_terms(row: Row, now, entropy, settings, policy_weight: float):
    """Policy gradient, KL and entropy of one row's tokens, to be minimised."""
    terms = []
    for t in range(len(row.response)):
        a, r = row.advantages[t], (now[t] - row.old[t]).exp()
        objective = torch.minimum(r * a, r.clamp(1 - settings.epsilon, 1 + settings.epsilon_high) * a)
        if a < 0 and settings.delta is not None:
            objective = torch.maximum(objective, settings.delta * a)
        term = -policy_weight * objective - settings.entropy_coef * entropy[t]
        if settings.beta:
            d = row.reference[t] - now[t]
            term = term + settings.beta * (d.exp() - d - 1)
        terms.append(term)
    return torch.stack(terms)


def auxiliary_terms(row: Row, now, kind: str, gate_beta: float):
    """The distillation term of one row's tokens."""
    if kind == "sdar":
        gate = torch.sigmoid(gate_beta * (row.teacher - row.old))
        return gate * (row.teacher - now)
    gap = now - row.teacher
    return (now - row.old).exp() * ((-gap).exp() - 1 + gap)


def minibatch_loss(model, rows: list[Row], active: set[int], settings, auxiliary):
    """The objective of one optimiser step, or None where nothing takes part."""
    kind, coef, gate_beta, policy_weight = auxiliary or (None, 0.0, 0.0, 1.0)
    tokens: dict[int, int] = {}
    for row in rows:
        if row.group in active:
            tokens[row.slot] = tokens.get(row.slot, 0) + len(row.response)
    if not tokens and (kind is None or not rows):
        return None
    loss, everything = torch.zeros(()), sum(len(row.response) for row in rows)
    for row in rows:
        if row.group not in active and kind is None:
            continue
        now, entropy = score(model, row.prompt, row.response, settings.sampling.temperature)
        if row.group in active:
            terms = token_terms(row, now, entropy, settings, policy_weight)
            if settings.loss_type == "token-mean":
                loss = loss + terms.sum() / sum(tokens.values())
            elif settings.loss_type == "seq-mean-token-mean":
                loss = loss + terms.sum() / tokens[row.slot] / len(tokens)
            else:
                loss = loss + terms.sum() / settings.sampling.max_completion_length / len(tokens)
        if kind is not None:
            loss = loss + coef * auxiliary_terms(row, now, kind, gate_beta).sum() / everything
    return loss


class ReferenceRun:
    """Updates of a model on given rollouts.

    Args:
        model: trained in place.
        settings: read for its numbers.
        give_credit: ``(rows, trajectories, run, step)`` sets advantages and teacher log-probs.
        auxiliary: ``(kind, coef, gate beta, policy weight)`` or None.
        recompute: old log-probs are the policy's own.
    """

    def __init__(self, model, settings, give_credit, auxiliary=None, recompute=False) -> None:
        self.model, self.settings, self.give_credit = model, settings, give_credit
        self.auxiliary, self.recompute = auxiliary, recompute
        self.initial = copy.deepcopy(model)
        self.optimizer = AdamW(model, settings.weight_decay, settings.max_grad_norm)
        self.norms: list[float] = []

    @torch.no_grad()
    def prepare(self, trajectories, step: int) -> list[Row]:
        temperature = self.settings.sampling.temperature
        rows = rows_of(trajectories)
        for row in rows:
            if self.recompute:
                row.old = score(self.model, row.prompt, row.response, temperature)[0]
            row.reference = score(self.initial, row.prompt, row.response, temperature)[0]
        self.give_credit(rows, trajectories, self, step)
        return rows

    def update(self, trajectories, step: int) -> None:
        settings = self.settings
        rows = self.prepare(trajectories, step)
        active = {row.group for row in rows if (row.advantages != 0).any()}
        for epoch in range(settings.num_iterations):
            order = np.random.default_rng([settings.seed, step, epoch]).permutation(NUM_TASKS * NUM_GENERATIONS)
            for part in range(settings.num_minibatches):
                chosen = set(order[part :: settings.num_minibatches].tolist())
                loss = minibatch_loss(
                    self.model, [row for row in rows if row.slot in chosen], active, settings, self.auxiliary
                )
                if loss is not None:
                    gradients = torch.autograd.grad(loss, self.optimizer.parameters)
                    self.norms.append(self.optimizer.step(gradients, learning_rate(step, settings)))


def rollouts(updates: int = 2, noise: float = 0.9):
    return [play(tiny_model(), SUITE.tasks("train")[:NUM_TASKS], seed, noise=noise) for seed in range(updates)]


def assert_equal_weights(settings, give_credit, auxiliary=None, recompute=False, updates=2, **kwargs):
    played = rollouts(updates)
    got, expected, start = tiny_model(), tiny_model(), tiny_model()
    metrics = run_updates(got, settings, played, **kwargs)
    run = ReferenceRun(expected, settings, give_credit, auxiliary, recompute)
    for step, trajectories in enumerate(played):
        run.update(trajectories, step)
    moved = 0.0
    for (name, ours), theirs, before in zip(
        got.named_parameters(), expected.parameters(), start.parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
        moved = max(moved, float((theirs - before).detach().abs().max()))
    assert moved > 1e-3, "the weights have moved"
    return metrics, run


def give_shaped_credit(rows, trajectories, method, **options):
    """Advantages of a method written as loops, and the residual."""
    rewards, groups = rewards_and_groups(trajectories)
    inputs = plain_inputs(rows, trajectories)
    out, *_ = method(inputs, **options) if method is not step_opsd else (method(inputs, **options),)
    for row, values, extra in zip(rows, out, residuals(rows, rewards, groups), strict=True):
        row.advantages = torch.tensor(values[: len(row.response)]) + extra
        row.advantages[row.advantages.abs() < 1e-6] = 0.0


def plain_inputs(rows, trajectories):
    """What the loops of `reference` read; the span of a turn is its last token."""
    good = [t for t in trajectories if t.failure is None]
    width = max(len(row.response) for row in rows)

    def padded(name):
        return torch.stack([torch.nn.functional.pad(getattr(r, name), (0, width - len(r.response))) for r in rows])

    return SimpleNamespace(
        response_mask=torch.tensor([[t < len(r.response) for t in range(width)] for r in rows]),
        student_logprobs=padded("old"),
        teacher_logprobs=padded("teacher"),
        span_mask=torch.tensor([[t == len(r.response) - 1 for t in range(width)] for r in rows]),
        anchor_ids=None,
        turn_rewards=None,
        successes=torch.tensor([t.success for t in good]),
        group_ids=torch.tensor([t.group_id for t in good]),
        trajectory_ids=torch.tensor([r.index for r in rows]),
        turn_ids=torch.tensor([r.k for r in rows]),
        rewards=torch.tensor([t.reward for t in good], dtype=torch.float64),
    )
