"""One rule for "an advantage counts as 0", whatever rounding left of it, in every method that divides by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.align_cases import inputs_of, random_case
from helpers.credit_cases import reorder_rows, reorder_trajectories

from turncredit.credit import CreditInputs, get_credit, group_relative_advantages, list_credits

# rewards of one group; True where one is the mean but for rounding
AT_THE_MEAN = {
    "a tenth, four, seven": ([0.1, 0.4, 0.7], [False, True, False]),
    "thirds": ([0.0, 1 / 3, 2 / 3], [False, True, False]),
    "three times a tenth": ([0.1 * 3, 0.3, 0.3], [True, True, True]),
    "ninths": ([0.0, 1 / 9, 2 / 9, 1 / 9, 1 / 9], [False, True, False, True, True]),
    "a tenth added up": ([sum([0.1] * 10), 1.0, 0.9, 1.1], [True, True, False, False]),
    "large offset": ([1e6, 1e6 + 1, 1e6 + 2], [False, True, False]),
    "large offset, tenths": ([1e4 + 0.1, 1e4 + 0.4, 1e4 + 0.7], [False, True, False]),
    "small": ([1e-3, 4e-3, 7e-3], [False, True, False]),
    "negative": ([-0.7, -0.4, -0.1], [False, True, False]),
}
BOTH = [torch.float32, torch.float64]


def batch(rewards: list[float], dtype: torch.dtype) -> CreditInputs:
    """One group: trajectory i has i % 3 + 1 turns; anchors are shared, rewards are earned at the last turn."""
    turns = [i % 3 + 1 for i in range(len(rewards))]
    rows = sum(turns)
    draw = torch.Generator().manual_seed(5)
    student = -torch.rand(rows, 4, generator=draw, dtype=torch.float64)
    teacher = student + torch.randn(rows, 4, generator=draw, dtype=torch.float64)
    values = torch.tensor(rewards, dtype=dtype)
    return CreditInputs(
        response_mask=torch.ones(rows, 4, dtype=torch.bool),
        trajectory_ids=torch.repeat_interleave(torch.tensor(turns)),
        turn_ids=torch.tensor([k for count in turns for k in range(count)]),
        group_ids=torch.full((len(rewards),), 7),
        rewards=values,
        successes=(values > values.mean()).to(dtype),
        student_logprobs=student.to(dtype),
        teacher_logprobs=teacher.to(dtype),
        valid_actions=torch.ones(rows, dtype=torch.bool),
        span_mask=torch.ones(rows, 4, dtype=torch.bool),
        anchor_ids=torch.tensor([k for count in turns for k in range(count)]),
    )


METHODS = [
    name
    for name in list_credits()
    if not name.startswith("align_opsd")
    and not {"correspondence", *get_credit(name).extras} & get_credit(name).requires
]


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("case", AT_THE_MEAN)
@pytest.mark.parametrize("scale", [True, False])
def test_a_reward_at_the_mean_has_an_advantage_of_exactly_zero(case: str, dtype: torch.dtype, scale: bool) -> None:
    rewards, zero = AT_THE_MEAN[case]
    groups = torch.zeros(len(rewards), dtype=torch.long)
    got = group_relative_advantages(torch.tensor(rewards, dtype=dtype), groups, scale_rewards=scale)
    assert (got == 0).tolist() == zero


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("case", AT_THE_MEAN)
@pytest.mark.parametrize("name", METHODS)
def test_weights_stay_bounded_and_a_zero_is_a_zero(name: str, case: str, dtype: torch.dtype) -> None:
    rewards, zero = AT_THE_MEAN[case]
    inputs = batch(rewards, dtype)
    credit = get_credit(name, **({"discount": 1.0} if name.startswith("gigpo") else {}))(inputs)
    none = torch.tensor(zero)[inputs.trajectory_ids]
    # the largest step advantage is the spread of the rewards, the smallest advantage that counts a third of it
    assert credit.turn_weights.abs().max() < 10
    assert torch.isfinite(credit.advantages).all()
    if name != "faded_grpo" and not name.startswith("gigpo"):  # faded returns have another mean
        assert (credit.advantages[none] == 0).all()
        assert (credit.advantages[~none] != 0).all()
    if name.startswith(("gigpo", "rlsd", "step_opsd")):
        assert (credit.turn_weights[none] == 1).all()


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("case", AT_THE_MEAN)
@pytest.mark.parametrize("name", METHODS)
def test_any_order_decides_the_same(name: str, case: str, dtype: torch.dtype) -> None:
    inputs = batch(AT_THE_MEAN[case][0], dtype)
    credit = get_credit(name)(inputs)
    draw = torch.Generator().manual_seed(1)
    rows = torch.randperm(inputs.num_rows, generator=draw)
    order = torch.randperm(inputs.num_trajectories, generator=draw)
    moved = get_credit(name)(reorder_rows(reorder_trajectories(inputs, order), rows))
    tolerance = {"rtol": 0, "atol": 1e-9 if dtype == torch.float64 else 1e-4}
    torch.testing.assert_close(moved.advantages, credit.advantages[rows], **tolerance)
    torch.testing.assert_close(moved.turn_weights, credit.turn_weights[rows], **tolerance)
    assert torch.equal(moved.advantages == 0, credit.advantages[rows] == 0)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("name", ["align_opsd", "align_opsd_token", "align_opsd_turn", "align_opsd_bounded"])
def test_align_opsd_leaves_a_trajectory_at_the_mean_alone(name: str, dtype: torch.dtype) -> None:
    inputs = inputs_of(random_case(2, groups=1, rollouts=3), dtype)
    inputs = replace(inputs, rewards=torch.tensor([0.1, 0.4, 0.7], dtype=dtype))
    credit = get_credit(name)(inputs)
    middle = inputs.trajectory_ids == 1
    assert (credit.advantages[middle] == 0).all()
    torch.testing.assert_close(credit.turn_weights[middle], torch.ones(int(middle.sum()), dtype=dtype))


def test_gigpo_by_hand_where_the_division_met_a_residue() -> None:
    inputs = batch([0.1, 0.4, 0.7], torch.float64)
    assert get_credit("gigpo")(inputs).turn_weights[inputs.trajectory_ids == 1].tolist() == [1.0, 1.0]


def test_gigpo_step_advantages_of_returns_that_differ_by_rounding_are_zero() -> None:
    # the step returns of the first turns: 0.95 x 0.2 and 0.1 + 0.95 x ... rounding of the same number
    inputs = batch([1.0, 0.0, 1.0], torch.float64)
    inputs = replace(inputs, turn_rewards=torch.tensor([0.3, 0.1, 0.2 / 0.95, 0.3, 0.0, 0.0], dtype=torch.float64))
    inputs = replace(inputs, anchor_ids=torch.tensor([5, 5, 9, 5, 8, 7]))
    assert get_credit("gigpo_std")(inputs).details["step_advantages"].tolist() == [0.0] * 6


def test_small_true_differences_from_the_mean_still_count() -> None:
    got = group_relative_advantages(torch.tensor([0.0, 0.5 + 1e-4, 1.0]), torch.tensor([0, 0, 0]), scale_rewards=False)
    assert got[1] == pytest.approx(2e-4 / 3, rel=1e-2)
    far = group_relative_advantages(
        torch.tensor([1e6, 1e6 + 1, 1e6 + 3, 1e6 + 8], dtype=torch.float64), torch.zeros(4, dtype=torch.long)
    )
    assert (far == 0).tolist() == [False, False, True, False]
