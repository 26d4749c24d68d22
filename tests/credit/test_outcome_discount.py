"""Returns that fade with the length of their episode: an option of every group-relative method, off by default."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.align_cases import inputs_of, random_case
from helpers.credit_cases import hand_batch, random_batch

from turncredit.credit import CreditInputs, get_credit, grpo
from turncredit.credit.groups import faded

NAMES = ["grpo", "dr_grpo", "gigpo", "rlsd", "step_opsd", "agent_opsd", "agent_opsd_token", "posterior", "align_opsd"]
NAMES += ["rloo", "graphgpo", "g2po", "hcapo"]


def batch(name: str) -> CreditInputs:
    if name == "align_opsd":
        return inputs_of(random_case(2, groups=2, rollouts=3), torch.float64)
    return random_batch(3, rollouts=5)


def test_by_hand() -> None:
    # successes of one and two turns and a failure of three: 0.9, 0.81 and 0 around 0.57
    inputs = hand_batch([[0.0], [0.0] * 2, [0.0] * 3], [1.0, 1.0, 0.0])
    credit = get_credit("faded_grpo", outcome_discount=0.9, scale_rewards=False)(inputs)
    expected = torch.tensor([0.33, 0.24, 0.24, -0.57, -0.57, -0.57], dtype=torch.float64)
    torch.testing.assert_close(credit.advantages[:, 0], expected, rtol=0, atol=1e-12)


def test_all_successes_teach_haste_and_long_failures_are_the_cheaper_ones() -> None:
    for reward, better in ((1.0, 0), (-1.0, 1)):
        inputs = replace(hand_batch([[0.0], [0.0] * 4], [1.0, 1.0]), rewards=torch.tensor([reward, reward]))
        assert (grpo(inputs).advantages == 0).all()
        credit = get_credit("faded_grpo")(inputs).advantages[:, 0]
        assert (credit[inputs.trajectory_ids == better] > 0).all()
        assert (credit[inputs.trajectory_ids != better] < 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_one_changes_nothing_and_less_is_the_method_on_faded_rewards(name: str) -> None:
    inputs = batch(name)
    plain = get_credit(name)(inputs)
    assert get_credit(name).options["outcome_discount"] == 1.0
    assert torch.equal(get_credit(name, outcome_discount=1.0)(inputs).advantages, plain.advantages)
    credit = get_credit(name, outcome_discount=0.7)(inputs)
    assert not torch.equal(credit.advantages, plain.advantages)
    rewards = inputs.rewards * 0.7 ** inputs.turn_counts.double()
    replaced = replace(inputs, rewards=rewards)
    if name in ("gigpo", "graphgpo", "g2po", "hcapo"):  # step returns have their own discount
        last = inputs.turn_ids == inputs.turn_counts[inputs.trajectory_ids] - 1
        replaced = replace(replaced, turn_rewards=last * inputs.rewards[inputs.trajectory_ids])
    torch.testing.assert_close(credit.advantages, get_credit(name)(replaced).advantages, rtol=0, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, -0.5, 1.01, "0.9", True, None])
@pytest.mark.parametrize("name", NAMES)
def test_it_lies_in_0_to_1(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"outcome_discount must be a number in \(0, 1\], got"):
        get_credit(name, outcome_discount=value)(batch(name))


def test_rewards_that_do_not_fade_are_the_same_tensor() -> None:
    rewards = torch.tensor([1.0, 2.0])
    assert faded(rewards, torch.tensor([1, 2]), 1.0) is rewards
    assert faded(rewards, torch.tensor([1, 2]), 0.9).dtype == torch.float64
