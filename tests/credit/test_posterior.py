"""Posterior credit against plain loops and by hand, and what must hold for every batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from math import isclose

import pytest
import torch
from helpers.credit_cases import (
    hand_batch,
    random_batch,
    reorder_rows,
    reorder_trajectories,
    tensors_of,
    trajectories_of,
)
from helpers.reference_posterior import Found, Posterior
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from turncredit.credit import CreditInputs, get_credit, grpo, posterior
from turncredit.credit.align import build_correspondence, select_sources
from turncredit.credit.groups import trajectory_advantages
from turncredit.credit.posterior import facts_of, joined
from turncredit.credit.posterior.alias import sibling_gain
from turncredit.credit.posterior.estimate import estimate
from turncredit.credit.posterior.evidence import turn_evidence
from turncredit.credit.posterior.siblings import Stretches, stretches
from turncredit.credit.posterior.slope import beliefs, fit_slope, sceptical
from turncredit.credit.posterior.turns import Turns, turns_of

seeds = st.integers(0, 10_000)
quick = settings(max_examples=15, deadline=None)
SCALING = {"scope": "trajectory", "eps": 1e-4}
PRESETS = ("posterior", "posterior_anchors", "posterior_teacher")


def same(a: torch.Tensor, b: torch.Tensor | list[float], atol: float = 1e-9) -> None:
    torch.testing.assert_close(a.double(), torch.as_tensor(b, dtype=torch.float64), rtol=0, atol=atol)


def batch(seed: int, *, graded: bool = False, rewarded: bool = False, **options) -> CreditInputs:
    """A random batch; ``graded`` returns differ in more than success, ``rewarded`` turns earn on their way."""
    inputs = random_batch(seed, **{"groups": 3, "rollouts": 6, "turns": 6, **options})
    draw = torch.Generator().manual_seed(seed)
    if graded:
        more = torch.rand(inputs.num_trajectories, generator=draw, dtype=inputs.rewards.dtype)
        inputs = replace(inputs, rewards=inputs.rewards + 5 * more - 4)
    if rewarded:
        own = torch.rand(inputs.num_rows, generator=draw, dtype=inputs.rewards.dtype) - 0.3
        total = torch.zeros_like(inputs.rewards).index_add_(0, inputs.trajectory_ids, own)
        last = inputs.turn_ids == inputs.turn_counts[inputs.trajectory_ids] - 1
        own = own + last * (inputs.rewards - total)[inputs.trajectory_ids]
        inputs = replace(inputs, turn_rewards=own)
    return inputs


def of_grpo(inputs: CreditInputs, **options) -> list[float]:
    scaling = {"scale_rewards": True, "normalization_scope": "trajectory", "eps": 1e-4, **options}
    return trajectory_advantages(inputs, **scaling).tolist()


def pieces(inputs: CreditInputs, use: str = "teacher+anchors", discount: float = 0.95) -> tuple[Turns, Stretches]:
    turns = turns_of(facts_of(inputs, use=use, outcome_discount=1.0), **SCALING)
    return turns, stretches(turns, discount)


def assert_like_loops(inputs: CreditInputs, expected: Found, **options) -> None:
    credit = posterior(inputs, **options)
    rows = torch.where(inputs.response_mask, credit.advantages, 0).sum(-1) / inputs.token_counts
    same(rows, expected.credit)
    same(credit.details["advantage"], expected.advantage)
    same(credit.details["revision"], expected.revision)
    same(credit.details["variance"], expected.variance)
    assert credit.metrics["teacher_slope"] == pytest.approx(expected.slope, abs=1e-9)


# ---- plain loops


@pytest.mark.parametrize("use", ["teacher+anchors", "anchors", "teacher", ""])
@pytest.mark.parametrize("kind", [{}, {"graded": True}, {"rewarded": True}, {"graded": True, "rewarded": True}])
@pytest.mark.parametrize("seed", range(3))
def test_like_plain_loops(seed: int, kind: dict[str, bool], use: str) -> None:
    inputs = batch(seed, **kind)
    expected = Posterior(inputs, of_grpo(inputs), use.split("+")).run()
    assert_like_loops(inputs, expected, use=use)


@pytest.mark.parametrize(
    "options",
    [
        {"luck": 0.7},
        {"alias": 0.0},
        {"alias": 2.0},
        {"slope": -0.4, "ridge": 2.0},
        {"doubt": 0.5},
        {"doubt": 1.0},
        {"spike": 0.0},
        {"spike": 20.0},
        {"adaptive": False},
        {"adaptive": False, "alias": 2.0},
    ],
)
def test_like_plain_loops_with_other_options(options: dict[str, float]) -> None:
    inputs = batch(5, graded=True)
    assert_like_loops(inputs, Posterior(inputs, of_grpo(inputs)).run(**options), **options)


@pytest.mark.parametrize("discount", [0.5, 1.0])
def test_like_plain_loops_with_another_discount(discount: float) -> None:
    inputs = batch(6, rewarded=True)
    expected = Posterior(inputs, of_grpo(inputs), discount=discount).run()
    assert_like_loops(inputs, expected, discount=discount)


def test_like_plain_loops_with_faded_outcomes_and_without_scaling() -> None:
    inputs = batch(7, graded=True, rewarded=True)
    advantages = of_grpo(inputs, outcome_discount=0.8, scale_rewards=False)
    expected = Posterior(inputs, advantages, fade=0.8).run()
    assert_like_loops(inputs, expected, outcome_discount=0.8, scale_rewards=False)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rewarded", [False, True])
def test_stretches_like_plain_loops(seed: int, rewarded: bool) -> None:
    inputs = batch(seed, graded=True, rewarded=rewarded)
    turns, seen = pieces(inputs)
    expected = Posterior(inputs, of_grpo(inputs)).stretches()
    assert len(expected) == seen.known.numel()
    row = {(i, k): m for m, (i, k) in enumerate(zip(turns.owner.tolist(), turns.place.tolist(), strict=True))}
    for one in expected:
        ids = {int(seen.ids[row[one.trajectory, k]]) for k in range(one.first, one.last)}
        assert len(ids) == 1
        place = ids.pop()
        assert bool(seen.known[place]) == (one.d is not None)
        for name, value in (("change", one.d or 0.0), ("discounted", one.D), ("variance", one.s)):
            assert float(getattr(seen, name)[place]) == pytest.approx(value, abs=1e-12), name


# ---- by hand

# Three rollouts of one task, rewards 1, 0, 0. Everybody sees observation 1 at turn 0; 0 and 1 see 2 at turn 1; 0 and 2
# see 3 later. Position 0 is everybody's.
HAND = {"rewards": [1.0, 0.0, 0.0], "anchors": [[1, 2, 3], [1, 2], [1, 3]]}


def hand(gaps: list[list[float]] | None = None) -> CreditInputs:
    anchors = torch.tensor([a for row in HAND["anchors"] for a in row])
    return hand_batch(gaps or [[0.0] * len(row) for row in HAND["anchors"]], HAND["rewards"], anchor_ids=anchors)


def test_stretches_by_hand() -> None:
    _, seen = pieces(hand(), discount=0.5)
    # trajectory 0: from {1, 2} to {1} to {2} and open; 1: from {0, 2} to {0}; 2: from {0, 1} to {0}
    assert seen.ids.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert seen.known.tolist() == [True, True, False, True, False, True, False]
    # d: means of the others: 0 to 0 to 0; 1/2 to 1; 1/2 to 1
    same(seen.change, [0, 0, 0, 0.5, 0, 0.5, 0], 1e-15)
    # D of trajectory 1: W_0 = mean(0.5^3, 0) = 1/16; W at 2 is 0.5^2 = 1/4; 0.5 x 1/4 - 1/16 = 1/16
    # of trajectory 2: W at 3 is 0.5^1 = 1/2; 0.5 x 1/2 - 1/16 = 3/16
    same(seen.discounted, [0, 0, 0, 1 / 16, 0, 3 / 16, 0], 1e-15)
    # m = 1/3. From {1, 2} to {1}: h = 1/9 and 1/6, noise (8/81 + 5/36) / 2, times 1/2 + 1 - 2/2 = 1/2
    # from {1} to {2}: h = 1/6 twice, noise 5/36, times 1 + 1 - 0; from {0, 2} to {0}: h = 4/9 and 2/3
    first = (8 / 81 + 5 / 36) / 4
    other = (20 / 81 + 2 / 9) / 4
    same(seen.variance, [first, 2 * 5 / 36, 0, other, 0, other, 0], 1e-15)


def test_credit_by_hand_without_a_teacher() -> None:
    # trajectory 1 of two turns: s0 = 2/5, b0 = 0.24, q = 0.12; stretch 1 has d = 0.5, D = 1/16, s = `other`
    credit = posterior(hand(), use="anchors", discount=0.5, luck=0.25, alias=1.0, adaptive=False)
    s, q, b0 = (20 / 81 + 2 / 9) / 4, 0.12, 0.24
    g = 1 / (2 * q + s)
    e, plain, p = q * g / 16, q * g * 0.5, q * (1 - q * g)
    rest = (0 - 1 / 3 - plain) / (p + q + 0.25 * b0)
    adv = [e + p * rest, q * rest]
    same(credit.details["advantage"][3:5], adv, 1e-12)
    same(credit.details["variance"][3:5], [p, q], 1e-12)
    # A = -(1/3) / (sqrt(1/3) + eps) over R - m = -1/3, two turns
    unit = 2 * 1.25 / (3**-0.5 + 1e-4)
    same(credit.advantages[3:5, 0], [adv[0] * unit, adv[1] * unit], 1e-12)


def test_belief_by_hand() -> None:
    turns, _ = pieces(hand())
    x = torch.tensor([1.0, -2.0, 0.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    found = beliefs(turns, x, turns.running(x), torch.tensor(0.5, dtype=torch.float64))
    prior = torch.tensor([0.4], dtype=torch.float64).logit()
    path = torch.cat([torch.tensor([0.4], dtype=torch.float64), (prior + torch.tensor([0.5, -0.5, -0.5])).sigmoid()])
    same(found.before[:3], path[:3], 1e-12)
    same(found.revision[:3], path.diff(), 1e-12)
    same(found.room[:3], path[:3] * (1 - path[:3]) / 3, 1e-12)


def test_evidence_by_hand() -> None:
    # gaps -3, -1, -1, 0, -5, -1, -1 of one token each: the median -1 is the drift
    facts = facts_of(hand([[-3.0, -1.0, -1.0], [0.0, -5.0], [-1.0, -1.0]]), use="teacher", outcome_discount=1.0)
    rms = ((4 + 1 + 16) / 7) ** 0.5
    same(turn_evidence(facts), [-2 / rms, 0, 0, 1 / rms, -4 / rms, 0, 0], 1e-12)


def test_scepticism_by_hand() -> None:
    one = torch.tensor(1.0, dtype=torch.float64)
    # doubt 1/2 says nothing; at 0 half the mass is on either side; without doubt it is the mean of a cut normal
    same(sceptical(0.3 * one, one, 0.5), 0.3 * one, 1e-15)
    same(sceptical(0 * one, one, 0.0), (2 / torch.pi) ** 0.5 * one, 1e-12)
    same(sceptical(0 * one, one, 1.0), -((2 / torch.pi) ** 0.5) * one, 1e-12)
    same(sceptical(9 * one, one, 0.05), 9 * one, 1e-12)
    # the mean of a normal about -100 whose negative half is cut off is all but 1/100
    same(sceptical(-100 * one, one, 0.0), 0.01 * one, 1e-5)
    same(sceptical(100 * one, one, 1.0), -0.01 * one, 1e-5)


# ---- GRPO where nothing is said


@given(seed=seeds, dtype=st.sampled_from([torch.float32, torch.float64]), graded=st.booleans())
@quick
def test_grpo_bit_for_bit_without_evidence(seed: int, dtype: torch.dtype, graded: bool) -> None:
    inputs = batch(seed, graded=graded, dtype=dtype)
    expected = grpo(inputs)
    alone = replace(inputs, anchor_ids=torch.arange(inputs.num_rows))
    silent = replace(inputs, teacher_logprobs=inputs.student_logprobs)
    for credit in (
        posterior(inputs, use=""),
        posterior(alone, use="anchors"),
        posterior(silent, use="teacher"),
        posterior(replace(silent, anchor_ids=alone.anchor_ids)),
    ):
        assert torch.equal(credit.advantages, expected.advantages)
        assert (credit.turn_weights == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_teacher_that_only_drifts_says_nothing(dtype: torch.dtype) -> None:
    inputs = batch(3, dtype=dtype)
    drifting = replace(inputs, teacher_logprobs=inputs.student_logprobs - 0.125)
    assert torch.equal(posterior(drifting, use="teacher").advantages, grpo(inputs).advantages)


@given(seed=seeds, graded=st.booleans())
@quick
def test_a_task_of_other_units_changes_nothing(seed: int, graded: bool) -> None:
    inputs = batch(seed, graded=graded)
    scale, offset = torch.tensor([1.0, 100.0, 1e-3]).double(), torch.tensor([0.0, 3.0, -1.0]).double()
    moved = replace(inputs, rewards=inputs.rewards * scale[inputs.group_index] + offset[inputs.group_index])
    for use in ("teacher", "anchors", "teacher+anchors"):
        plain, other = (posterior(x, use=use, eps=1e-12) for x in (inputs, moved))
        same(other.advantages, plain.advantages, 1e-6)


def test_equal_groups_get_nothing_and_enter_no_fit() -> None:
    inputs, extra = batch(8), batch(9, groups=1)
    extra = replace(extra, rewards=torch.full_like(extra.rewards, 10.0))  # within the range of the others
    assert (posterior(extra).advantages == 0).all()
    turns = turns_of(joined([facts_of(x, use="anchors", outcome_discount=1.0) for x in (inputs, extra)]), **SCALING)
    evidence, seen = turn_evidence(facts_of(inputs, use="teacher", outcome_discount=1.0)), stretches(turns, 0.95)

    def slope(size: float) -> float:
        more = torch.full((extra.num_rows,), size, dtype=torch.float64)
        return float(fit_slope(turns, torch.cat([evidence, more]), seen, slope=0.2, ridge=10.0, doubt=0.05, spike=3.0))

    assert slope(5.0) == slope(-5.0) == slope(0.0) != 0


# ---- what must hold


@given(seed=seeds, rewarded=st.booleans(), data=st.data())
@quick
def test_the_own_outcome_is_left_out(seed: int, rewarded: bool, data: st.DataObject) -> None:
    inputs = batch(seed, rewarded=rewarded)
    mine = data.draw(st.integers(0, inputs.num_trajectories - 1))
    last = inputs.turn_ids == inputs.turn_counts[inputs.trajectory_ids] - 1
    rewards = inputs.rewards.clone()
    rewards[mine] = 10 - rewards[mine]
    changed = replace(inputs, rewards=rewards)
    if rewarded:
        more = (last & (inputs.trajectory_ids == mine)) * (rewards - inputs.rewards)[mine]
        changed = replace(changed, turn_rewards=inputs.turn_rewards + more)
    # the units of R are the group's: they are kept by two trajectories more of each
    groups = torch.arange(3).repeat_interleave(2)
    wide = replace(hand_batch([[0.0]] * 6, [0.0] * 6), rewards=torch.tensor([-100.0, 100.0] * 3).double())
    frame = facts_of(wide, use="", outcome_discount=1.0)
    frame = replace(frame, anchors=frame.anchors + 10_000)

    def seen(inputs: CreditInputs) -> tuple[Turns, Stretches]:
        facts = joined([facts_of(inputs, use="anchors", outcome_discount=1.0), frame])
        turns = turns_of(replace(facts, group=torch.cat([inputs.group_index, groups])), **SCALING)
        return turns, stretches(turns, 0.95)

    (turns, before), (_, after) = seen(inputs), seen(changed)
    own = torch.zeros_like(before.known).index_fill_(0, before.ids[turns.owner == mine], True)
    assert torch.equal(before.known, after.known)
    same(after.change[own], before.change[own], 1e-12)
    same(after.discounted[own], before.discounted[own], 1e-12)


def test_the_own_outcome_moves_the_noise_only_through_the_mean_of_the_group() -> None:
    turns, before = pieces(hand())
    rewards = torch.tensor([0.0, 0.0, 0.0])
    moved = replace(turns, outcome=rewards.double(), earned=torch.zeros_like(turns.earned))
    own = before.ids[turns.owner == 0]
    same(stretches(moved, 0.95).variance[own], before.variance[own], 1e-15)


@given(seed=seeds)
@quick
def test_equal_visitors_decide_nothing(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    # all rollouts pass the same observations in the same order, and part at the end
    inputs = hand_batch([[0.0] * 4 for _ in range(5)], torch.randint(0, 2, (5,), generator=draw).double().tolist())
    inputs = replace(inputs, anchor_ids=torch.arange(4).repeat(5))
    _, seen = pieces(inputs)
    assert (seen.change == 0).all()
    assert (seen.variance == 0).all()
    assert seen.known.sum() == 15
    weights = posterior(inputs, use="anchors", discount=1.0).turn_weights.view(5, 4)
    if bool((inputs.rewards != inputs.rewards[0]).any()):
        # where everybody went no credit goes, but for what the observation hides
        assert (weights[:, 3:] > 2 * weights[:, :3]).all()


@given(seed=seeds, gap=st.sampled_from([1e-6, 0.5, 30.0, 1e4]), graded=st.booleans())
@quick
def test_variance_is_never_negative_and_everything_finite(seed: int, gap: float, graded: bool) -> None:
    inputs = batch(seed, gap=gap, graded=graded)
    for alias in (0.0, 0.5):
        credit = posterior(inputs, alias=alias)
        assert (credit.details["variance"] >= 0).all()
        _, seen = pieces(inputs)
        assert (seen.variance >= 0).all()
        assert all(torch.isfinite(value).all() for value in (credit.advantages, *credit.details.values()))
        assert credit.advantages.dtype == torch.float64


@given(seed=seeds, data=st.data())
@quick
@pytest.mark.parametrize("name", PRESETS)
def test_order_of_rows_trajectories_and_groups_changes_nothing(name: str, seed: int, data: st.DataObject) -> None:
    inputs = batch(seed, rewarded=seed % 2 == 0)
    rows = torch.tensor(data.draw(st.permutations(range(inputs.num_rows))))
    order = torch.tensor(data.draw(st.permutations(range(inputs.num_trajectories))))
    method = get_credit(name)
    credit, moved = method(inputs), method(reorder_trajectories(reorder_rows(inputs, rows), order))
    same(moved.advantages, credit.advantages[rows], 1e-8)
    for key, value in credit.details.items():
        same(moved.details[key], value[rows], 1e-9)
    assert moved.metrics == pytest.approx(credit.metrics, abs=1e-8)


def test_names_of_groups_and_anchors_change_nothing() -> None:
    inputs = batch(4)
    renamed = replace(inputs, group_ids=1000 - 7 * inputs.group_ids, anchor_ids=10**12 - inputs.anchor_ids)
    same(posterior(renamed).advantages, posterior(inputs).advantages)


def test_an_anchor_of_another_group_is_another_anchor() -> None:
    inputs = batch(4)
    own = inputs.anchor_ids + 100 * inputs.group_index[inputs.trajectory_ids]
    assert torch.equal(posterior(replace(inputs, anchor_ids=own)).advantages, posterior(inputs).advantages)


@pytest.mark.parametrize("name", PRESETS)
def test_padding_changes_nothing(name: str) -> None:
    inputs = batch(6)
    wide = {}
    for key, value in tensors_of(inputs).items():
        if value.ndim == 2:
            filler = torch.full((len(value), 3), torch.nan) if value.is_floating_point() else torch.zeros(len(value), 3)
            wide[key] = torch.cat([value, filler.to(value.dtype)], dim=1)
    credit, padded = get_credit(name)(inputs), get_credit(name)(replace(inputs, **wide))
    same(padded.advantages[:, :-3], credit.advantages)
    assert (padded.advantages[:, -3:] == 0).all()


def lone_teacher(sign: float, groups: int = 8) -> CreditInputs:
    """Two turns a rollout; the first decides, and the teacher says so, with a sign."""
    draw = torch.Generator().manual_seed(0)
    rewards = torch.randint(0, 2, (groups * 8,), generator=draw).double()
    gaps = torch.stack([sign * (2 * rewards - 1), 0.1 * torch.randn(len(rewards), generator=draw)], 1)
    inputs = hand_batch(gaps.tolist(), rewards.tolist())
    return replace(inputs, group_ids=torch.arange(groups).repeat_interleave(8))


def test_a_misleading_teacher_has_a_negative_slope() -> None:
    good, bad = (posterior(lone_teacher(sign), use="teacher") for sign in (1.0, -1.0))
    assert good.metrics["teacher_slope"] > 1
    assert bad.metrics["teacher_slope"] < -0.5
    for credit in (good, bad):
        weights = credit.turn_weights.view(-1, 2)
        assert (weights[:, 0] > weights[:, 1]).all()
        assert 0.2 < credit.metrics["explained_share"] < 1


def test_only_the_last_reward_is_no_turn_rewards() -> None:
    inputs = batch(5, graded=True)
    last = inputs.turn_ids == inputs.turn_counts[inputs.trajectory_ids] - 1
    explicit = replace(inputs, turn_rewards=last * inputs.rewards[inputs.trajectory_ids])
    assert torch.equal(posterior(explicit).advantages, posterior(inputs).advantages)


def test_a_reward_within_the_stretch_is_its_own_and_one_before_it_is_nobodys() -> None:
    # all rollouts see 1, 2 and 3; the first earns 1/2 at turn 0, and everybody 1/4 at turn 2
    inputs = hand_batch([[0.0] * 3 for _ in range(3)], [0.75, 0.25, 0.25])
    inputs = replace(inputs, anchor_ids=torch.arange(3).repeat(3))
    inputs = replace(inputs, turn_rewards=torch.tensor([0.5, 0, 0.25, 0, 0, 0.25, 0, 0, 0.25]).double())
    turns, seen = pieces(inputs, discount=1.0)
    # R is 1, 0, 0: units of 1/2, and 1/4 is taken off at the end
    same(turns.earned, [1, 0, 0, 0, 0, 0, 0, 0, 0], 1e-12)
    # the first trajectory: own 1 + 0 - 0, then 0; the others compare with (1 + 0) / 2 before and 0 after
    same(seen.change, [1, 0, 0, -0.5, 0, 0, -0.5, 0, 0], 1e-12)
    same(seen.discounted, seen.change, 1e-12)


def test_processes_that_pool_their_facts_agree_with_one() -> None:
    inputs = batch(2, groups=4, graded=True)
    whole = posterior(inputs)
    for chosen in (inputs.group_index < 2, inputs.group_index >= 2):
        rows = chosen[inputs.trajectory_ids]
        mine, rest = (trajectories_of(inputs, keep) for keep in (chosen, ~chosen))
        credit = posterior(mine, others=[facts_of(rest, use="teacher+anchors", outcome_discount=1.0)])
        same(credit.advantages, whole.advantages[rows])
        assert credit.metrics["teacher_slope"] == pytest.approx(whole.metrics["teacher_slope"], abs=1e-9)


def with_sources(inputs: CreditInputs, shift: float) -> CreditInputs:
    """Every turn has corresponding turns of its siblings, which score it ``shift`` above the teacher."""
    ones = torch.ones(inputs.num_rows, 2, dtype=torch.float64)
    valid = torch.ones(inputs.num_rows, dtype=torch.bool)
    ids = inputs.trajectory_ids, inputs.turn_ids, inputs.group_ids
    found = build_correspondence(ones, ones, *ids, valid, valid)
    sources = select_sources(found)
    assert inputs.teacher_logprobs is not None
    return replace(inputs, correspondence=found.with_scores(sources, inputs.teacher_logprobs[sources.target] + shift))


def test_sources_rectify_the_teacher() -> None:
    inputs = batch(3, groups=2, rollouts=6)
    plain = posterior(inputs)
    same(posterior(with_sources(inputs, 0.0), use="teacher+anchors+sources").advantages, plain.advantages)
    scored = with_sources(inputs, 0.5)
    facts, teacher = (facts_of(scored, use=use, outcome_discount=1.0) for use in ("teacher+sources", "teacher"))
    supplied = torch.zeros(inputs.num_rows, dtype=torch.bool)
    supplied[scored.correspondence.sources.target] = True
    # full confidence: strength 0.8, so 0.4 a token
    same(facts.gaps - teacher.gaps, supplied * 0.4 * inputs.token_counts.double(), 1e-6)


# ---- observations that look alike


def clocked(alike: bool, groups: int = 8) -> CreditInputs:
    """Corridors of 3 to 8 cells, all won or all lost: the cell tells the time left, unless all cells look alike."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 9, (groups, 6), generator=draw).flatten()
    rewards = torch.randint(0, 2, (groups * 6,), generator=draw).double()
    inputs = hand_batch([[0.0] * int(k) for k in lengths], rewards.tolist())
    left = lengths[inputs.trajectory_ids] - inputs.turn_ids
    seen = torch.randint(0, 3, left.shape, generator=draw) if alike else left
    return replace(inputs, anchor_ids=seen, group_ids=torch.arange(groups).repeat_interleave(6))


