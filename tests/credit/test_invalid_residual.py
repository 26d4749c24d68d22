"""The residual of invalid actions: bounded by default in every group, the paper's formula as an option."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.align_cases import inputs_of, random_case
from helpers.credit_cases import random_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.credit import get_credit, grpo
from turncredit.credit.invalid_action import invalid_action_residual


def one_invalid(turns: int, rewards: list[float], **options) -> torch.Tensor:
    """The residual of a group of equally long trajectories whose very first turn alone is invalid."""
    valid = torch.ones(turns, dtype=torch.bool)
    valid[0] = False
    owners = torch.arange(turns) % len(rewards)
    values = torch.tensor(rewards, dtype=torch.float64)
    return invalid_action_residual(values, valid, owners, torch.zeros(len(rewards), dtype=torch.long), **options)


@pytest.mark.parametrize(("turns", "paper"), [(400, -19.6), (32, -5.5)])
def test_one_invalid_turn_among_equal_rewards(turns: int, paper: float) -> None:
    rewards = [0.0] * 8
    assert one_invalid(turns, rewards, normalization="paper")[0] == pytest.approx(paper, abs=0.06)
    bounded = one_invalid(turns, rewards)
    assert bounded[0] == pytest.approx(-0.1 * (1 - 1 / turns) / (0.1 + 1e-4))
    assert bounded[1] == pytest.approx(0.1 / turns / (0.1 + 1e-4))
    assert bounded.sum() == pytest.approx(0, abs=1e-9)


def test_by_hand_in_a_group_with_variance() -> None:
    # rewards 1 and 0: std 0.707107; over turns (two and one) 1, 1, 0: 0.577350. One of three turns is invalid
    rewards, ids = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([0, 0, 1])
    given = rewards, torch.tensor([True, False, True]), ids, torch.tensor([3, 3])
    for scope, std in (("trajectory", math.sqrt(0.5)), ("turn", math.sqrt(1 / 3))):
        expected = [-0.1 * (x - 1 / 3) / (std + 1e-4) for x in (0, 1, 0)]
        assert invalid_action_residual(*given, normalization_scope=scope).tolist() == pytest.approx(expected)
    expected = [-0.1 * (x - 1 / 3) / (math.sqrt(0.5) + 0.5) for x in (0, 1, 0)]
    assert invalid_action_residual(*given, eps=0.5).tolist() == pytest.approx(expected)
    expected = [0.1 / 3, -0.2 / 3, 0.1 / 3]
    for normalization in ("bounded", "paper"):
        got = invalid_action_residual(*given, scale_rewards=False, normalization=normalization)
        assert got.tolist() == pytest.approx(expected)


def test_the_unit_of_reward_does_not_matter_and_nearly_equal_rewards_stay_bounded() -> None:
    small = one_invalid(40, [0.0, 1.0, 0.0, 0.0], penalty=0.1, eps=0.0)
    large = one_invalid(40, [0.0, 10.0, 0.0, 0.0], penalty=1.0, eps=0.0)
    torch.testing.assert_close(small, large)
    for gap in (0.0, 1e-9, 1e-6, 1e-3, 0.05):
        assert one_invalid(40, [0.5, 0.5 + gap, 0.5, 0.5]).abs().max() < 1


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=20),
    st.lists(st.sampled_from([0.0, 1.0, 0.1, 10.0, 1e-3]), min_size=4, max_size=4),
    st.sampled_from([0.01, 0.1, 1.0, 5.0]),
    st.sampled_from(["trajectory", "turn"]),
)
def test_never_larger_than_a_usual_advantage(rows, rewards, penalty, scope) -> None:
    trajectory, valid = torch.tensor([i for i, _ in rows]), torch.tensor([ok for _, ok in rows])
    groups, values = torch.tensor([0, 0, 4, 4]), torch.tensor(rewards)
    got = invalid_action_residual(values, valid, trajectory, groups, penalty=penalty, normalization_scope=scope)
    assert (got.abs() <= 1).all()
    for group in (0, 4):
        inside = groups[trajectory] == group
        assert got[inside].sum().item() == pytest.approx(0, abs=1e-5)
        if valid[inside].all() or (~valid[inside]).all():
            assert (got[inside] == 0).all()
        assert (got[inside & ~valid] <= 0).all()
        assert (got[inside & valid] >= 0).all()


def test_align_opsd_takes_either_and_says_the_size() -> None:
    case = random_case(9)
    case["valid"][0] = False
    inputs, plain = inputs_of(case, with_valid=True), get_credit("align_opsd")(inputs_of(case))
    for normalization in ("bounded", "paper"):
        credit = get_credit("align_opsd", invalid_normalization=normalization)(inputs)
        expected = invalid_action_residual(
            inputs.rewards,
            torch.tensor(case["valid"]),
            inputs.trajectory_ids,
            inputs.group_ids,
            normalization=normalization,
        )
        torch.testing.assert_close(credit.details["invalid_residual"], expected)
        torch.testing.assert_close(
            credit.advantages, plain.advantages + expected[:, None] * inputs.response_mask, rtol=0, atol=1e-12
        )
        assert credit.metrics["invalid_residual_mean_abs"] == pytest.approx(expected.abs().mean().item())
        assert credit.metrics["invalid_residual_max_abs"] == pytest.approx(expected.abs().max().item())
    assert get_credit("align_opsd").options["invalid_normalization"] == "bounded"
    turn = get_credit("align_opsd", normalization_scope="turn")(inputs).details["invalid_residual"]
    assert not torch.allclose(turn, get_credit("align_opsd")(inputs).details["invalid_residual"])


def test_together_with_grpo_it_is_the_advantage_of_the_penalised_reward() -> None:
    """Equally long trajectories, one normalisation: A + residual = (R - p invalid - mean) / std."""
    inputs = random_batch(4, groups=1)
    rewards, invalid = inputs.rewards[inputs.trajectory_ids], (~inputs.valid_actions).double()
    got = grpo(inputs, scale_rewards=False, normalization_scope="turn").advantages[inputs.response_mask]
    extra = invalid_action_residual(
        inputs.rewards, inputs.valid_actions, inputs.trajectory_ids, inputs.group_ids, scale_rewards=False
    )
    net = rewards - 0.1 * invalid
    expected = (net - net.mean())[:, None].expand(inputs.response_mask.shape)[inputs.response_mask]
    torch.testing.assert_close(got + extra.repeat_interleave(inputs.token_counts), expected)


def test_bad_options_are_named() -> None:
    with pytest.raises(ValueError, match="normalization must be one of 'bounded', 'paper', got 'verl'"):
        one_invalid(4, [0.0, 1.0], normalization="verl")
    with pytest.raises(ValueError, match="normalization_scope must be one of 'trajectory', 'turn', got 'token'"):
        one_invalid(4, [0.0, 1.0], normalization_scope="token")
