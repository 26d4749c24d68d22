"""Hand tables: the arithmetic stands beside the numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from helpers.credit_cases import hand_batch

from turncredit.credit import CreditInputs, agent_opsd, gigpo, group_relative_advantages, grpo, rlsd, step_opsd
from turncredit.credit.agent import belief_revisions
from turncredit.credit.gigpo import step_returns
from turncredit.credit.segments import decayed_sums
from turncredit.credit.tokens import spread, token_gaps


def near(got: torch.Tensor, expected: list, atol: float = 1e-9) -> None:
    torch.testing.assert_close(got.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=atol)


def test_group_advantages() -> None:
    # R = 1, 0, 0, 1: mean 1/2, sample variance 4 * 1/4 / 3 = 1/3, std 0.57735; A = +-0.5 / 0.57745 = +-0.865876
    rewards, groups = torch.tensor([1.0, 0, 0, 1]).double(), torch.tensor([5, 5, 5, 5])
    a = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    near(group_relative_advantages(rewards, groups), [a, -a, -a, a])
    near(group_relative_advantages(rewards, groups, scale_rewards=False), [0.5, -0.5, -0.5, 0.5])


def test_group_advantages_by_turn() -> None:
    # R = 1 (3 turns), 0 (1 turn): mean 3/4, variance (3 * 1/16 + 9/16) / 3 = 1/4, std 1/2
    rewards, groups, turns = torch.tensor([1.0, 0]).double(), torch.tensor([0, 0]), torch.tensor([3, 1])
    got = group_relative_advantages(rewards, groups, normalization_scope="turn", turn_counts=turns)
    near(got, [0.25 / 0.5001, -0.75 / 0.5001])


def test_decayed_sums() -> None:
    # c = 8, 4 + 2, 3 + 1: with gamma 1/2
    near(decayed_sums(torch.tensor([[8.0, 2.0, 1.0]]).double(), 0.5), [[8.0, 6.0, 4.0]])
    # blocks of two carry: 1, 1.5, 1.75, 1.875, 1.9375
    near(decayed_sums(torch.ones(1, 5).double(), 0.5, block=2), [[1.0, 1.5, 1.75, 1.875, 1.9375]])


def test_belief_revisions() -> None:
    # prior 1/2, evidence ln 3 then -ln 3, gamma 1: beliefs 3/4, 1/2; revisions 1/4, -1/4
    third = math.log(3)
    zeros = torch.zeros(2, dtype=torch.int64)
    beliefs, moves = belief_revisions(
        torch.tensor([third, -third], dtype=torch.float64), zeros, torch.arange(2), torch.zeros(1).double(), gamma=1.0
    )
    near(beliefs, [0.75, 0.5])
    near(moves, [0.25, -0.25])


def test_belief_decays_towards_the_prior() -> None:
    # prior 1/4 (logit -ln 3), evidence 2 ln 3 then 0, gamma 1/2: logits ln 3, 0: beliefs 3/4, 1/2
    third = math.log(3)
    beliefs, moves = belief_revisions(
        torch.tensor([2 * third, 0.0], dtype=torch.float64),
        torch.zeros(2, dtype=torch.int64),
        torch.arange(2),
        torch.tensor([-third], dtype=torch.float64),
        gamma=0.5,
    )
    near(beliefs, [0.75, 0.5])
    near(moves, [0.5, -0.25])


def test_agent_opsd() -> None:
    # Two rollouts, S/G = 1/2, A = +-0.5/(0.70711 + 1e-4). Won: evidence ln 3, 0 with gamma 1: dB = 1/4, 0;
    # q = 1/4, 0; mean 1/8, std 1/8; z = +-0.125 / 0.1251 = +-0.9992; w = 1 +- 0.2 z. Lost: one turn, w = 1.
    a = 0.5 / (math.sqrt(0.5) + 1e-4)
    z = 0.125 / (0.125 + 1e-4)
    credit = agent_opsd(hand_batch([[math.log(3), 0.0], [4.0]], [1.0, 0.0]), gamma=1.0)
    near(credit.turn_weights, [1 + 0.2 * z, 1 - 0.2 * z, 1.0])
    near(credit.advantages[:, 0], [a * (1 + 0.1 * z), a * (1 - 0.1 * z), -a])
    near(credit.details["evidence"], [math.log(3), 0.0, 4.0])
    near(credit.details["beliefs"], [0.75, 0.75, 1 / (1 + math.exp(-4))])
    near(credit.details["revisions"], [0.25, 0.0, 1 / (1 + math.exp(-4)) - 0.5])
    near(credit.details["prior"], [0.5, 0.5, 0.5])


def test_agent_opsd_turns_the_weight_by_the_outcome() -> None:
    # The same evidence in a lost trajectory: the turn that raised the belief is blamed less.
    won = agent_opsd(hand_batch([[1.0, 0.0], [0.0]], [1.0, 0.0])).turn_weights
    lost = agent_opsd(hand_batch([[1.0, 0.0], [0.0]], [0.0, 1.0])).turn_weights
    assert won[0] > 1 > won[1]
    near(lost[:2], won[:2].flip(0).tolist())


def test_agent_opsd_metrics() -> None:
    # Beliefs 0.9990 (saturated), 0.9990, 0.0009 (saturated, e = -7): 3/3 outside; |dB| 0.499 + 0 and 0.499.
    credit = agent_opsd(hand_batch([[7.0, 0.0], [-7.0]], [1.0, 0.0]), gamma=1.0)
    metrics = credit.metrics
    assert metrics["evidence_mean"] == pytest.approx(0.0)
    assert metrics["evidence_std"] == pytest.approx(math.sqrt(98 / 3))
    assert metrics["belief_saturated_share"] == 1.0
    assert metrics["first_turn_revision_share"] == pytest.approx(1.0)
    assert metrics["evidence_agreement_share"] == pytest.approx(2 / 3)
    assert metrics["zero_advantage_group_share"] == 0.0
    assert metrics["mean_abs_advantage"] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-4))
    # q = +-0.2495 about its mean, std 0.2495: |z| = 0.2495 / 0.2496 < 1, so nothing is clipped.
    assert metrics["weight_clip_share"] == 0.0
    # weights 1 + 0.2 z, 1 - 0.2 z, 1
    z = 0.2495 / 0.2496
    assert metrics["weight_std"] == pytest.approx(0.2 * z * math.sqrt(2 / 3), abs=1e-4)


def test_metrics_in_the_middle() -> None:
    # Evidence 0, ln 3 (won) and 0 (lost), gamma 1: dB 0, 1/4 and 0; no first turn moved; no belief saturated.
    # z = -0.125, 0.125 over 0.1251. Agreement: only the turn with ln 3, of 3 turns.
    metrics = agent_opsd(hand_batch([[0.0, math.log(3)], [0.0]], [1.0, 0.0]), gamma=1.0).metrics
    assert metrics["belief_saturated_share"] == 0.0
    assert metrics["first_turn_revision_share"] == 0.0
    assert metrics["evidence_agreement_share"] == pytest.approx(1 / 3)


def test_clipped_weights_are_counted() -> None:
    # gap evidence 4, 0, 0, 0: mean 1, std sqrt(3); z = 1.732, -0.577 x 3: one of five turns clips.
    credit = agent_opsd(hand_batch([[4.0, 0, 0, 0], [1.0]], [1.0, 0.0]), revision="gap")
    low = 1 - 0.2 / (math.sqrt(3) + 1e-4)
    near(credit.turn_weights, [1.2, low, low, low, 1.0])
    assert credit.metrics["weight_clip_share"] == pytest.approx(1 / 5)


def test_equal_rewards_count_as_a_group_without_advantage() -> None:
    assert grpo(hand_batch([[0.0], [0.0]], [1.0, 1.0])).metrics == {
        "mean_abs_advantage": 0.0,
        "zero_advantage_group_share": 1.0,
    }


def test_rlsd() -> None:
    # A = +-a. Won: gaps 0.1, 9: exp = 1.10517, clipped 1.2. Lost: gap 0.1: exp(-0.1) = 0.904837. lam 1/2.
    a = 0.5 / (math.sqrt(0.5) + 1e-4)
    credit = rlsd(hand_batch([[0.1, 9.0], [0.1]], [1.0, 0.0]))
    up, down = 1 + 0.5 * (math.exp(0.1) - 1), 1 + 0.5 * (math.exp(-0.1) - 1)
    near(credit.advantages[:, 0], [a * up, a * 1.1, -a * down])
    near(credit.turn_weights, [up, 1.1, down])


def test_rlsd_schedule() -> None:
    inputs = hand_batch([[9.0], [0.0]], [1.0, 0.0])
    near(rlsd(inputs, step=50).turn_weights, [1 + 0.25 * 0.2, 1.0])
    assert rlsd(inputs, step=25).metrics["lam"] == 0.375
    near(rlsd(inputs, step=1000, decay_steps=None).turn_weights, [1.1, 1.0])
    assert torch.equal(rlsd(inputs, step=100).advantages, grpo(inputs).advantages)


def test_step_opsd() -> None:
    # Won: gaps 0.2, -9 in the span: w = 2 sigmoid(0.2) = 1.099668 and 0.8. lam 1/2: factors 1.049834, 0.9.
    # m = a x factors, mean a x 0.974917, coef = mean / m: both tokens end at a x 0.974917 (less 1e-6).
    a = 0.5 / (math.sqrt(0.5) + 1e-4)
    inputs = hand_batch([[0.2, -9.0], [0.0]], [1.0, 0.0], span_mask=torch.ones(3, 1, dtype=torch.bool))
    raw = step_opsd(inputs, lam=0.5, step_normalization=False)
    first = 1 + 0.5 * (2 / (1 + math.exp(-0.2)) - 1)
    near(raw.advantages[:, 0], [a * first, a * 0.9, -a])
    credit = step_opsd(inputs, lam=0.5)
    mean = (first + 0.9) / 2
    near(credit.advantages[:, 0], [a * mean, a * mean, -a], atol=2e-6)
    near(credit.details["step_coefficients"], [mean / first, mean / 0.9, 1.0], atol=3e-6)


def test_step_opsd_outside_the_span_and_a_single_span() -> None:
    inputs = hand_batch([[2.0, 2.0], [0.0]], [1.0, 0.0], span_mask=torch.tensor([[True], [False], [False]]))
    a = 0.5 / (math.sqrt(0.5) + 1e-4)
    credit = step_opsd(inputs, lam=0.5)
    near(credit.advantages[:, 0], [a * 1.1, a, -a])
    near(credit.details["step_coefficients"], [1.0, 1.0, 1.0])
    assert credit.metrics["span_share"] == pytest.approx(1 / 3)
    assert step_opsd(inputs, step=25).metrics["lam"] == pytest.approx(0.1)


def test_step_coefficients_are_clipped() -> None:
    # w = 1.9, 0.1, 0.1 (band 0.9, lam 1): mean 0.7; 0.7 / 1.9 = 0.37 clips to 1/2, 0.7 / 0.1 = 7 to 2
    inputs = hand_batch([[9.0, -9.0, -9.0], [0.0]], [1.0, 0.0], span_mask=torch.ones(4, 1, dtype=torch.bool))
    credit = step_opsd(inputs, lam=1.0, band=0.9)
    near(credit.details["step_coefficients"], [0.5, 2.0, 2.0, 1.0])
    near(credit.turn_weights, [0.95, 0.2, 0.2, 1.0])


def test_gigpo() -> None:
    # Won in 2 turns: Q = 0.95, 1; lost in 2: 0, 0. Anchors 7 7 | 7 9: anchor 7 holds 0.95, 1, 0: mean 0.65.
    inputs = hand_batch([[0.0, 0.0], [0.0, 0.0]], [1.0, 0.0], anchor_ids=torch.tensor([7, 7, 7, 9]))
    near(step_returns(inputs), [0.95, 1.0, 0.0, 0.0])
    credit = gigpo(inputs)
    near(credit.details["step_advantages"], [0.3, 0.35, -0.65, 0.0])
    near(credit.advantages[:, 0], [0.8, 0.85, -1.15, -0.5])
    near(credit.turn_weights, [1.6, 1.7, 2.3, 1.0])
    assert credit.metrics["anchored_turn_share"] == 0.75
    assert credit.metrics["mean_abs_step_advantage"] == pytest.approx(1.3 / 4)


def test_gigpo_with_turn_rewards() -> None:
    # r = 1, 2, 4 with discount 1/2: Q = 1 + 1 + 1, 2 + 2, 4
    inputs = hand_batch([[0.0, 0.0, 0.0]], [1.0], anchor_ids=torch.zeros(3, dtype=torch.int64))
    inputs = replace(inputs, turn_rewards=torch.tensor([1.0, 2.0, 4.0]))
    near(step_returns(inputs, discount=0.5), [3.0, 4.0, 4.0])


def test_the_two_token_primitives() -> None:
    """Padding holds anything; what is read and written outside the mask is exactly 0."""
    inputs = CreditInputs(
        trajectory_ids=torch.tensor([0, 1]),
        turn_ids=torch.tensor([0, 0]),
        group_ids=torch.tensor([0, 0]),
        rewards=torch.tensor([1.0, 0.0]),
        successes=torch.tensor([1.0, 0.0]),
        response_mask=torch.tensor([[True, False], [True, True]]),
        student_logprobs=torch.tensor([[-1.0, torch.nan], [-2.0, -3.0]]),
        teacher_logprobs=torch.tensor([[-0.5, torch.inf], [-2.5, -1.0]]),
    )
    assert token_gaps(inputs).tolist() == [[0.5, 0.0], [-0.5, 2.0]]
    assert token_gaps(inputs, torch.tensor([1])).tolist() == [[-0.5, 2.0]]
    mask = inputs.response_mask
    assert spread(torch.tensor([3.0, 4.0]), mask).tolist() == [[3.0, 0.0], [4.0, 4.0]]
    assert spread(torch.tensor([[3.0, torch.nan], [4.0, 5.0]]), mask).tolist() == [[3.0, 0.0], [4.0, 5.0]]
    with pytest.raises(ValueError, match=r"token_gaps: inputs\.teacher_logprobs must be given, got None; score"):
        token_gaps(replace(inputs, teacher_logprobs=None))
