"""What must hold for every batch: bounds, signs, identities with GRPO, invariance to order and padding, finiteness."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.credit_cases import hand_batch, random_batch, reorder_rows, reorder_trajectories, tensors_of
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.credit import CreditInputs, agent_opsd, get_credit, grpo
from turncredit.credit.agent import belief_revisions

METHODS = [
    "grpo",
    "dr_grpo",
    "agent_opsd",
    "agent_opsd_token",
    "agent_opsd_gap",
    "agent_opsd_magnitude",
    "agent_opsd_no_prior",
    "agent_opsd_centered",
    "agent_opsd_calibrated",
    "rlsd",
    "step_opsd",
    "gigpo",
    "gigpo_std",
    "rloo",
    "hgpo",
    "graphgpo",
    "g2po",
    "gagpo",
    "rewardflow",
    "hcapo",
]
RESHAPING = [name for name in METHODS if name.startswith("agent_opsd")] + ["rlsd"]
seeds = st.integers(0, 10_000)
gaps = st.sampled_from([1e-6, 0.01, 0.3, 3.0, 100.0, 1e4])
quick = settings(max_examples=15, deadline=None)
few = settings(max_examples=5, deadline=None)


def same(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


@given(seed=seeds, gap=gaps, lam=st.floats(0, 1), band=st.floats(0.01, 0.99), gamma=st.floats(0.01, 1))
@quick
@pytest.mark.parametrize("name", RESHAPING)
def test_bounded_and_sign_kept(name: str, seed: int, gap: float, lam: float, band: float, gamma: float) -> None:
    inputs = random_batch(seed, gap=gap)
    options = {"gamma": gamma} if name.startswith("agent") else {}
    credit = get_credit(name, lam=lam, band=band, **options)(inputs)
    base = grpo(inputs).advantages
    assert torch.isfinite(credit.advantages).all()
    assert ((credit.advantages - base).abs() <= lam * band * base.abs() + 1e-12).all()
    assert torch.equal(credit.advantages.sign(), base.sign())


@given(seed=seeds, gap=gaps)
@quick
def test_step_opsd_keeps_the_sign_and_stays_finite(seed: int, gap: float) -> None:
    inputs = random_batch(seed, gap=gap)
    credit, base = get_credit("step_opsd", lam=1.0)(inputs), grpo(inputs).advantages
    assert torch.equal(credit.advantages.sign(), base.sign())
    ratio = credit.advantages.abs() / base.abs().clamp(min=1e-12)
    assert (ratio[base != 0] <= 2 * 1.2 + 1e-9).all()
    assert (ratio[base != 0] >= 0.5 * 0.8 - 1e-9).all()


@given(seed=seeds, dtype=st.sampled_from([torch.float32, torch.float64]))
@quick
@pytest.mark.parametrize("name", [*RESHAPING, "step_opsd"])
def test_lambda_zero_is_grpo_bit_for_bit(name: str, seed: int, dtype: torch.dtype) -> None:
    inputs = random_batch(seed, dtype=dtype)
    assert torch.equal(get_credit(name, lam=0.0)(inputs).advantages, grpo(inputs).advantages)


@given(seed=seeds)
@quick
def test_gigpo_without_step_credit_is_grpo_bit_for_bit(seed: int) -> None:
    inputs = random_batch(seed)
    assert torch.equal(
        get_credit("gigpo", step_weight=0.0)(inputs).advantages, get_credit("dr_grpo")(inputs).advantages
    )


@pytest.mark.parametrize("name", ["agent_opsd", "agent_opsd_gap", "rlsd", "step_opsd"])
def test_identical_contexts_are_grpo(name: str) -> None:
    inputs = random_batch(1)
    inputs = replace(inputs, teacher_logprobs=inputs.student_logprobs)
    same(get_credit(name)(inputs).advantages, grpo(inputs).advantages, 2e-6)
    same(get_credit(name)(inputs).turn_weights, torch.ones(inputs.num_rows, dtype=torch.float64), 2e-6)


@pytest.mark.parametrize("name", [n for n in METHODS if n.startswith("agent_opsd") and n != "agent_opsd_token"])
def test_one_turn_trajectories_are_grpo(name: str) -> None:
    inputs = random_batch(2, turns=1)
    assert torch.equal(get_credit(name)(inputs).advantages, grpo(inputs).advantages)


@given(seed=seeds, gap=gaps)
@quick
def test_token_level_on_one_token_turns_is_turn_level(seed: int, gap: float) -> None:
    inputs = random_batch(seed, gap=gap, one_token=True)
    token, turn = agent_opsd(inputs, granularity="token"), agent_opsd(inputs)
    same(token.advantages, turn.advantages)
    same(token.turn_weights, turn.turn_weights)
    for key, value in turn.details.items():
        same(token.details[key], value)
    assert token.metrics == pytest.approx(turn.metrics)


@given(seed=seeds, gap=gaps, gamma=st.floats(0.01, 1))
@quick
@pytest.mark.parametrize("granularity", ["turn", "token"])
def test_revisions_telescope(granularity: str, seed: int, gap: float, gamma: float) -> None:
    inputs = random_batch(seed, gap=gap)
    details = agent_opsd(inputs, gamma=gamma, granularity=granularity).details
    total = torch.zeros(inputs.num_trajectories, dtype=torch.float64)
    total.index_add_(0, inputs.trajectory_ids, details["revisions"])
    last = inputs.turn_ids == inputs.turn_counts[inputs.trajectory_ids] - 1
    owner = inputs.trajectory_ids[last]
    same(total[owner], details["beliefs"][last] - details["prior"][last], 1e-12)


@given(logit=st.floats(-30, 30), move=st.floats(-1e-3, 1e-3))
@quick
def test_a_small_revision_is_its_derivative(logit: float, move: float) -> None:
    zero = torch.tensor([0])
    belief, revision = belief_revisions(
        torch.tensor([move], dtype=torch.float64), zero, zero, torch.tensor([logit], dtype=torch.float64), gamma=1.0
    )
    before = torch.sigmoid(torch.tensor(logit, dtype=torch.float64))
    assert abs(float(revision) - float(before * (1 - before)) * move) <= move**2 + 1e-14
    assert abs(float(belief) - float(before) - float(revision)) < 1e-14


def test_revisions_of_a_saturated_belief_keep_their_digits() -> None:
    # sigmoid(50) - sigmoid(40) = exp(-40) - exp(-50); the naive difference is 0 in float64
    zero = torch.tensor([0])
    ten, forty = torch.tensor([10.0], dtype=torch.float64), torch.tensor([40.0], dtype=torch.float64)
    _, revision = belief_revisions(ten, zero, zero, forty, gamma=1.0)
    assert float(revision) == pytest.approx(4.248161e-18, rel=1e-5)


@given(seed=seeds, data=st.data())
@few
@pytest.mark.parametrize("name", METHODS)
def test_order_of_rows_trajectories_and_groups_changes_nothing(name: str, seed: int, data: st.DataObject) -> None:
    inputs = random_batch(seed)
    method = get_credit(name)
    credit = method(inputs)
    rows = torch.tensor(data.draw(st.permutations(range(inputs.num_rows))))
    trajectories = torch.tensor(data.draw(st.permutations(range(inputs.num_trajectories))))
    moved = method(reorder_trajectories(reorder_rows(inputs, rows), trajectories))
    same(moved.advantages, credit.advantages[rows])
    same(moved.turn_weights, credit.turn_weights[rows])
    for key, value in credit.details.items():
        same(moved.details[key], value[rows])
    assert moved.metrics == pytest.approx(credit.metrics, abs=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_names_of_groups_change_nothing(name: str) -> None:
    inputs = random_batch(4)
    renamed = replace(inputs, group_ids=1000 - 7 * inputs.group_ids)
    same(get_credit(name)(renamed).advantages, get_credit(name)(inputs).advantages)


@pytest.mark.parametrize("name", METHODS)
def test_padding_changes_nothing(name: str) -> None:
    inputs = random_batch(6)
    wide = {}
    for field, value in tensors_of(inputs).items():
        if value.ndim == 2:
            filler = torch.full((value.shape[0], 3), torch.nan) if value.is_floating_point() else torch.zeros(1)
            wide[field] = torch.cat([value, filler.expand(value.shape[0], 3).to(value.dtype)], dim=1)
    credit, padded = get_credit(name)(inputs), get_credit(name)(replace(inputs, **wide))
    same(padded.advantages[:, :-3], credit.advantages)
    assert (padded.advantages[:, -3:] == 0).all()
    same(padded.turn_weights, credit.turn_weights)


@given(seed=seeds)
@few
@pytest.mark.parametrize("name", METHODS)
def test_a_group_does_not_see_the_others(name: str, seed: int) -> None:
    inputs = random_batch(seed, groups=3)
    chosen = inputs.group_ids == inputs.group_ids[0]
    rows = chosen[inputs.trajectory_ids]
    alone = CreditInputs(
        **{
            field: value[chosen if field in ("group_ids", "rewards", "successes") else rows]
            for field, value in tensors_of(inputs).items()
            if field != "trajectory_ids"
        },
        trajectory_ids=(chosen.cumsum(0) - 1)[inputs.trajectory_ids[rows]],
    )
    same(get_credit(name)(alone).advantages, get_credit(name)(inputs).advantages[rows])


@pytest.mark.parametrize("name", METHODS)
def test_no_gradient_and_inputs_unchanged(name: str) -> None:
    inputs = random_batch(7)
    student = inputs.student_logprobs.clone().requires_grad_()
    inputs = replace(inputs, student_logprobs=student)
    before = tensors_of(inputs)
    copies = {key: value.detach().clone() for key, value in before.items()}
    credit = get_credit(name)(inputs)
    for value in (credit.advantages, credit.turn_weights, *credit.details.values()):
        assert not value.requires_grad
    for key, value in copies.items():
        torch.testing.assert_close(before[key].detach(), value, rtol=0, atol=0, equal_nan=True)


@given(seed=seeds)
@few
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", METHODS)
def test_extreme_gaps_stay_finite(name: str, dtype: torch.dtype, seed: int) -> None:
    credit = get_credit(name)(random_batch(seed, gap=1e4, dtype=dtype))
    assert credit.advantages.dtype == dtype
    for value in (credit.advantages, credit.turn_weights, *credit.details.values()):
        assert torch.isfinite(value).all()
    assert all(torch.isfinite(torch.tensor(value)) for value in credit.metrics.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", METHODS)
def test_half_precision_is_read_in_float32(name: str, dtype: torch.dtype) -> None:
    inputs = random_batch(8, dtype=torch.float32)
    half = {key: getattr(inputs, key).to(dtype) for key in ("student_logprobs", "teacher_logprobs")}
    credit = get_credit(name)(replace(inputs, **half))
    assert credit.advantages.dtype == torch.float32
    rounded = replace(inputs, **{key: value.float() for key, value in half.items()})
    assert torch.equal(credit.advantages, get_credit(name)(rounded).advantages)


@pytest.mark.parametrize("name", METHODS)
def test_nothing_outside_the_mask(name: str) -> None:
    inputs = random_batch(9)
    assert (get_credit(name)(inputs).advantages[~inputs.response_mask] == 0).all()


def test_options_of_calibration_remove_drift() -> None:
    # A teacher that lowers every turn by 5 nats: beliefs saturate, unless the trajectory's mean is taken out.
    drift = [[-5.5, -4.5, -5.0, -5.0], [-6.0, -5.0, -4.0, -5.0]]
    plain = agent_opsd(hand_batch(drift, [1.0, 0.0]))
    centred = agent_opsd(hand_batch(drift, [1.0, 0.0]), evidence_centering="trajectory")
    assert plain.metrics["first_turn_revision_share"] > 0.98
    assert plain.metrics["belief_saturated_share"] > 0.9
    assert centred.metrics["belief_saturated_share"] == 0.0
    assert centred.metrics["first_turn_revision_share"] < 0.6
    same(centred.details["evidence"], torch.tensor([-0.5, 0.5, 0, 0, -1, 0, 1, 0], dtype=torch.float64))
