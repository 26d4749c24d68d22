"""Bad input: the message names the argument, what it got and one fix."""

from __future__ import annotations

import re
import warnings
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from helpers.credit_cases import hand_batch, random_batch

from turncredit.credit import Credit, CreditInputs, get_credit, group_relative_advantages, grpo
from turncredit.credit.gigpo import similarity_anchors

GOOD = hand_batch([[0.1, 0.2, 0.3], [0.4, 0.5]], [1.0, 0.0])


def changed(name: str, index: int | tuple, value: float) -> torch.Tensor:
    tensor = getattr(GOOD, name).clone()
    tensor[index] = value
    return tensor


BAD = {
    "reward_per_turn": (
        {"rewards": torch.ones(5)},
        ValueError,
        "rewards must be [N] = [2], got [5]; pass one value per",
    ),
    "nan_reward": (
        {"rewards": changed("rewards", 1, torch.nan)},
        ValueError,
        "rewards must be finite, got nan at index 1",
    ),
    "integer_reward": ({"rewards": torch.tensor([1, 0])}, TypeError, "rewards must be float64 or float32 or bfloat16"),
    "list_reward": ({"rewards": [1.0, 0.0]}, TypeError, "rewards must be a torch.Tensor, got list; call .float()"),
    "success_10": (
        {"successes": changed("successes", 0, 10.0)},
        ValueError,
        "successes must lie in [0, 1], got 10.0 at",
    ),
    "success_nan": ({"successes": changed("successes", 0, torch.nan)}, ValueError, "successes must be finite, got nan"),
    "empty_mask": (
        {"response_mask": changed("response_mask", (3, 0), 0)},
        ValueError,
        "response_mask must hold a sampled token in every row, got none in row 3; drop padding rows",
    ),
    "float_mask": ({"response_mask": torch.ones(5, 1)}, TypeError, "response_mask must be bool, got torch.float32"),
    "flat_mask": (
        {"response_mask": torch.ones(5).bool()},
        ValueError,
        "response_mask must be [M, T] with at least one",
    ),
    "no_rows": ({"response_mask": torch.ones(0, 1).bool()}, ValueError, "at least one row and one token, got [0, 1]"),
    "turn_gap": (
        {"turn_ids": changed("turn_ids", 2, 3)},
        ValueError,
        "turn_ids must be 0 .. K - 1, each once per trajectory, got 3 in row 2 of trajectory 0, which has 3 rows",
    ),
    "negative_turn": (
        {"turn_ids": changed("turn_ids", 0, -1)},
        ValueError,
        "each once per trajectory, got -1 in row 0",
    ),
    "turn_twice": (
        {"turn_ids": changed("turn_ids", 2, 1)},
        ValueError,
        "got 1 twice in trajectory 0; drop copied rows",
    ),
    "unknown_trajectory": (
        {"trajectory_ids": changed("trajectory_ids", 4, 2)},
        ValueError,
        "trajectory_ids must lie in [0, 2), got 2; number trajectories in the order of group_ids",
    ),
    "trajectory_without_turns": (
        {"group_ids": torch.zeros(3).long(), "rewards": torch.ones(3), "successes": torch.ones(3)},
        ValueError,
        "trajectory_ids must name every trajectory, got no row for trajectory 2; leave trajectories without turns",
    ),
    "int32_ids": (
        {"turn_ids": GOOD.turn_ids.int()},
        TypeError,
        "turn_ids must be int64, got torch.int32; call .long()",
    ),
    "nan_student": (
        {"student_logprobs": changed("student_logprobs", (2, 0), torch.nan)},
        ValueError,
        "student_logprobs must be finite inside response_mask, got nan at row 2, token 0; check the scoring pass",
    ),
    "infinite_teacher": (
        {"teacher_logprobs": changed("teacher_logprobs", (4, 0), -torch.inf)},
        ValueError,
        "teacher_logprobs must be finite inside response_mask, got -inf at row 4, token 0",
    ),
    "short_teacher": (
        {"teacher_logprobs": GOOD.teacher_logprobs[:4]},
        ValueError,
        "teacher_logprobs must be [M, T] = [5, 1], got [4, 1]; pad it like response_mask",
    ),
    "mixed_devices": (
        {"rewards": torch.ones(2, device="meta")},
        ValueError,
        "rewards must be on the device of response_mask (cpu), got meta; move it with .to('cpu')",
    ),
    "short_anchors": ({"anchor_ids": torch.zeros(4).long()}, ValueError, "anchor_ids must be [M] = [5], got [4]"),
    "float_anchors": (
        {"anchor_ids": torch.zeros(5)},
        TypeError,
        "anchor_ids must be int64, got torch.float32; call .long()",
    ),
    "nan_turn_reward": (
        {"turn_rewards": torch.full((5,), torch.nan)},
        ValueError,
        "turn_rewards must be finite, got nan",
    ),
    "no_groups": ({"group_ids": torch.zeros(2, 1).long()}, ValueError, "group_ids must be [N] with at least one"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_inputs(case: str) -> None:
    change, kind, message = BAD[case]
    with pytest.raises(kind, match=re.escape(message)) as error:
        replace(GOOD, **change)
    assert str(error.value).startswith("CreditInputs: ")
    assert "; " in str(error.value)


def test_a_span_beyond_the_mask_names_its_row() -> None:
    inputs = random_batch(3)
    assert inputs.span_mask is not None
    span = inputs.span_mask.clone()
    row, token = (~inputs.response_mask).nonzero()[0].tolist()
    span[row, token] = True
    with pytest.raises(ValueError, match=f"span_mask must be a subset of response_mask, got .* in row {row}; combine"):
        replace(inputs, span_mask=span)


def test_finite_values_whose_sum_overflows_pass() -> None:
    huge = torch.tensor([[3e38, 3e38, 3e38]])
    inputs = CreditInputs(
        response_mask=torch.ones(1, 3).bool(),
        trajectory_ids=torch.tensor([0]),
        turn_ids=torch.tensor([0]),
        group_ids=torch.tensor([0]),
        rewards=torch.tensor([1.0]),
        successes=torch.tensor([1.0]),
        student_logprobs=-huge,
    )
    assert inputs.num_rows == 1


def test_an_overflowing_sum_does_not_hide_a_bad_value() -> None:
    teacher = torch.tensor([[3e38, 3e38, 3e38], [-1.0, -2.0, torch.nan]])
    mask = torch.tensor([[True, True, True], [True, False, True]])
    with pytest.raises(ValueError, match=r"teacher_logprobs must be finite .* got nan at row 1, token 2"):
        replace(pair_of_rows(mask), teacher_logprobs=teacher)
    mask[1, 2] = False
    inputs = replace(pair_of_rows(mask), teacher_logprobs=teacher)
    assert inputs.masked_sums.tolist() == [float("inf"), 0.0]


def test_padding_is_not_blamed_for_a_bad_row() -> None:
    mask = torch.tensor([[True, True, True], [False, True, True]])
    teacher = torch.tensor([[-1.0, -1.0, -1.0], [torch.nan, -2.0, torch.inf]])
    with pytest.raises(ValueError, match="got inf at row 1, token 2; check the scoring pass"):
        replace(pair_of_rows(mask), teacher_logprobs=teacher)


def test_both_infinite_is_still_refused() -> None:
    mask, infinite = torch.ones(2, 3).bool(), torch.full((2, 3), -torch.inf)
    with pytest.raises(ValueError, match=r"student_logprobs must be finite .* got -inf at row 0, token 0"):
        replace(pair_of_rows(mask), student_logprobs=infinite, teacher_logprobs=infinite)


def pair_of_rows(mask: torch.Tensor) -> CreditInputs:
    return CreditInputs(
        response_mask=mask,
        trajectory_ids=torch.tensor([0, 1]),
        turn_ids=torch.tensor([0, 0]),
        group_ids=torch.tensor([0, 0]),
        rewards=torch.tensor([1.0, 0.0]),
        successes=torch.tensor([1.0, 0.0]),
        student_logprobs=torch.full(mask.shape, -1.0),
    )


def test_sums_and_counts_of_a_batch() -> None:
    inputs = random_batch(2)
    assert inputs.teacher_logprobs is not None
    assert inputs.span_mask is not None
    gap = torch.where(inputs.response_mask, inputs.teacher_logprobs - inputs.student_logprobs, 0.0)
    torch.testing.assert_close(inputs.masked_sums, gap.sum(-1), rtol=0, atol=1e-12)
    assert inputs.span_counts.tolist() == [sum(row) for row in inputs.span_mask.tolist()]
    alone = replace(inputs, teacher_logprobs=None, span_mask=None)
    student = torch.where(inputs.response_mask, inputs.student_logprobs, 0.0)
    torch.testing.assert_close(alone.masked_sums, student.sum(-1), rtol=0, atol=1e-12)
    assert alone.span_counts.tolist() == [0] * inputs.num_rows


def test_properties_and_move() -> None:
    inputs = random_batch(0)
    assert inputs.turn_counts.tolist() == [
        int((inputs.trajectory_ids == i).sum()) for i in range(inputs.num_trajectories)
    ]
    assert inputs.token_counts.tolist() == [sum(row) for row in inputs.response_mask.tolist()]
    names = sorted(set(inputs.group_ids.tolist()))
    assert [names[g] for g in inputs.group_index.tolist()] == inputs.group_ids.tolist()
    moved = inputs.to("cpu")
    assert torch.equal(moved.rewards, inputs.rewards)
    assert moved.correspondence is None
    with pytest.raises(FrozenInstanceError):
        inputs.rewards = moved.rewards  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("agent_opsd", {"gamma": 0.0}, "agent_opsd: gamma must be a number in (0, 1], got 0.0; leave it out"),
        ("agent_opsd", {"lam": 1.5}, "agent_opsd: lam must be a number in [0, 1], got 1.5"),
        ("agent_opsd", {"band": 1.0}, "agent_opsd: band must be a number in (0, 1), got 1.0"),
        ("agent_opsd", {"eps": "1e-4"}, "agent_opsd: eps must be a number in (0, 0.5), got '1e-4'"),
        ("agent_opsd", {"granularity": "word"}, "granularity must be one of 'turn', 'token', got 'word'"),
        ("agent_opsd", {"revision": None}, "revision must be one of 'belief', 'gap', got None"),
        ("agent_opsd", {"prior": "reward"}, "prior must be one of 'success_rate', 'none', got 'reward'"),
        ("agent_opsd", {"signed": "yes"}, "signed must be one of True, False, got 'yes'"),
        (
            "agent_opsd",
            {"evidence_centering": "batch"},
            "evidence_centering must be one of None, 'trajectory', 'group'",
        ),
        ("agent_opsd", {"evidence_scale": -1.0}, "evidence_scale must be a number in (0, inf), got -1.0"),
        ("agent_opsd", {"evidence_reduction": "max"}, "evidence_reduction must be one of 'sum', 'mean', got 'max'"),
        ("agent_opsd", {"normalization_scope": "batch"}, "normalization_scope must be one of 'trajectory', 'turn'"),
        ("grpo", {"eps": -1.0}, "group_relative_advantages: eps must be a number in [0, inf), got -1.0"),
        ("rlsd", {"lam": -0.1}, "rlsd: lam must be a number in [0, 1], got -0.1"),
        ("rlsd", {"decay_steps": 0}, "linear_decay: decay_steps must be positive, got 0; pass None for no decay"),
        ("step_opsd", {"band": 0.0}, "step_opsd: band must be a number in (0, 1), got 0.0"),
        ("gigpo", {"discount": 1.1}, "gigpo: discount must be a number in (0, 1], got 1.1"),
        ("gigpo", {"normalization": "std"}, "gigpo: normalization must be one of 'mean', 'mean_std', got 'std'"),
        ("gigpo", {"step_weight": float("nan")}, "gigpo: step_weight must be a number in [0, inf), got nan"),
    ],
)
def test_bad_options(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        get_credit(name, **options)(random_batch(0))


def test_a_negative_step() -> None:
    with pytest.raises(ValueError, match="linear_decay: step must be at least 0, got -1"):
        get_credit("rlsd")(random_batch(0), step=-1)


@pytest.mark.parametrize(
    ("name", "field", "hint"),
    [
        ("agent_opsd", "teacher_logprobs", "score the sampled tokens under the privileged context"),
        ("rlsd", "teacher_logprobs", "score the sampled tokens"),
        ("step_opsd", "span_mask", "mark the causal span of each turn"),
        ("gigpo", "anchor_ids", "number the observations"),
    ],
)
def test_a_method_names_the_field_it_lacks(name: str, field: str, hint: str) -> None:
    message = re.escape(f"{name}: inputs.{field} must be given, got None; {hint}")
    with pytest.raises(ValueError, match=message):
        get_credit(name)(replace(random_batch(0), **{field: None}))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (([1, 0], [0, 0]), TypeError, "rewards must be floating point, got torch.int64; call .float()"),
        (([1.0, 0.0], [0.0, 0.0]), TypeError, "group_ids must be integers, got torch.float32; call .long()"),
        (([1.0, 0.0], [0]), ValueError, "group_ids must be [N] = [2], got [1]; one per trajectory"),
        (([], []), TypeError, "group_ids must be integers"),
        (([1.0, float("inf")], [0, 0]), ValueError, "rewards must be finite, got inf at index 1"),
    ],
)
def test_bad_group_arguments(arguments: tuple, kind: type, message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        group_relative_advantages(*(torch.tensor(value) for value in arguments))


def test_turn_scope_needs_turn_counts() -> None:
    rewards, groups = torch.tensor([1.0, 0.0]), torch.tensor([0, 0])
    with pytest.raises(ValueError, match="turn_counts must be given for the scope 'turn', got None"):
        group_relative_advantages(rewards, groups, normalization_scope="turn")
    with pytest.raises(ValueError, match="turn_counts must be positive, got 0"):
        group_relative_advantages(rewards, groups, normalization_scope="turn", turn_counts=torch.tensor([1, 0]))


def test_no_inputs_at_all() -> None:
    with pytest.raises(TypeError, match="grpo: inputs must be a CreditInputs, got Credit"):
        get_credit("grpo")(Credit(torch.zeros(1, 1), torch.zeros(1)))  # type: ignore[arg-type]


def test_bad_embeddings() -> None:
    inputs = random_batch(0)
    with pytest.raises(
        ValueError, match=re.escape(f"embeddings must be [M, D] with M = {inputs.num_rows}, got [2, 3]")
    ):
        similarity_anchors(inputs, torch.ones(2, 3))
    with pytest.raises(ValueError, match=re.escape("embeddings must be finite and not 0, got a vector of norm 0.0")):
        similarity_anchors(inputs, torch.zeros(inputs.num_rows, 3))


def test_batch_and_credit_show_themselves_in_a_line_and_as_a_table() -> None:
    inputs = random_batch(0)
    credit = grpo(inputs)
    line = repr(inputs)
    assert len(line) < 300
    assert f"{inputs.num_rows} turns of {inputs.num_trajectories} trajectories in 3 groups" in line
    assert "teacher_logprobs, valid_actions, span_mask, anchor_ids)" in line
    assert len(repr(credit)) < 400
    assert f"advantages {float(credit.advantages.min()):.3g} .. {float(credit.advantages.max()):.3g}" in repr(credit)
    table = inputs._repr_html_()
    assert table.count("<tr>") == 1 + 7 + 4
    low = float(inputs.student_logprobs[inputs.response_mask].min())
    assert f"{low:.4g} .. " in table
    assert "nan" not in table
    shown = credit._repr_html_()
    assert all(name in shown for name in ("advantages", "turn_weights", *credit.metrics))
    named = replace(credit, metrics={"<b>": 1.0})
    assert "<b>" not in named._repr_html_()


def test_a_log_prob_above_0_is_refused_inside_the_mask_only() -> None:
    inputs = random_batch(0)
    row, token = inputs.response_mask.nonzero()[3].tolist()
    wrong = inputs.student_logprobs.clone()
    wrong[row, token] = 0.5
    with pytest.raises(
        ValueError, match=f"student_logprobs must be at most 0, got 0.5 at row {row}, token {token}; give"
    ):
        replace(inputs, student_logprobs=wrong)
    outside = torch.where(inputs.response_mask, inputs.student_logprobs, 3.0)
    assert replace(inputs, student_logprobs=outside).num_rows == inputs.num_rows
    rounded = torch.where(inputs.response_mask, 1e-4, 0.0).double()
    assert replace(inputs, student_logprobs=rounded).num_rows == inputs.num_rows


def test_rewards_that_a_method_ignores_are_warned_of_where_nothing_else_is_to_be_learned() -> None:
    inputs = random_batch(3, groups=1, rollouts=4)
    count = inputs.num_trajectories
    assert count > 1
    sparse = (inputs.turn_ids == 0) & (inputs.trajectory_ids == 0)
    silent = replace(inputs, rewards=torch.zeros(count), turn_rewards=sparse.float())
    with pytest.warns(UserWarning, match="grpo: rewards must tell trajectories of a group apart"):
        get_credit("grpo")(silent)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get_credit("gigpo")(silent)
        get_credit("grpo")(replace(silent, rewards=torch.arange(count).float()))
        get_credit("grpo")(replace(silent, turn_rewards=torch.zeros(len(sparse))))
        get_credit("grpo")(replace(silent, turn_rewards=None))