def test_siblings_clocks_are_believed_where_observations_tell_the_time() -> None:
    assert posterior(clocked(False), use="anchors").metrics["clock_trust"] == pytest.approx(1, abs=0.05)
    assert posterior(clocked(True), use="anchors").metrics["clock_trust"] < 0.1


def test_without_trust_in_clocks_discount_does_nothing() -> None:
    inputs = clocked(True)
    rows = [posterior(inputs, use="anchors", discount=discount) for discount in (0.95, 1.0)]
    assert rows[0].metrics["clock_trust"] == 0
    same(rows[0].advantages, rows[1].advantages)


def test_a_discount_of_one_has_no_clock_to_doubt() -> None:
    assert posterior(batch(1), discount=1.0).metrics["clock_trust"] == 1


@pytest.mark.parametrize(("truthful", "less"), [(True, False), (False, True)])
def test_siblings_are_believed_as_far_as_they_foretell_outcomes(truthful: bool, less: bool) -> None:
    """What siblings at an observation made of it holds for oneself, or not at all: the teacher is right either way."""
    draw = torch.Generator().manual_seed(1)
    rewards = torch.randint(0, 2, (64,), generator=draw).double()
    gaps = torch.stack([2 * rewards - 1, 0.05 * torch.randn(64, generator=draw)], 1)
    inputs = hand_batch(gaps.tolist(), rewards.tolist())
    seen = rewards if truthful else torch.randint(0, 2, (64,), generator=draw)
    anchors = torch.where(inputs.turn_ids == 0, 2, seen.long()[inputs.trajectory_ids])
    inputs = replace(inputs, anchor_ids=anchors, group_ids=torch.arange(8).repeat_interleave(8))
    turns, stretch = pieces(inputs)
    evidence = turn_evidence(facts_of(inputs, use="teacher", outcome_discount=1.0))
    belief = beliefs(turns, evidence, turns.running(evidence), turns.earned.new_tensor(2.0))
    gain, fixed = (sibling_gain(turns, belief, stretch, 0.5, adaptive=choice) for choice in (True, False))
    known = stretch.known & (gain > 0)
    assert known.any()
    assert bool((gain[known] < 0.7 * fixed[known]).all()) == less
    assert (gain[~stretch.known] == 0).all()


