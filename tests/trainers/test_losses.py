import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turncredit.trainers import GRPOConfig
from turncredit.trainers.losses import (
    LOSS_TYPES,
    TRL_LOSS_TYPES,
    clipped_policy_loss,
    kl_k3,
    loss_coefficients,
    sdar_loss,
    skill_sd_loss,
)

T = torch.tensor


def loss_of(ratio, advantage, **options):
    old = torch.zeros(1)
    return clipped_policy_loss(T([math.log(ratio)]), old, T([advantage]), **options).loss.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.1, 2.0, -2.2),
        (1.5, 2.0, -2.48),  # clipped at 1.24
        (0.5, 2.0, -1.0),  # the minimum keeps the unclipped one
        (0.5, -1.0, 0.8),  # clipped at 0.8
        (1.5, -1.0, 1.5),
        (5.0, -1.0, 3.0),  # dual clip at 3
    ],
)
def test_surrogate_by_hand(ratio, advantage, expected):
    assert loss_of(ratio, advantage) == pytest.approx(expected, rel=1e-6)


def test_without_the_dual_clip():
    assert loss_of(5.0, -1.0, delta=None) == pytest.approx(5.0, rel=1e-6)


def test_gradient_at_ratio_one_is_minus_the_advantage():
    logprobs = T([-1.0, -2.0], requires_grad=True)
    clipped_policy_loss(logprobs, logprobs.detach(), T([0.5, -2.0])).loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-0.5, 2.0])


def test_clip_flags_and_gradient_where_clipped():
    logprobs = T([math.log(1.5), math.log(0.5), math.log(4.0)], requires_grad=True)
    policy = clipped_policy_loss(logprobs, torch.zeros(3), T([1.0, -1.0, -1.0]))
    policy.loss.sum().backward()
    assert policy.clipped_high.tolist() == [True, False, False]
    assert policy.clipped_low.tolist() == [False, True, False]
    assert policy.clipped_dual.tolist() == [False, False, True]
    assert logprobs.grad.tolist() == [0.0, 0.0, 0.0]


@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4), st.floats(-10, 10))
def test_extreme_ratios_stay_finite(new, old, advantage):
    logprobs = T([new], requires_grad=True)
    loss = clipped_policy_loss(logprobs, T([old]), T([advantage])).loss + kl_k3(logprobs, T([old]))
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(logprobs.grad).all()


def test_k3_by_hand_and_never_negative():
    # d = log ref - log pi = ln 2: 2 - ln 2 - 1
    assert kl_k3(T([-1.0]), T([-1.0 + math.log(2)])).item() == pytest.approx(1 - math.log(2), rel=1e-5)
    assert kl_k3(T([-1.0]), T([-1.0])).item() == 0
    assert (kl_k3(torch.randn(1000), torch.randn(1000)) >= 0).all()


MASK = T([[True, True, True], [True, False, False], [True, True, False]])
IDS = T([0, 0, 1])


@pytest.mark.parametrize(
    ("loss_type", "coefficients", "denominator"),
    [
        ("seq-mean-token-mean", [1 / 4, 1 / 4, 1 / 2], 2.0),
        ("token-mean", [1.0, 1.0, 1.0], 6.0),
        ("seq-mean-token-sum-norm", [1 / 8, 1 / 8, 1 / 8], 2.0),
    ],
)
def test_coefficients_by_hand(loss_type, coefficients, denominator):
    got = loss_coefficients(MASK, IDS, torch.ones(3, dtype=torch.bool), loss_type=loss_type, max_completion_length=8)
    assert got[0].tolist() == pytest.approx(coefficients)
    assert got[1].item() == denominator


def test_trl_s_names_are_those_of_the_same_averages():
    assert TRL_LOSS_TYPES.keys() == {"grpo", "dapo", "dr_grpo"}
    every = torch.ones(3, dtype=torch.bool)
    for name, ours in TRL_LOSS_TYPES.items():
        assert GRPOConfig(loss_type=name).loss_type == ours
        got, expected = (loss_coefficients(MASK, IDS, every, loss_type=kind) for kind in (name, ours))
        assert got[0].equal(expected[0])
        assert got[1].equal(expected[1])
    with pytest.raises(ValueError, match=r"loss_type must be one of .*'dapo'.*, got 'bnpo'"):
        GRPOConfig(loss_type="bnpo")


def test_rows_that_are_not_active_weigh_nothing():
    active = T([False, False, True])
    coefficients, denominator = loss_coefficients(MASK, IDS, active)
    assert coefficients.tolist() == [0.0, 0.0, 0.5]
    assert denominator.item() == 1
    assert loss_coefficients(MASK, IDS, active, loss_type="token-mean")[1].item() == 2


def test_a_long_trajectory_weighs_as_much_as_a_short_one_under_seq_mean():
    mask = torch.ones(12, 7, dtype=torch.bool)
    ids = T([0] * 10 + [1] * 2)
    coefficients, _ = loss_coefficients(mask, ids, torch.ones(12, dtype=torch.bool))
    per_trajectory = torch.zeros(2).index_add_(0, ids, coefficients * 7)
    torch.testing.assert_close(per_trajectory, torch.ones(2))


def test_sdar_gradient_is_the_gate():
    logprobs = T([-1.0, -1.0], requires_grad=True)
    teacher, student = T([-0.8, -2.0]), T([-1.0, -1.0])
    sdar_loss(logprobs, teacher, student, beta=5.0).sum().backward()
    # sigmoid(5 * 0.2) = 0.7310586, sigmoid(5 * -1) = 0.0066929
    assert logprobs.grad.tolist() == pytest.approx([-0.7310586, -0.0066929], rel=1e-4)
    assert sdar_loss(logprobs, teacher, student, beta=0.0).tolist() == pytest.approx([0.1, -0.5])


def test_skill_sd_by_hand():
    # l = 0.5, rho = e^0.1: e^0.1 (e^-0.5 - 1 + 0.5)
    expected = math.exp(0.1) * (math.exp(-0.5) - 0.5)
    assert skill_sd_loss(T([-0.5]), T([-1.0]), T([-0.6])).item() == pytest.approx(expected, rel=1e-5)
    assert torch.isfinite(skill_sd_loss(T([-100.0, 0.0]), T([0.0, -100.0]), T([0.0, -90.0]))).all()


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="must agree in shape"):
        clipped_policy_loss(torch.zeros(2), torch.zeros(3), torch.zeros(2))
    with pytest.raises(ValueError, match="epsilon must not be negative"):
        clipped_policy_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), epsilon=-0.1)
    with pytest.raises(ValueError, match=r"delta must exceed 1 \+ epsilon_high"):
        clipped_policy_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), delta=1.0)
    with pytest.raises(ValueError, match="loss_type must be one of"):
        loss_coefficients(MASK, IDS, T([True] * 3), loss_type="mean")
    assert "token-mean" in LOSS_TYPES
