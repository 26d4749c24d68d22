"""Exact values proven by hand, by recursion over paths and by sampling; teachers that are what they claim to be."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.credit.lab.synthetic import (
    EXACT_PROCESSES,
    PROCESSES,
    PUBLISHED_TEACHERS,
    TEACHERS,
    DecisionProcess,
    Teacher,
    exact_credit,
    exact_gradient,
    exact_values,
    key_door,
    lock_chain,
    long_horizon,
    look_alike,
    rarely_repeated,
    sample_episodes,
    state_visits,
    synthetic_batch,
)
from turncredit.credit.registry import get_credit, list_credits


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny_process(horizon: int = 2) -> DecisionProcess:
    """States 0 (start), 1 (second room), 2 (won), 3 (lost).

    Room 0: action 0 (0.6) goes to room 1; action 1 (0.4) loses.
    Room 1: action 0 (0.5) wins with 0.8, else loses; action 1 (0.5) stays.
    """
    transitions = torch.zeros(4, 2, 4, dtype=torch.float64)
    transitions[0, 0, 1] = transitions[0, 1, 3] = transitions[1, 1, 1] = 1.0
    transitions[1, 0, 2], transitions[1, 0, 3] = 0.8, 0.2
    transitions[2, :, 2] = transitions[3, :, 3] = 1.0
    policy = torch.tensor([[0.6, 0.4], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]], dtype=torch.float64)
    none = torch.zeros(4, dtype=torch.float64)
    return DecisionProcess(
        "tiny", transitions, policy, torch.tensor([0.0, 0, 1, 0], dtype=torch.float64),
        torch.tensor([False, False, True, True]), 0, horizon, torch.arange(4), torch.zeros(4, dtype=torch.long),
        none, torch.zeros(4, 2, dtype=torch.float64),
    )  # fmt: skip


def test_values_of_a_chain_by_hand() -> None:
    values = exact_values(tiny_process(horizon=3))
    # t = 2 (one turn left): room 1 wins 0.5 * 0.8 = 0.4; room 0 cannot.
    # t = 1: room 1: 0.5 * 0.8 + 0.5 * 0.4 = 0.6; room 0: 0.6 * 0.4 = 0.24.   t = 0: room 0: 0.6 * 0.6 = 0.36.
    expected = [[0.36, 0.7, 0, 0], [0.24, 0.6, 0, 0], [0, 0.4, 0, 0], [0, 0, 0, 0]]
    torch.testing.assert_close(values.state, torch.tensor(expected, dtype=torch.float64))
    assert values.action[0, 0].tolist() == pytest.approx([0.6, 0.0])
    assert values.action[1, 1].tolist() == pytest.approx([0.8, 0.4])


def test_advantages_and_luck_of_a_path_by_hand() -> None:
    process = tiny_process(horizon=3)
    episodes = sample_episodes(process, groups=50, group_size=4, generator=seeded())
    won_late = (episodes.actions == torch.tensor([0, 1, 0])).all(-1) & (episodes.returns == 1)
    chosen = int(won_late.nonzero()[0, 0])
    credit = exact_credit(episodes)
    mine = episodes.turns[0] == chosen
    # room 0: Q 0.6 - V 0.36; stay at t = 1: 0.4 - 0.6; open at t = 2: 0.8 - 0.4. Only the last had luck: 1 - 0.8.
    assert credit.advantages[mine].tolist() == pytest.approx([0.24, -0.2, 0.4])
    assert credit.luck[mine].tolist() == pytest.approx([0.0, 0.0, 0.2])


def value_by_paths(process: DecisionProcess, state: int, turn: int) -> float:
    """The same value as a sum over every path: no table, no backward induction."""
    if turn == process.horizon or bool(process.terminal[state]):
        return 0.0
    total = 0.0
    for action, chance in enumerate(process.policy[state].tolist()):
        for following, move in enumerate(process.transitions[state, action].tolist()):
            if chance * move > 0:
                reward = float(process.entry_rewards[following])
                total += chance * move * (reward + value_by_paths(process, following, turn + 1))
    return total


def test_values_equal_the_sum_over_paths() -> None:
    process = replace(lock_chain(locks=2), horizon=6)
    assert float(exact_values(process).state[0, process.start]) == pytest.approx(
        value_by_paths(process, process.start, 0), abs=1e-12
    )


@pytest.mark.parametrize("name", PROCESSES)
def test_sampled_mean_return_agrees_with_the_value(name: str) -> None:
    process = PROCESSES[name]()
    value = float(exact_values(process).state[0, process.start])
    episodes = sample_episodes(process, groups=500, group_size=8, generator=seeded(1))
    sigma = math.sqrt(value * (1 - value) / 4000)
    assert abs(float(episodes.returns.mean()) - value) < 4 * sigma
    assert 0.2 < value < 0.8, "groups must hold both outcomes"


@pytest.mark.parametrize("name", PROCESSES)
def test_advantages_and_luck_telescope_to_return_minus_value(name: str) -> None:
    process = PROCESSES[name]()
    values = exact_values(process)
    episodes = sample_episodes(process, groups=20, group_size=8, generator=seeded(2))
    credit = exact_credit(episodes, values)
    total = torch.zeros(160, dtype=torch.float64).index_add_(0, episodes.turns[0], credit.advantages + credit.luck)
    torch.testing.assert_close(total, episodes.returns - values.state[0, process.start], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", PROCESSES)
def test_advantages_average_to_zero_under_the_policy(name: str) -> None:
    process = PROCESSES[name]()
    values = exact_values(process)
    advantages = values.action - values.state[:-1, :, None]
    assert float((process.policy * advantages).sum(-1).abs().max()) < 1e-12


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(2, 3), st.integers(1, 6))
def test_random_processes_telescope_and_match_paths(seed: int, states: int, actions: int, horizon: int) -> None:
    generator = seeded(seed)
    draw = torch.rand(states, actions, states, generator=generator, dtype=torch.float64) + 1e-3
    policy = torch.rand(states, actions, generator=generator, dtype=torch.float64) + 1e-3
    process = DecisionProcess(
        "random", draw / draw.sum(-1, keepdim=True), policy / policy.sum(-1, keepdim=True),
        torch.randn(states, generator=generator, dtype=torch.float64), torch.arange(states) == states - 1, 0,
        min(horizon, 3), torch.arange(states), torch.zeros(states, dtype=torch.long),
        torch.zeros(states, dtype=torch.float64), torch.zeros(states, actions, dtype=torch.float64),
    )  # fmt: skip
    values = exact_values(process)
    assert float(values.state[0, 0]) == pytest.approx(value_by_paths(process, 0, 0), abs=1e-9)
    episodes = sample_episodes(process, groups=3, group_size=2, generator=generator)
    credit = exact_credit(episodes, values)
    total = torch.zeros(6, dtype=torch.float64).index_add_(0, episodes.turns[0], credit.advantages + credit.luck)
    torch.testing.assert_close(total, episodes.returns - values.state[0, 0], rtol=0, atol=1e-9)


def test_sampling_follows_the_policy_and_the_transitions() -> None:
    process = tiny_process(horizon=1)
    episodes = sample_episodes(process, groups=1, group_size=20_000, generator=seeded(3))
    assert float((episodes.actions[:, 0] == 0).double().mean()) == pytest.approx(0.6, abs=0.015)
    assert bool((episodes.states[:, 1] == torch.where(episodes.actions[:, 0] == 0, 1, 3)).all())


@pytest.mark.parametrize("name", PROCESSES)
def test_known_pivotal_turns_have_the_large_advantages(name: str) -> None:
    process = PROCESSES[name]()
    values = exact_values(process)
    spread = (values.action[0].amax(-1) - values.action[0].amin(-1)).masked_fill(process.terminal, 0)
    decisive = set((spread > 0.2).nonzero().flatten().tolist())
    count = {"key_door": 1, "lock_chain": 4, "detour": 0, "redundant_evidence": 1, "misleading_evidence": 2,
             "late_choice": 1, "long_horizon": 3, "look_alike": 3, "rarely_repeated": 4}[name]  # fmt: skip
    assert len(decisive) >= count
    if name not in ("detour", "key_door"):
        assert len(decisive) == count


def test_long_horizon_reaches_fifty_turns_and_groups_hold_both_outcomes() -> None:
    episodes = sample_episodes(long_horizon(), groups=50, group_size=8, generator=seeded())
    lengths = episodes.alive.sum(-1)
    assert int(lengths.max()) == 50
    assert int(lengths.min()) >= 30
    returns = episodes.returns.view(50, 8).mean(-1)
    assert float(((returns > 0) & (returns < 1)).double().mean()) > 0.9


def test_a_seed_gives_one_batch_and_another_seed_another() -> None:
    first, again, other = (synthetic_batch(key_door(), groups=2, generator=seeded(s)) for s in (5, 5, 6))
    assert torch.equal(first.inputs.teacher_logprobs, again.inputs.teacher_logprobs)  # type: ignore[arg-type]
    cross = [batch.with_sources().correspondence.cross_logprobs for batch in (first, again)]  # type: ignore[union-attr]
    assert torch.equal(*cross)
    assert first.inputs.student_logprobs.shape != other.inputs.student_logprobs.shape or not torch.equal(
        first.inputs.student_logprobs, other.inputs.student_logprobs
    )


def test_calibrated_evidence_is_bayes_rule() -> None:
    teacher = Teacher(noise=0.0, floor=1e-12)
    batch = synthetic_batch(tiny_process(3), teacher, groups=20, generator=seeded())
    inputs = batch.inputs
    assert inputs.teacher_logprobs is not None
    evidence = (inputs.teacher_logprobs - inputs.student_logprobs).double().sum(-1)
    trajectory, turn = batch.episodes.turns
    state, action = batch.episodes.states[trajectory, turn], batch.episodes.actions[trajectory, turn]
    expected = (batch.values.action[turn, state, action] / batch.values.state[turn, state]).log()
    possible = expected.isfinite()
    torch.testing.assert_close(evidence[possible], expected[possible], rtol=0, atol=1e-5)
    # A winner passes one dice roll, of chance 0.8, at its last turn: evidence sums to log(0.8 / V_0).
    total = torch.zeros(160, dtype=torch.float64).index_add_(0, trajectory, evidence)
    won = batch.episodes.returns == 1
    torch.testing.assert_close(total[won], torch.full_like(total[won], math.log(0.8 / 0.36)), rtol=0, atol=1e-5)


def test_expected_evidence_is_minus_the_divergence() -> None:
    process, teacher = tiny_process(1), Teacher(noise=0.0, scale=3.0, floor=0.1)
    process = replace(process, entry_rewards=torch.tensor([0, 0.5, 1, 0], dtype=torch.float64))
    batch = synthetic_batch(process, teacher, groups=4000, group_size=4, generator=seeded())
    assert batch.inputs.teacher_logprobs is not None
    evidence = (batch.inputs.teacher_logprobs - batch.inputs.student_logprobs).double().sum(-1)
    # Q = (0.5, 0), floored: 0.55 and 0.1. Weights 0.6 * 0.55^3 and 0.4 * 0.1^3.
    good, bad = 0.6 * 0.55**3, 0.4 * 0.1**3
    divergence = -0.6 * math.log(good / (good + bad) / 0.6) - 0.4 * math.log(bad / (good + bad) / 0.4)
    assert float(evidence.mean()) == pytest.approx(-divergence, abs=0.06)


def beliefs(batch: object) -> torch.Tensor:
    """Undecayed beliefs, trajectory by turn, straight from the definition; NaN after the end."""
    inputs = batch.inputs  # type: ignore[attr-defined]
    evidence = (inputs.teacher_logprobs - inputs.student_logprobs).double().sum(-1)
    table = torch.full((inputs.num_trajectories, int(inputs.turn_ids.max()) + 1), torch.nan, dtype=torch.float64)
    table[inputs.trajectory_ids, inputs.turn_ids] = evidence
    prior = inputs.successes.double().view(-1, 8).mean(-1).clamp(1e-4, 1 - 1e-4).repeat_interleave(8)
    return (prior.logit()[:, None] + table.cumsum(-1)).sigmoid()


@pytest.mark.parametrize("name", PROCESSES)
def test_a_strong_teacher_saturates_the_uncalibrated_belief_from_the_second_turn_on(name: str) -> None:
    for quality, low, high in (("strong", 0.95, 1.0), ("calibrated", 0.0, 0.9)):
        batch = synthetic_batch(PROCESSES[name](), TEACHERS[quality], groups=16, generator=seeded())
        belief = beliefs(batch)[:, 1:]
        belief = belief[~belief.isnan()]
        saturated = float(((belief < 0.01) | (belief > 0.99)).double().mean())
        assert low <= saturated <= high, quality


def test_each_quality_moves_only_what_it_names() -> None:
    def gap(**options: float) -> torch.Tensor:
        batch = synthetic_batch(key_door(), Teacher(**options), groups=8, generator=seeded())  # type: ignore[arg-type]
        assert batch.inputs.teacher_logprobs is not None
        return (batch.inputs.teacher_logprobs - batch.inputs.student_logprobs).double(), batch.inputs.response_mask

    plain, mask = gap(noise=0.0)
    torch.testing.assert_close(gap(noise=0.0, bias=-0.3)[0], plain - 0.3 * mask, rtol=0, atol=1e-5)
    assert float(gap(noise=0.0, scale=0.0)[0].abs().max()) < 1e-6
    noise = (gap(noise=0.5)[0] - plain)[mask]
    assert float(noise.std()) == pytest.approx(0.5, rel=0.05)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.03)
    assert torch.equal(gap(noise=0.0, shift=2, mix=0.0)[0], gap(noise=0.0, shift=2, mix=0.0)[0])


def test_a_shifted_teacher_speaks_about_the_decision_of_another_turn() -> None:
    batch = synthetic_batch(lock_chain(), Teacher(noise=0.0, shift=2), groups=8, generator=seeded(4))
    own = synthetic_batch(lock_chain(), Teacher(noise=0.0, shift=2, mix=0.0), groups=8, generator=seeded(4))
    trajectory, turn = batch.episodes.turns
    last = batch.episodes.alive.sum(-1) - 1
    table = torch.zeros(64, int(turn.max()) + 1, 3, dtype=torch.float64)
    table[trajectory, turn] = own.hints
    fits = torch.zeros(64, 5, dtype=torch.bool)
    for index, offset in enumerate(range(-2, 3)):
        told = torch.minimum((turn + offset).clamp(min=0), last[trajectory])
        same = (table[trajectory, told] - batch.hints).abs().amax(-1) < 1e-12
        wrong = torch.zeros(64).index_add_(0, trajectory, (~same).float())
        fits[:, index] = wrong == 0
    assert bool(fits.any(-1).all()), "one offset must explain each trajectory"
    assert bool((fits.sum(0) > 4).all()), "every offset must occur"


def test_siblings_hold_the_evidence_that_a_shift_took_away() -> None:
    batch = synthetic_batch(lock_chain(), Teacher(noise=0.0, shift=2), groups=8, generator=seeded(4))
    straight = synthetic_batch(lock_chain(), Teacher(noise=0.0, shift=2, mix=0.0), groups=8, generator=seeded(4))
    inputs = batch.with_sources(top_k=1)
    assert inputs.correspondence is not None
    assert inputs.correspondence.sources is not None
    assert inputs.correspondence.cross_logprobs is not None
    assert inputs.teacher_logprobs is not None
    assert straight.inputs.teacher_logprobs is not None
    target = inputs.correspondence.sources.target
    truth = straight.inputs.teacher_logprobs[target].sum(-1)
    own = (inputs.teacher_logprobs[target].sum(-1) - truth).abs()
    cross = (inputs.correspondence.cross_logprobs.sum(-1) - truth).abs()
    assert float(cross.mean()) < 0.35 * float(own.mean())


def test_cross_scores_of_a_plain_teacher_are_nearly_its_own() -> None:
    batch = synthetic_batch(key_door(), Teacher(noise=0.0), groups=4, generator=seeded())
    inputs = batch.with_sources(top_k=2)
    assert inputs.correspondence is not None
    assert inputs.teacher_logprobs is not None
    sources, scores = inputs.correspondence.sources, inputs.correspondence.cross_logprobs
    assert sources is not None
    assert scores is not None
    assert int(torch.bincount(sources.target).max()) == 2
    gap = (scores - inputs.teacher_logprobs[sources.target]).sum(-1).abs()
    assert float(gap.median()) < 1e-3


def test_batches_carry_what_a_method_requires() -> None:
    batch = synthetic_batch(key_door(), groups=2, generator=seeded())
    assert "grpo" in list_credits()
    for name in list_credits():
        method = get_credit(name)
        if method.extras:  # only a model says them
            continue
        inputs = batch.inputs_for(method)
        if any(inputs.signal(needed) is None for needed in method.requires):  # heads', continuations', ..
            continue
        assert method(inputs).advantages.shape == inputs.response_mask.shape
    assert batch.inputs.span_mask is not None
    assert bool((batch.inputs.span_mask.sum(-1) == 2).all())
    chosen = torch.where(batch.inputs.span_mask, batch.inputs.student_logprobs, 0.0).sum(-1).exp()
    trajectory, turn = batch.episodes.turns
    policy = key_door().policy[batch.episodes.states[trajectory, turn], batch.episodes.actions[trajectory, turn]]
    torch.testing.assert_close(chosen.double(), policy, rtol=0, atol=1e-5)


# Recorded before observations and graded teachers existed, the generator seeded with the place of the process: sha256
# of what is whole, and for each published teacher a weighted sum of the rest.
BATCHES = {
    "key_door": ("03f5e842", [10.40100, 7.22549, 24.60140, 18.40400, 8.86908]),
    "lock_chain": ("44270dc9", [7.98629, -11.26900, 10.14019, 11.80414, 3.92044]),
    "detour": ("e7c4bfeb", [14.54606, 2.17987, -5.02472, -10.16219, -23.05546]),
    "redundant_evidence": ("57ebbcb8", [26.38758, 33.17522, 25.47789, 18.37669, 23.35240]),
    "misleading_evidence": ("25933f1b", [-17.96777, -14.86668, -49.55979, -48.03506, -11.58956]),
    "late_choice": ("67a85d00", [10.44015, 22.47172, -8.54155, 1.11485, 14.21889]),
    "long_horizon": ("d1587b6c", [1.63919, 50.63565, 5.30449, 22.14362, -36.98792]),
}


@pytest.mark.parametrize("name", EXACT_PROCESSES)
def test_batches_of_exact_observations_and_published_teachers_are_what_they_were(name: str) -> None:
    assert list(BATCHES) == list(EXACT_PROCESSES) == list(PROCESSES)[:7]
    assert list(PUBLISHED_TEACHERS) == ["calibrated", "noisy", "overconfident", "strong", "shifted"]
    for teacher, expected in zip(PUBLISHED_TEACHERS, BATCHES[name][1], strict=True):
        generator = seeded(EXACT_PROCESSES.index(name))
        batch = synthetic_batch(PROCESSES[name](), TEACHERS[teacher], groups=2, group_size=4, generator=generator)
        inputs, scored = batch.inputs, batch.with_sources().correspondence
        fields = ("response_mask", "trajectory_ids", "turn_ids", "group_ids", "anchor_ids", "successes", "turn_rewards")
        whole = b"".join(getattr(inputs, field).long().numpy().tobytes() for field in fields)
        assert hashlib.sha256(whole).hexdigest()[:8] == BATCHES[name][0]
        rest = (inputs.student_logprobs, inputs.teacher_logprobs, scored.cross_logprobs, batch.hints, batch.advantages)  # type: ignore[union-attr]
        found = sum(float((x.double().flatten() * torch.arange(x.numel()).sin()).sum()) for x in rest)  # type: ignore[union-attr]
        assert found == pytest.approx(expected, abs=1e-3), teacher


def test_an_adversarial_teacher_prefers_what_fails_and_an_uninformative_one_knows_nothing() -> None:
    batch = synthetic_batch(key_door(), replace(TEACHERS["adversarial"], noise=0.0), groups=8, generator=seeded())
    friend = synthetic_batch(key_door(), Teacher(noise=0.0), groups=8, generator=seeded())
    torch.testing.assert_close(batch.hints, -friend.hints)
    gap = (batch.inputs.teacher_logprobs - batch.inputs.student_logprobs).double().sum(-1)  # type: ignore[operator]
    decisive = batch.advantages.abs() > 0.1
    assert bool((gap.sign() == -batch.advantages.sign())[decisive].all())
    empty = TEACHERS["uninformative"]
    assert (empty.scale, empty.noise, empty.bias) == (0, 0.4, -0.2)
    assert float(synthetic_batch(key_door(), empty, groups=2, generator=seeded()).hints.abs().max()) == 0


def test_grades_are_bounded_and_a_monotone_function_of_the_steps_value_by_hand() -> None:
    teacher = Teacher(noise=0.0, grades=5, score_noise=0.0, scale=2.0, floor=1e-9)
    batch = synthetic_batch(tiny_process(3), teacher, groups=20, generator=seeded())
    inputs, (trajectory, turn) = batch.inputs, batch.episodes.turns
    gap = (inputs.teacher_logprobs - inputs.student_logprobs).sum(-1)  # type: ignore[operator]
    state, action = batch.episodes.states[trajectory, turn], batch.episodes.actions[trajectory, turn]
    # Room 0 at t = 0: V 0.36, Q 0.6: odds ratio 1.5 / 0.5625 = 2.667, sigmoid 0.727 -> 0.75 -> 2 (2 x 0.75 - 1) = 1.
    # The other action loses for sure: grade 0 -> -2. Room 1 at t = 1: V 0.6, Q 0.8: ratio 4 / 1.5, the same grade;
    # to stay, Q 0.4: ratio (2 / 3) / 1.5 = 0.444, sigmoid 0.308 -> 0.25 -> -1.
    for where, score in {(0, 0, 0): 1.0, (0, 0, 1): -2.0, (1, 1, 0): 1.0, (1, 1, 1): -1.0}.items():
        rows = (turn == where[0]) & (state == where[1]) & (action == where[2])
        assert bool(rows.any())
        torch.testing.assert_close(gap[rows], torch.full_like(gap[rows], score), rtol=0, atol=1e-5)
    noisy = synthetic_batch(lock_chain(), TEACHERS["self_scores"], groups=16, generator=seeded())
    assert set(noisy.hints.flatten().tolist()) == {-1.0, -0.5, 0.0, 0.5, 1.0}
    chosen = noisy.hints.gather(1, noisy.episodes.actions[noisy.episodes.turns][:, None])[:, 0]
    good, bad, none = noisy.advantages > 0.1, noisy.advantages < -0.1, noisy.advantages.abs() < 0.01
    assert float(chosen[good].mean()) > 0.2 > float(chosen[none].mean()) > -0.2 > float(chosen[bad].mean())
    told = synthetic_batch(lock_chain(), Teacher(grades=5, shift=2, score_noise=0.0), groups=8, generator=seeded())
    assert not torch.equal(told.hints, synthetic_batch(
        lock_chain(), Teacher(grades=5, shift=2, mix=0.0, score_noise=0.0), groups=8, generator=seeded()
    ).hints)  # fmt: skip


def test_look_alikes_share_an_anchor_hide_the_key_and_reverse_what_is_right() -> None:
    process = look_alike()
    place = {name: index for index, name in enumerate(process.names)}
    assert process.observations is not None
    alike = {name for name, row in place.items() if int(process.observations[row]) != row}
    assert alike == {"empty_0", "empty_1", "empty_2", "shut"}
    for twin, name in (("empty_1", "held_1"), ("shut", "door")):
        assert int(process.observations[place[twin]]) == place[name]
        assert torch.equal(process.policy[place[twin]], process.policy[place[name]])
        assert int(process.decisions[place[twin]]) == int(process.decisions[place[name]])
    gain = exact_values(process).action[0] - exact_values(process).state[0, :, None]
    assert float((gain[place["door"]] * gain[place["shut"]]).amin()) < -0.04
    batch = synthetic_batch(process, groups=8, generator=seeded())
    state = batch.episodes.states[batch.episodes.turns]
    group = batch.inputs.group_ids[batch.inputs.trajectory_ids]
    expected = group * len(place) + process.observations[state]
    assert torch.equal(batch.inputs.anchor_ids, expected)  # type: ignore[arg-type]
    assert bool((expected != group * len(place) + state).any())


def test_what_rarely_repeats_has_anchors_of_its_own() -> None:
    batch = synthetic_batch(rarely_repeated(), groups=32, generator=seeded())
    same = synthetic_batch(lock_chain(), groups=32, generator=seeded())
    anchors, exact = batch.inputs.anchor_ids, same.inputs.anchor_ids
    assert anchors is not None
    assert exact is not None
    unique = anchors != exact
    assert float(unique.double().mean()) == pytest.approx(0.75, abs=0.02)
    assert torch.equal(batch.inputs.teacher_logprobs, same.inputs.teacher_logprobs)  # type: ignore[arg-type]
    graded = synthetic_batch(rarely_repeated(), TEACHERS["self_scores"], groups=32, generator=seeded()).inputs
    assert torch.equal(anchors, graded.anchor_ids)  # type: ignore[arg-type]
    assert int(torch.bincount(anchors)[anchors[unique]].max()) == 1
    assert not set(anchors[unique].tolist()) & set(exact.tolist())


@pytest.mark.parametrize("name", ["key_door", "look_alike", "random"])
def test_the_exact_gradient_is_that_of_the_value_by_autograd(name: str) -> None:
    process = tiny_process(3) if name == "random" else PROCESSES[name]()
    logits = process.policy.log().requires_grad_()
    policy, state = logits.softmax(-1), torch.zeros(len(process.terminal), dtype=torch.float64)
    for _ in range(process.horizon):
        worth = (process.transitions @ (process.entry_rewards + state)) * (~process.terminal).double()[:, None]
        state = (policy * worth).sum(-1)
    (expected,) = torch.autograd.grad(state[process.start], logits)
    torch.testing.assert_close(exact_gradient(process), expected, rtol=0, atol=1e-12)
    assert float(expected.abs().max()) > 0.01
    episodes = sample_episodes(process, groups=500, group_size=8, generator=seeded())
    one = torch.ones((), dtype=torch.float64)
    place = episodes.turns[1], episodes.states[episodes.turns]
    counts = torch.zeros_like(state_visits(process)).index_put_(place, one, accumulate=True)
    assert float((counts / 4000 - state_visits(process)).abs().max()) < 0.03


def test_thousands_of_trajectories_take_seconds() -> None:
    episodes = sample_episodes(long_horizon(), groups=500, group_size=8, generator=seeded())
    credit = exact_credit(episodes)
    assert credit.advantages.numel() == int(episodes.alive.sum()) > 100_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"horizon": 0}, "horizon must be at least 1, got 0"),
        ({"start": 2}, "start must be a state in .* that is not terminal, got 2"),
        ({"policy": torch.full((4, 2), 0.6, dtype=torch.float64)}, "policy must hold probabilities .* sum 1.2"),
        ({"echo": torch.zeros(3)}, r"echo must have shape \[4\], got \[3\]"),
        ({"observations": torch.arange(3)}, r"observations must have shape \[4\], got \[3\]"),
        ({"observations": torch.tensor([0, 1, 2, 4])}, r"observations must be whole numbers in \[0, 4\), got .*4"),
        ({"unique_share": 1.5}, r"unique_share must be a number in \[0, 1\], got 1.5"),
    ],
)
def test_bad_processes_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(tiny_process(), **change)  # type: ignore[arg-type]


def test_bad_options_are_named() -> None:
    with pytest.raises(ValueError, match=r"Teacher: mix must lie in .* got 2"):
        Teacher(mix=2)
    with pytest.raises(ValueError, match="Teacher: grades must be 0 or a whole number from 2 on, got 1; 5 is"):
        Teacher(grades=1)
    with pytest.raises(ValueError, match=r"Teacher: score_noise must lie in .* got -1"):
        Teacher(score_noise=-1)
    with pytest.raises(ValueError, match="sample_episodes: groups must be at least 1, got 0"):
        sample_episodes(key_door(), groups=0, group_size=2, generator=seeded())
    paid = replace(tiny_process(), entry_rewards=torch.tensor([0, 0, 10.0, 0], dtype=torch.float64))
    with pytest.raises(ValueError, match=r"synthetic_batch: process must have values in \[0, 1\]"):
        synthetic_batch(paid, generator=seeded())