def test_no_alias_stays_none() -> None:
    inputs = batch(3)
    turns, seen = pieces(inputs)
    zero = torch.zeros_like(turns.earned)
    belief = beliefs(turns, zero, zero, zero.sum())
    same(sibling_gain(turns, belief, seen, 0.0), sibling_gain(turns, belief, seen, 0.0, adaptive=False), 1e-9)


# ---- errors and cost


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"use": "teachers"}, ValueError, "posterior: use must be made of .*, got 'teachers'; did you mean 'teacher'?"),
        ({"use": "anchors+sources"}, ValueError, r"use must hold 'teacher' where it holds 'sources'"),
        ({"use": "teacher+"}, ValueError, "use must be made of .*, got ''"),
        ({"use": ["teacher"]}, TypeError, "posterior: use must be text"),
        ({"adaptive": "False"}, TypeError, "posterior: adaptive must be True or False, got 'False'"),
        ({"luck": 0.0}, ValueError, "posterior: luck must be a number in"),
        ({"alias": -0.1}, ValueError, "posterior: alias must be a number in"),
        ({"discount": 0.0}, ValueError, "posterior: discount must be a number in"),
        ({"discount": 1.1}, ValueError, "posterior: discount must be a number in"),
        ({"slope": float("nan")}, ValueError, "posterior: slope must be a number in"),
        ({"ridge": 0}, ValueError, "posterior: ridge must be a number in"),
        ({"doubt": 1.5}, ValueError, "posterior: doubt must be a number in"),
        ({"luck": "0.2"}, ValueError, "posterior: luck must be a number in"),
        ({"outcome_discount": 0.0}, ValueError, "outcome_discount must be a number in"),
        ({"normalization_scope": "task"}, ValueError, "normalization_scope must be one of"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        posterior(batch(0), **options)


@pytest.mark.parametrize(
    ("use", "missing"),
    [("teacher", "teacher_logprobs"), ("anchors", "anchor_ids"), ("teacher+sources", "correspondence")],
)
def test_what_use_names_must_be_given(use: str, missing: str) -> None:
    assert get_credit("posterior", use=use).requires >= {missing}
    with pytest.raises(ValueError, match=f"posterior: inputs.{missing} must be given, got None"):
        posterior(replace(batch(0), **{missing: None}), use=use)
    with pytest.raises(ValueError, match=f"facts_of: inputs.{missing} must be given, got None"):
        facts_of(replace(batch(0), **{missing: None}), use=use, outcome_discount=1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_teacher_without_any_source_is_as_it_was(dtype: torch.dtype) -> None:
    inputs = batch(3, groups=2, dtype=dtype)
    lonely = with_sources(inputs, 0.5).correspondence
    none = lonely.sources.keep(torch.zeros(len(lonely.sources.source), dtype=torch.bool))
    inputs = replace(inputs, correspondence=lonely.with_scores(none, lonely.cross_logprobs[:0]))
    before = inputs.teacher_logprobs.clone()
    for _ in range(2):
        same(posterior(inputs, use="teacher+sources").advantages, posterior(inputs, use="teacher").advantages, 1e-5)
        assert torch.equal(inputs.teacher_logprobs, before)


def test_sources_must_be_scored() -> None:
    inputs = with_sources(batch(0), 0.0)
    bare = replace(inputs, correspondence=replace(inputs.correspondence, sources=None, cross_logprobs=None))
    with pytest.raises(ValueError, match="cross_logprobs must be given where use holds 'sources', got None"):
        posterior(bare, use="teacher+sources")


def test_use_is_refused_where_the_method_is_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'anchors'"):
        get_credit("posterior", use="anchor")


def test_presets_say_what_they_use() -> None:
    uses = {name: get_credit(name).options["use"] for name in PRESETS}
    assert uses == {"posterior": "teacher+anchors", "posterior_anchors": "anchors", "posterior_teacher": "teacher"}
    assert get_credit("posterior_sources").requires == {"teacher_logprobs", "correspondence"}
    assert get_credit("posterior_all").requires == {"teacher_logprobs", "correspondence", "anchor_ids"}


def peak(function: Callable[[], object]) -> int:
    """Bytes of tensors that are alive at once, above those from before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = function()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    del result
    return max(itertools.accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


@pytest.mark.parametrize(("group", "anchors"), [(8, 20), (1024, 200)])
def test_memory_stays_within_four_times_the_inputs(group: int, anchors: int) -> None:
    n, turns, tokens = 1024, 32, 32
    draw = torch.Generator().manual_seed(0)
    student = -torch.rand(n * turns, tokens, generator=draw)
    success = torch.randint(0, 2, (n,), generator=draw).float()
    inputs = CreditInputs(
        response_mask=torch.ones(n * turns, tokens, dtype=torch.bool),
        trajectory_ids=torch.arange(n).repeat_interleave(turns),
        turn_ids=torch.arange(turns).repeat(n),
        group_ids=torch.arange(n) // group,
        rewards=success,
        successes=success,
        student_logprobs=student,
        teacher_logprobs=student + 0.1 * torch.randn(n * turns, tokens, generator=draw),
        anchor_ids=torch.randint(0, anchors, (n * turns,), generator=draw),
    )
    size = sum(value.nbytes for value in tensors_of(inputs).values())
    assert n * turns * tokens * 4 / size < peak(lambda: posterior(inputs)) / size < 4


def test_estimate_of_an_unknown_trajectory_is_its_share() -> None:
    turns, seen = pieces(hand(), use="")
    zero = torch.zeros_like(turns.earned)
    found = estimate(turns, beliefs(turns, zero, zero, zero.sum()), seen, luck=0.2, alias=0.5)
    assert not found.informed.any()
    share = (turns.outcome - turns.baseline) / (turns.counts.double() * 1.2)
    same(found.advantage, share[turns.owner], 1e-12)
    assert isclose(float(found.variance.sum()), 3 * 0.24, rel_tol=1e-12)
