"""Whole updates against an independent loop: the weights after them say what temperature, epochs, minibatches, weight
decay, clipping, KL, entropy, penalty, schedules and auxiliary terms do."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.reference import agent_opsd
from helpers.reference_update import (
    ReferenceRun,
    assert_equal_weights,
    give_grpo_credit,
    give_shaped_credit,
    rollouts,
    score,
)
from helpers.tiny import tiny_model
from helpers.update_cases import TOKENIZER, config, run_updates

from turncredit.rollout import render_prompt, with_privileged_context
from turncredit.trainers.losses import LOSS_TYPES

AUXILIARY = {
    "sdar": ("sdar", 0.01, 5.0, 1.0),
    "grpo_opsd": ("sdar", 0.01, 0.0, 1.0),
    "opsd": ("sdar", 0.01, 0.0, 0.0),
    "skill_sd": ("skill_sd", 0.001, None, 1.0),
}


def grpo_credit(rows, trajectories, run, step):
    give_grpo_credit(rows, trajectories, penalty=run.settings.credit_options.get("invalid_penalty", 0.1))


@torch.no_grad()
def score_teacher(rows, trajectories, run):
    """The current policy under the task's hint, which stands in the last user message."""
    good = [t for t in trajectories if t.failure is None]
    for row in rows:
        hint = f"hint say {good[row.index].task_id.split('-')[0]}"
        prompt = render_prompt(TOKENIZER, with_privileged_context(row.turn.messages, hint))
        assert prompt != row.prompt
        row.teacher = score(run.model, prompt, row.response, run.settings.sampling.temperature)[0]


def distilled(rows, trajectories, run, step):
    grpo_credit(rows, trajectories, run, step)
    score_teacher(rows, trajectories, run)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_every_loss_type(tmp_path, loss_type):
    metrics, run = assert_equal_weights(config(tmp_path, loss_type=loss_type), grpo_credit)
    for line in metrics:  # every bound acts, so that every bound is tested
        assert all(line[f"train/{name}"] > 0 for name in ("clip_low", "clip_high", "clip_dual", "kl", "entropy"))
        assert line["train/optimizer_steps"] == 4
        assert line["credit/groups_without_advantage"] == 1
    for step, line in enumerate(metrics):
        assert line["train/grad_norm"] == pytest.approx(sum(run.norms[4 * step : 4 * step + 4]) / 4, rel=1e-4)
    assert max(run.norms) > 0.5, "the gradient is clipped"


@pytest.mark.parametrize("name", AUXILIARY)
def test_every_recipe_with_an_auxiliary_loss(tmp_path, name):
    metrics, _ = assert_equal_weights(config(tmp_path, credit=name), distilled, AUXILIARY[name])
    assert all("train/auxiliary_loss" in line for line in metrics)


@pytest.mark.parametrize(
    "changes",
    [
        {"delta": None},
        {"beta": 0.0},
        {"entropy_coef": 0.0},
        {"credit_options": {"invalid_penalty": 0.0}},
        {"weight_decay": 0.0},
        {"max_grad_norm": 0.05},
        {"epsilon": 0.05, "epsilon_high": 0.5},
        {"num_iterations": 1, "num_minibatches": 3},
        {"seed": 11},
        {"warmup_steps": 3, "lr_scheduler_type": "constant"},
        {"warmup_steps": 0, "lr_scheduler_type": "linear"},
        {"per_device_train_batch_size": 3},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_every_setting(tmp_path, changes):
    assert_equal_weights(config(tmp_path, **changes), grpo_credit)


def test_dr_grpo_is_not_divided_anywhere(tmp_path):
    def credit(rows, trajectories, run, step):
        give_grpo_credit(rows, trajectories, scale=False)

    assert_equal_weights(config(tmp_path, credit="dr_grpo"), credit)


def test_recomputed_logprobs_replace_the_recorded_ones(tmp_path):
    metrics, _ = assert_equal_weights(config(tmp_path, recompute_logprobs=True), grpo_credit, recompute=True)
    assert metrics[0]["train/sampling_drift"] > 0.1


def test_agent_opsd(tmp_path):
    def credit(rows, trajectories, run, step):
        score_teacher(rows, trajectories, run)
        give_shaped_credit(rows, trajectories, agent_opsd)

    metrics, _ = assert_equal_weights(config(tmp_path, credit="agent_opsd"), credit)
    assert 0.5 < metrics[0]["credit/invalid_residual_max_abs"] < 1


def test_a_metric_of_every_kind(tmp_path):
    """Over epochs and minibatches: tokens are added up, token means weigh by tokens."""
    settings = config(tmp_path, num_minibatches=3, num_iterations=1, learning_rate=1e-9)
    played = rollouts(1)
    model = tiny_model()
    (metrics,) = run_updates(tiny_model(), settings, played)
    run = ReferenceRun(model, settings, grpo_credit)
    rows = run.prepare(played[0], 0)
    active = {row.group for row in rows if (row.advantages != 0).any()}
    ratios, kl, entropies, policy = [], [], [], []
    counted = [row for row in rows if row.group in active]
    for row in counted:
        now, entropy = (value.detach() for value in score(model, row.prompt, row.response, 0.7))
        ratio = (now - row.old).exp()
        ratios += ratio.tolist()
        entropies += entropy.tolist()
        kl += ((row.reference - now).exp() - (row.reference - now) - 1).tolist()
        loss = torch.maximum(-ratio * row.advantages, -ratio.clamp(0.8, 1.24) * row.advantages)
        loss = torch.where(row.advantages < 0, torch.minimum(loss, -3 * row.advantages), loss)
        policy.append((row.slot, len(row.response), float(loss.sum())))
    n = len(ratios)
    assert metrics["train/num_tokens"] == n
    assert metrics["train/ratio"] == pytest.approx(sum(ratios) / n, rel=1e-4)
    assert metrics["train/log_ratio_abs"] == pytest.approx(sum(abs(math.log(r)) for r in ratios) / n, rel=1e-4)
    assert metrics["train/entropy"] == pytest.approx(sum(entropies) / n, rel=1e-4)
    assert metrics["train/kl"] == pytest.approx(sum(kl) / n, abs=1e-6)
    tokens = {slot: sum(size for other, size, _ in policy if other == slot) for slot, _, _ in policy}
    expected = sum(value / tokens[slot] for slot, _, value in policy) / len(tokens)
    assert metrics["train/policy_loss"] == pytest.approx(expected, rel=1e-4)
    twice = config(tmp_path, num_minibatches=3, num_iterations=2, learning_rate=1e-9)
    (doubled,) = run_updates(tiny_model(), twice, played)
    assert doubled["train/num_tokens"] == 2 * n
    assert doubled["train/ratio"] == pytest.approx(metrics["train/ratio"], rel=1e-4)
    assert doubled["train/policy_loss"] == pytest.approx(metrics["train/policy_loss"], rel=1e-4)
