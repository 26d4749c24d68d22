"""A rollout goes on whatever an environment answers and whatever the user's suite does: one episode fails, no other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from helpers import result_fakes as known
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.envs import ParsedResponse, Task
from turncredit.rollout import RolloutCollector, SamplingConfig, StopReason
from turncredit.rollout.sampling import Sample
from turncredit.rollout.suite_calls import parsed_or_empty

TOKENIZER = tiny_tokenizer()


@dataclass
class PlayingSuite(ToySuite):
    """A suite whose parts go wrong for one task, at the second turn."""

    at_fault: str = ""
    fault: Any = None

    def make_env(self):
        return known.Playing

    def _go_wrong(self, name: str) -> Any:
        if isinstance(self.fault, Exception):
            raise self.fault
        return self.fault

    def messages(self, task, history, observation):
        if self.at_fault == "messages" and task.id == "bad" and len(history) == 1:
            return self._go_wrong("messages")
        return super().messages(task, history, observation)

    def parse(self, response):
        if self.at_fault == "parse" and "green" in response:
            return self._go_wrong("parse")
        return super().parse(response)

    def privileged_context(self, task):
        if self.at_fault == "privileged_context" and task.id == "bad":
            return self._go_wrong("privileged_context")
        return super().privileged_context(task)


class Scripted:
    """A sampler that says "red", and at the second turn of the task "bad" says "green"."""

    equal_lengths = False

    def decode(self, ids):
        return TOKENIZER.decode(list(ids), skip_special_tokens=False)

    def sample(self, prompts, config, seeds, **rest):
        return [self._say(*seed[2:]) for seed in seeds]

    def _say(self, task_id, rollout, turn):
        word = "green" if task_id == "bad" and turn == 1 else "red"
        ids = tuple(TOKENIZER(f"<think> {word} </think> <action> {word} </action>")["input_ids"])
        return Sample(ids, (-0.5,) * len(ids), StopReason.STOP_STRING)


def play(ids, suite=None, num_workers=0, **options):
    with RolloutCollector(
        tiny_model(), TOKENIZER, suite or PlayingSuite(), SamplingConfig(), num_envs=3, num_workers=num_workers
    ) as rollouts:
        rollouts.sampler = Scripted()
        return rollouts.collect([Task(name, "red") for name in ids], 1, **options)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_bad_answer_fails_its_episode_and_all_others_are_finished(num_workers):
    bad = [*known.BAD_STEPS, *known.BAD_RESETS]
    ids = [name for pair in zip(bad, [f"good {number}" for number in range(len(bad))], strict=True) for name in pair]
    trajectories = play(ids, num_workers=num_workers)
    for trajectory in trajectories:
        if trajectory.task_id in bad:
            assert trajectory.failure.startswith("bad_result: "), trajectory.task_id
            assert trajectory.stop_reason is StopReason.ENV_FAILURE
            assert len(trajectory.turns) == (1 if trajectory.task_id in known.BAD_STEPS else 0)
        else:
            assert (trajectory.failure, trajectory.stop_reason) == (None, StopReason.SUCCESS)
            assert [turn.reward for turn in trajectory.turns] == [0.25, 0.5, 0.75]
            assert (trajectory.reward, trajectory.success) == (1.5, 1.0)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_numbers_of_every_type_reach_the_trajectory(num_workers):
    names = ["numpy", "tensors", "decimal", "numbers"]
    numpy, tensors, decimal, numbers = play(names, PlayingSuite(max_turns=2), num_workers)
    assert (numpy.reward, numpy.success, numpy.stop_reason) == (0.75, 1.0, StopReason.SUCCESS)
    assert (tensors.reward, decimal.reward) == (0.75, 0.75)
    assert len(numbers.info) == 12
    assert (numbers.info["tensor"], numbers.info["decimal"], numbers.info["numpy int"]) == (8.0, 0.125, 4.0)
    assert all(type(value) is float for value in numbers.info.values())


def test_the_turn_limit_is_no_success_and_a_fraction_is_no_whole_one():
    [over] = play(["good"], PlayingSuite(max_turns=2))
    assert (over.stop_reason, over.success, over.reward) == (StopReason.MAX_TURNS, 0.0, 0.75)
    [part] = play(["fraction"], PlayingSuite(max_turns=2))
    assert (part.stop_reason, part.success) == (StopReason.MAX_TURNS, 0.25)


def test_an_episode_that_is_done_with_part_of_its_success_is_not_called_solved(monkeypatch):
    monkeypatch.setitem(known.GOOD_STEPS, "part", lambda: known.step(done=True, success=0.5))
    [part] = play(["part"])
    assert (part.stop_reason, part.success, part.failure) == (StopReason.DONE, 0.5, None)


FAULTS = {
    "messages": [
        (KeyError("no such wish"), "messages raised KeyError at test_failures.py"),
        (None, "messages: the result must be a non-empty list of messages, got None"),
        ("a prompt", "messages: the result must be a non-empty list of messages, got 'a prompt'"),
        ([], "messages: the result must be a non-empty list"),
        (["a prompt"], "messages: a message must be a mapping with a role, got 'a prompt'"),
        ([{"content": "x"}], "messages: a message must be a mapping with a role"),
        ([{"role": "user", "content": None}], "messages: content must be text, got None"),
        ([{"role": "user", "content": 3}], "messages: content must be text, got 3"),
    ],
    "parse": [
        (ValueError("cannot read it"), "parse raised ValueError at test_failures.py"),
        (None, "parse: the result must be a ParsedResponse, got None"),
        ("green", "parse: the result must be a ParsedResponse, got 'green'"),
        (("x", "green"), "parse: the result must be a ParsedResponse"),
        (ParsedResponse("", None, False), "parse: action must be a str, empty where there is none, got None"),
        (ParsedResponse(None, "green", True), "parse: thinking must be a str"),
        (ParsedResponse("", "green", None), "parse: valid must be a bool, got None"),
        (ParsedResponse("", "green", True, action_span=(0, 999)), "parse: action_span must be a range inside"),
        (ParsedResponse("", "green", True, thinking_span=(5, 2)), "parse: thinking_span must be a range inside"),
        (ParsedResponse("", "green", True, thinking_span=4), "parse: thinking_span must be a range inside"),
    ],
    "privileged_context": [
        (RuntimeError("no hint"), "privileged_context raised RuntimeError at test_failures.py"),
        (["hint", "say"], "privileged_context: the result must be a str or None, got ['hint', 'say']"),
        (7, "privileged_context: the result must be a str or None, got 7"),
    ],
}


@pytest.mark.parametrize(("part", "fault", "told"), [(part, *case) for part, cases in FAULTS.items() for case in cases])
def test_a_fault_of_the_suite_fails_its_episode_and_no_other(part, fault, told):
    suite = PlayingSuite(at_fault=part, fault=fault)
    good, bad, late = play(["good", "bad", "late"], suite, privileged=part == "privileged_context")
    assert bad.failure.startswith(f"suite_error: {told}"), bad.failure
    assert bad.stop_reason is StopReason.ENV_FAILURE
    assert [turn.reward for turn in bad.turns] == ([] if part == "privileged_context" else [0.25])
    assert [good.reward, late.reward, good.failure, late.failure] == [1.5, 1.5, None, None]


def test_a_suite_may_answer_with_numpy_flags_and_tuples():
    parsed = ParsedResponse("", "green", np.bool_(True), action_span=(np.int64(0), np.int64(3)))
    [bad] = play(["bad"], PlayingSuite(at_fault="parse", fault=parsed))
    assert (bad.failure, bad.turns[1].valid, bad.turns[1].action) == (None, True, "green")
    messages = ({"role": "user", "content": "red"},)
    [bad] = play(["bad"], PlayingSuite(at_fault="messages", fault=messages))
    assert bad.turns[1].messages == messages


def test_a_response_outside_an_episode_is_empty_where_the_suite_is_at_fault():
    suite = PlayingSuite(at_fault="parse", fault=ValueError("cannot read it"))
    assert parsed_or_empty(suite, "<action> green </action>") == ParsedResponse("", "", False)
    assert parsed_or_empty(suite, "<action> red </action>").action == "red"


def test_episodes_that_end_at_the_turn_limit_do_not_hold_their_worker_for_ever():
    """With fewer tasks than slots the others are not reset, and a grown worker must be recycled all the same."""
    with RolloutCollector(
        tiny_model(), TOKENIZER, PlayingSuite(max_turns=2), num_envs=3, num_workers=1, max_worker_rss_mb=1
    ) as rollouts:
        rollouts.sampler = Scripted()
        rollouts.collect([Task(name, "red") for name in ("a", "b", "c")], 1)
        pids = rollouts.envs.worker_pids
        rollouts.collect([Task("d", "red")], 1)
        assert rollouts.envs.worker_pids != pids
        assert rollouts.envs.workers_recycled == 1


def test_an_observation_that_outgrows_the_prompt_ends_its_episode_and_no_other(monkeypatch):
    long = known.Observation("door " * 5000)
    monkeypatch.setitem(known.GOOD_STEPS, "long", lambda: known.step(observation=long, reward=0.5))
    good, long = play(["good", "long"])
    assert (long.stop_reason, long.failure, long.reward) == (StopReason.PROMPT_BUDGET, None, 0.75)
    assert (good.stop_reason, good.reward) == (StopReason.SUCCESS, 1.5)
