"""Posterior credit without anchors: what the outcomes do not bear out moves no credit."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from helpers.credit_cases import hand_batch, random_batch, reorder_rows, reorder_trajectories
from helpers.reference import Batch
from helpers.reference_trust import scores as loop_scores
from helpers.reference_trust import share as loop_share

from turncredit.credit import CreditInputs, get_credit
from turncredit.credit.lab.fidelity import credit_fidelity
from turncredit.credit.lab.synthetic import PROCESSES, TEACHERS, SyntheticBatch, synthetic_batch
from turncredit.credit.posterior.evidence import turn_evidence
from turncredit.credit.posterior.facts import facts_of
from turncredit.credit.posterior.trust import scores, trust
from turncredit.credit.posterior.turns import Turns, turns_of

OUTCOMES = [1.0, 1, 1, 1, 0, 0, 0, 0] * 2


def parts(inputs: CreditInputs) -> tuple[Turns, torch.Tensor]:
    facts = facts_of(inputs, use="teacher", outcome_discount=1.0)
    return turns_of(facts, scope="trajectory", eps=1e-4), turn_evidence(facts)


def slope(inputs: CreditInputs, **options: float) -> float:
    return get_credit("posterior_teacher", **options)(inputs).metrics["teacher_slope"]


def speaks(*of_successes: float) -> CreditInputs:
    """A group of sixteen whose teacher says the opposite of failures, a little differently of each."""
    gaps = [[x * (1 if r else -1) + 0.01 * i for x in of_successes] for i, r in enumerate(OUTCOMES)]
    return hand_batch(gaps, OUTCOMES)


def echo() -> CreditInputs:
    """Against the outcome at the first turn, for it at the five that follow."""
    return speaks(-1.0, 0.6, 0.6, 0.6, 0.6, 0.6)


def test_scores_by_hand():
    turns, _ = parts(hand_batch([[1.0, 3.0], [0.0], [0.0, -2.0]], [1.0, 1.0, 0.0]))
    evidence = torch.tensor([1.0, 3.0, 0.0, 0.0, -2.0], dtype=torch.float64)
    # X: (1, 0, 0), then (4, 0, -2); R less its mean: (1, 1, -2) / 3, squares 2/3; X's squares 2/3 and 56/3, G - 1 = 2
    expected = [(1 / 3) / math.sqrt(2 / 3 * 2 / 3 / 2), (8 / 3) / math.sqrt(2 / 3 * 56 / 3 / 2)]
    assert scores(turns, evidence).tolist() == pytest.approx(expected)
    expected_share = 1 / (1 + 3 * math.exp(-(expected[1] ** 2) / 2))
    assert float(trust(turns, evidence, spike=3.0)) == pytest.approx(expected_share)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("spike", [0.0, 3.0])
def test_against_plain_loops(seed, spike):
    inputs = random_batch(seed, groups=4, rollouts=8, turns=6)
    turns, evidence = parts(inputs)
    batch, rewards = Batch(inputs), [r / 10 for r in inputs.rewards.tolist()]
    expected = loop_scores([[float(evidence[m]) for m in rows] for rows in batch.turns], rewards, batch.group)
    assert scores(turns, evidence).tolist() == pytest.approx(expected)
    assert float(trust(turns, evidence, spike=spike)) == pytest.approx(loop_share(expected, spike))


def test_the_variance_is_that_of_outcomes_dealt_out_at_random():
    gaps, rewards = [[2.0], [-1.0, 0.5], [0.3], [0.0, 4.0, -1.0]], [0.0, 1.0, 0.3, 1.0]
    found = []
    for dealt in permutations(rewards):
        inputs = replace(hand_batch(gaps, rewards), rewards=torch.tensor(dealt, dtype=torch.float64))
        found.append(scores(*parts(inputs)))
    table = torch.stack(found)
    torch.testing.assert_close(table.mean(0), torch.zeros_like(table[0]), atol=1e-12, rtol=0)
    torch.testing.assert_close(table.square().mean(0), torch.ones_like(table[0]))


def test_an_echo_is_grpo_bit_for_bit():
    inputs = echo()
    found = scores(*parts(inputs))
    assert found[0] < -2.5
    assert found[-1] > 2.5
    assert torch.equal(get_credit("posterior_teacher")(inputs).advantages, get_credit("grpo")(inputs).advantages)
    assert slope(inputs, spike=0.0) > 0.1


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_evidence_that_always_agreed_is_believed(sign):
    assert sign * slope(speaks(sign, 0.6 * sign, 0.6 * sign)) > 0.1


def test_evidence_without_relation_to_outcomes_is_shrunk_and_not_thrown_away():
    inputs = hand_batch([[1.0, -1], [-1, 1], [1, 1], [-1, -1]] * 4, OUTCOMES)
    assert scores(*parts(inputs)).abs().max() < 1e-9
    assert slope(inputs) == pytest.approx(slope(inputs, spike=0.0) / 4)
    assert slope(inputs) > 0


def test_a_long_way_against_the_outcomes_does_not_count_while_it_is_noise():
    inputs = hand_batch([[-1.0, 9.0], [0.0, 9.0], [1, 9], [-1, 9], [0, -9], [1, -9], [-1, -9], [1, -9]] * 2, OUTCOMES)
    found = scores(*parts(inputs))
    assert -2.5 < found[0] < 0 < found[-1]
    assert slope(inputs) > 0.1


def test_order_does_not_matter():
    inputs = random_batch(3, groups=3, rollouts=6)
    draw = torch.Generator().manual_seed(0)
    rows = reorder_rows(inputs, torch.randperm(inputs.num_rows, generator=draw))
    trajectories = reorder_trajectories(inputs, torch.randperm(inputs.num_trajectories, generator=draw))
    expected = trust(*parts(inputs), spike=3.0)
    for other in (rows, trajectories):
        torch.testing.assert_close(trust(*parts(other), spike=3.0), expected)


def test_spike_is_checked():
    with pytest.raises(ValueError, match=r"posterior: spike must be a number in \[0, inf\), got -1"):
        get_credit("posterior_teacher", spike=-1.0)(speaks(1.0))


@pytest.mark.parametrize(("process", "groups"), [("detour", 2), ("late_choice", 2), ("redundant_evidence", 8)])
def test_a_liar_is_not_worse_than_nobody(process, groups):
    """In the order that its evidence has at the prior slope, 15, 0 and 0 pairs of a hundred are right."""
    found = []
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        batch = synthetic_batch(PROCESSES[process](), TEACHERS["calibrated"], groups=groups, generator=draw)
        lying = lied(batch)
        credit = get_credit("posterior_teacher")(lying)
        found.append(credit_fidelity(credit, lying, batch.advantages).pair_accuracy)
    assert sum(found) / len(found) >= 0.49


def lied(batch: SyntheticBatch) -> CreditInputs:
    """The batch under a teacher that says the opposite of every decision and echoes the same."""
    inputs, episodes = batch.inputs, batch.episodes
    echoes = episodes.process.echo[episodes.states[episodes.turns]].float() / inputs.token_counts
    said = inputs.teacher_logprobs - inputs.student_logprobs
    lie = inputs.student_logprobs + 2 * echoes[:, None] - said
    return replace(inputs, teacher_logprobs=torch.where(inputs.response_mask, lie, 0.0))
