"""examples/monte_carlo.py: advantages of turns by playing on, exact where the environment and the policy are."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from unittest import mock

import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.credit import CreditInputs, grpo, registry, signals
from turncredit.rollout import RolloutCollector, SamplingConfig, StopReason, Trajectory, Turn
from turncredit.rollout.generator import FunctionGenerator
from turncredit.rollout.sampling import Sample
from turncredit.trainers import GRPOConfig, GRPOTrainer, get_method
from turncredit.trainers.methods import registry as methods

TOKENIZER = tiny_tokenizer()
SUITE = ToySuite(lenient=True, num_tasks=2)


@pytest.fixture(scope="module")
def example():
    """What the example registers is not there for other tests."""
    with contextlib.ExitStack() as stack:
        for known in (registry._REGISTRY, methods._METHODS, signals._SIGNALS):
            stack.enter_context(mock.patch.dict(known))
        import monte_carlo

        yield monte_carlo


def first_word_then_the_same(requests, sampling):
    """Red or green by the seed in the first turn of a task called red; the same again in all later turns."""
    answers = []
    for request in requests:
        words = TOKENIZER.decode(request.prompt).split()
        said = [word for word in words[:-1] if word in ("red", "green")][1:]  # the first is the room's
        word = said[0] if said else ("red", "green")[request.seed[3] % 3 == 0]
        ids = (*TOKENIZER.encode(word), TOKENIZER.eos_token_id)
        answers.append(Sample(ids, (-0.5,) * len(ids), StopReason.EOS))
    return answers


def test_a_policy_that_decides_once_gets_its_exact_advantages(example):
    tasks = SUITE.tasks("train")[:1]
    settings = {"num_envs": 8, "num_workers": 0, "generator": FunctionGenerator(first_word_then_the_same)}
    with RolloutCollector(tiny_model(), TOKENIZER, SUITE, SamplingConfig(max_completion_length=4), **settings) as play:
        played = play.collect(tasks, 6)
        wanted = example.starts(played, {task.id: task for task in tasks}, 7, lambda task: None)
        again = play.collect_starts(wanted)
    assert [t.reward for t in played] == [0, 1, 1, 0, 1, 1]
    assert not any(t.failure for t in again)
    # 5 others at the start, 3 and 1 behind it; won after two turns, lost after four
    assert len(wanted) == 2 + 4 + 3 * 6
    assert {(len(t.turns), t.reward) for t in again} == {(2, 1.0), (4, 0.0)}
    alone = example.turn_advantages(played, [t for t in again if t.replayed])
    value = 4 / 6
    right, wrong = (1 - value) * 6 / 5, (0 - value) * 6 / 5  # less the mean of the other five
    expected = [[wrong, 0, 0, 0], [right, 0], [right, 0], [wrong, 0, 0, 0], [right, 0], [right, 0]]
    assert [pytest.approx(row) for row in expected] == alone


def trajectory(actions: str, reward: float, replayed: int = 0, group: int = 0) -> Trajectory:
    turns = tuple(Turn((1, k), (5,), (0.0,), (), "r", action=action) for k, action in enumerate(actions))
    return Trajectory("t", "t", group, 0, turns, reward, reward, StopReason.DONE, replayed=replayed)


def test_values_of_a_tree_by_hand(example):
    """Behind `a` three were sampled: two go to `ab`, where three were sampled and two won, one loses by `ac`."""
    group = [trajectory("abd", 1.0), trajectory("acd", 0.0), trajectory("xyz", 0.0)]
    behind = [trajectory("abe", 0.0, 1), trajectory("abf", 1.0, 2)]
    won, lost, other = example.turn_advantages(group, behind)
    ab, a = 2 / 3, (2 / 3 + 2 / 3 + 0) / 3
    start = (a + a + 0) / 3
    assert won == pytest.approx([(a - start) * 3 / 2, (ab - a) * 3 / 2, (1 - ab) * 3 / 2])
    assert lost == pytest.approx([(a - start) * 3 / 2, (0 - a) * 3 / 2, 0])
    assert other == pytest.approx([(0 - start) * 3 / 2, 0, 0])


def test_nothing_is_played_where_it_is_not_needed(example):
    equal = [trajectory("ab", 1.0), trajectory("ac", 1.0)]
    unequal = [trajectory("ab", 1.0, group=1), trajectory("ac", 0.0, group=1), trajectory("xy", 0.0, group=1)]
    tasks = {"t": SUITE.tasks("train")[0]}
    found = example.starts([*equal, *unequal], tasks, 2, lambda task: None)
    assert [(start.group_id, len(start.prefix)) for start in found] == [(1, 1), (1, 1), (1, 1)]  # one behind a, two x
    assert len({(tuple(t.action for t in start.prefix), start.seed) for start in found}) == 3


def test_credit_has_the_size_of_grpo_and_the_proportions_of_the_advantages(example):
    values = torch.tensor([0.5, -0.25, 0.0, 1.0])
    inputs = CreditInputs(
        response_mask=torch.tensor([[1, 1], [1, 0], [1, 1], [1, 0]]).bool(),
        trajectory_ids=torch.tensor([0, 0, 1, 2]),
        turn_ids=torch.tensor([0, 1, 0, 0]),
        group_ids=torch.tensor([3, 3, 3]),
        rewards=torch.tensor([1.0, 0.5, 0.0]),
        successes=torch.tensor([1.0, 0.5, 0.0]),
        student_logprobs=torch.zeros(4, 2),
        extras={"turn_advantages": values},
    )
    credit = registry.get_credit("monte_carlo_credit")(inputs).advantages
    assert torch.equal(credit != 0, inputs.response_mask & (values != 0)[:, None])
    assert credit[:, 0].norm().item() == pytest.approx(grpo(inputs).advantages[:, 0].norm().item())
    assert torch.allclose(credit[:, 0] / credit[3, 0], values)
    nothing = replace(inputs, extras={"turn_advantages": torch.zeros(4)})
    assert not registry.get_credit("monte_carlo_credit")(nothing).advantages.any()


def test_it_trains(example, tmp_path):
    config = GRPOConfig(
        output_dir=str(tmp_path),
        credit="monte_carlo",
        credit_options={"continuations": 1},
        num_tasks=4,
        num_generations=4,
        num_workers=0,
        learning_rate=1e-2,
        sampling=SamplingConfig(max_completion_length=6),
        num_eval_tasks=1,
        preflight=False,
    )
    with GRPOTrainer(tiny_model(), TOKENIZER, ToySuite(num_tasks=8, lenient=True), config) as run:
        before = [p.clone() for p in run.model.parameters()]
        metrics = run.train_step()
        assert any(not torch.equal(old, new) for old, new in zip(before, run.model.parameters(), strict=True))
    assert metrics["method/continuations"] > 0
    assert metrics["method/failed_continuations"] == 0
    assert metrics["credit/turns_without_advantage"] < 1


def test_options_are_checked(example):
    assert get_method("monte_carlo", continuations=3).options["continuations"] == 3
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match="monte_carlo: continuations must be a whole number of at least 1"):
            get_method("monte_carlo", continuations=wrong)
