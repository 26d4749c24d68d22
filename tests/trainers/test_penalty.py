"""The trainer's invalid-action residual has the units of the method's advantages, and says its size."""

from __future__ import annotations

import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.update_cases import SUITE, config

from turncredit.credit import grpo, register_credit, registry
from turncredit.credit.invalid_action import invalid_action_residual
from turncredit.rollout import StopReason, Trajectory, Turn
from turncredit.trainers import GRPOTrainer
from turncredit.trainers.batch import make_batch


def trajectory(reward, valid, rollout):
    turns = tuple(
        Turn((5, 6), (7, 8), (-1.0, -1.0), ({"role": "user", "content": "door"},), "r", valid=ok) for ok in valid
    )
    return Trajectory("red-train0", "red", 0, rollout, turns, reward, 0.0, StopReason.DONE)


def phase_of(folder, rewards, valid, **changes):
    batch = make_batch([trajectory(r, v, i) for i, (r, v) in enumerate(zip(rewards, valid, strict=True))])
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(folder, **changes)) as run:
        return run.phase(batch, 0), batch


FAILED, ONE_IN_FOUR = [0.0, 0.0], [[True, False], [True, True]]


@pytest.mark.parametrize("name", ["dr_grpo", "gigpo"])
def test_a_method_that_does_not_divide_gets_a_residual_that_is_not_divided(tmp_path, name):
    result, _ = phase_of(tmp_path, FAILED, ONE_IN_FOUR, credit=name)
    assert result.rows.advantages[:, 0].tolist() == pytest.approx([0.025, -0.075, 0.025, 0.025])
    assert result.metrics["credit/invalid_residual_mean_abs"] == pytest.approx(0.15 / 4)
    assert result.metrics["credit/invalid_residual_max_abs"] == pytest.approx(0.075)


@pytest.mark.parametrize("name", ["grpo", "agent_opsd", "rlsd", "gigpo_std"])
def test_a_method_that_divides_gets_a_bounded_one(tmp_path, name):
    result, _ = phase_of(tmp_path, FAILED, ONE_IN_FOUR, credit=name)
    assert result.rows.advantages[:, 0].tolist() == pytest.approx([0.25, -0.75, 0.25, 0.25], rel=2e-3)


@pytest.mark.parametrize(
    "options",
    [{"scale_rewards": False}, {"normalization_scope": "turn"}, {"eps": 0.5}, {"scale_rewards": True}],
    ids=str,
)
def test_the_methods_own_options_decide(tmp_path, options):
    rewards, valid = [1.0, 0.0], [[True, False, True], [True]]
    result, batch = phase_of(tmp_path, rewards, valid, credit="grpo", credit_options=options)
    plain, _ = phase_of(tmp_path, rewards, valid, credit="grpo", credit_options={**options, "invalid_penalty": 0.0})
    expected = invalid_action_residual(
        torch.tensor(rewards),
        torch.tensor([ok for turns in valid for ok in turns]),
        batch.trajectory_ids,
        batch.group_ids,
        **options,
    )
    extra = (result.rows.advantages - plain.rows.advantages)[:, 0]
    torch.testing.assert_close(extra, expected, rtol=0, atol=1e-6)
    assert "credit/invalid_residual_mean_abs" not in plain.metrics


def test_the_residual_is_measured_by_returns_that_fade_with_the_advantages(tmp_path):
    rewards, valid = [1.0, 0.0], [[True, False], [True, True]]
    result, _ = phase_of(tmp_path, rewards, valid, credit="grpo", credit_options={"outcome_discount": 0.5})
    # two turns each: returns 0.25 and 0, deviation 0.25 / sqrt 2; a quarter of the turns is invalid
    size = 0.25 / 2**0.5 + 1e-4
    residual = torch.tensor([0.025, -0.075, 0.025, 0.025]) / size
    expected = torch.tensor([0.125, 0.125, -0.125, -0.125]) / size + residual
    assert result.rows.advantages[:, 0].tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_align_opsd_adds_its_own_once(tmp_path):
    result, _ = phase_of(
        tmp_path, FAILED, ONE_IN_FOUR, credit="align_opsd", credit_options={"alpha_max": 0.0, "spans": "turn"}
    )
    assert result.rows.advantages[:, 0].tolist() == pytest.approx([0.25, -0.75, 0.25, 0.25], rel=2e-3)
    assert result.metrics["credit/invalid_residual_max_abs"] == pytest.approx(0.75, rel=2e-3)


def test_a_group_whose_turns_are_all_invalid_has_no_signal(tmp_path):
    result, _ = phase_of(tmp_path, [1.0, 1.0], [[False, False], [False]])
    assert not result.rows.active.any()
    assert result.metrics["credit/groups_without_advantage"] == 1


def test_an_option_called_invalid_penalty_does_not_make_a_method_add_the_residual(tmp_path, monkeypatch):
    """Only what a method declares counts; its option keeps the value it was given."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))

    @register_credit("own_meaning")
    def own_meaning(inputs, *, invalid_penalty=7.0):
        assert invalid_penalty == 7.0
        return grpo(inputs)

    result, _ = phase_of(tmp_path, FAILED, ONE_IN_FOUR, credit="own_meaning")
    assert result.rows.advantages[:, 0].tolist() == pytest.approx([0.25, -0.75, 0.25, 0.25], rel=2e-3)
