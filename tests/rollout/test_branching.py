"""Branches of recorded episodes: values and advantages by hand, against exact ones, failures, files."""

from __future__ import annotations

import functools
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.credit.lab.synthetic import PROCESSES
from turncredit.credit.lab.synthetic.process import exact_values
from turncredit.envs import Observation, StepResult, Task
from turncredit.rollout import RolloutCollector, SamplingConfig, StopReason, Trajectory, Turn
from turncredit.rollout.branching import BranchValues, states_of, turn_values
from turncredit.rollout.generator import FunctionGenerator
from turncredit.rollout.sampling import Sample

TOKENIZER = tiny_tokenizer()
MOVES = ("red", "green", "blue")
DIGITS = ("door", "room", "open", "say", "hint", "key", "step", "one", "two")
PROCESS = PROCESSES["detour"]()  # its moves have no chance in them


def name_of(state: int) -> str:
    return f"{DIGITS[state // 9]} {DIGITS[state % 9]}"


class ProcessEnv:
    """`PROCESS` as an environment: what is seen names the state."""

    def reset(self, task_id: str) -> Observation:
        self.state = PROCESS.start
        return Observation(name_of(self.state), MOVES)

    def step(self, action: str) -> StepResult:
        self.state = int(PROCESS.transitions[self.state, MOVES.index(action)].argmax())
        reward, done = float(PROCESS.entry_rewards[self.state]), bool(PROCESS.terminal[self.state])
        return StepResult(Observation(name_of(self.state), MOVES), reward, done, success=reward > 0)

    def close(self) -> None:
        pass


@dataclass
class ProcessSuite(ToySuite):
    max_turns: int = PROCESS.horizon
    lenient: bool = True

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(f"task-{number}", "process", split) for number in range(3)]

    def make_env(self):
        return functools.partial(ProcessEnv)

    def messages(self, task, history, observation):
        return [{"role": "user", "content": observation.text}]


def follow_the_process(requests, sampling):
    samples = []
    for request in requests:
        one, other = TOKENIZER.decode(request.prompt).split()[1:3]
        state = 9 * DIGITS.index(one) + DIGITS.index(other)
        (move,) = random.Random(repr(request.seed)).choices(MOVES, PROCESS.policy[state].tolist())
        ids = (*TOKENIZER.encode(move), TOKENIZER.eos_token_id)
        samples.append(Sample(ids, (-0.5,) * len(ids), StopReason.EOS))
    return samples


def playing(suite, function):
    settings = {"num_envs": 64, "num_workers": 0, "generator": FunctionGenerator(function)}
    return RolloutCollector(tiny_model(), TOKENIZER, suite, SamplingConfig(max_completion_length=4), **settings)


def root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(sum(value**2 for value in values) / len(values))


@pytest.mark.parametrize("common", [False, True])
def test_estimates_agree_with_exact_values_and_err_as_they_say(common: bool) -> None:
    """Misses in units of the exact errors of 40 independent continuations: V (1 - V) / 40 for a chance V of success."""
    exact, suite = exact_values(PROCESS), ProcessSuite()
    with playing(suite, follow_the_process) as play:
        records = play.collect(suite.tasks("train")[:1], 3)
        found = turn_values(records, 40, play.collect_starts, common=common)
    assert found.cost.failed == 0
    misses, gains, said = [], [], []
    for record, values in zip(records, found.trajectories, strict=True):
        states = [9 * DIGITS.index(a) + DIGITS.index(b) for a, b in (t.observation.split() for t in record.turns)]
        truth = [*(float(exact.state[k, state]) for k, state in enumerate(states)), 0.0]
        errors = [max(math.sqrt(max(value * (1 - value), 0.0) / 40), 1e-6) for value in truth]
        for k, state in enumerate(states):
            advantage = float(exact.action[k, state, MOVES.index(record.turns[k].action)]) - truth[k]
            both = math.hypot(errors[k], errors[k + 1])
            misses.append((values.values[k] - truth[k]) / errors[k])
            gains.append((values.advantages[k] - advantage) / both)
            said.append(values.advantage_errors[k] / both)
    assert len(misses) > 20
    assert max(map(abs, [*misses, *gains])) < 3
    # continuations with common random numbers err alike before and behind a turn, others do not
    expected = 0.55 if common else 1.0
    assert root_mean_square(said) == pytest.approx(expected, abs=0.15)
    assert root_mean_square(gains) == pytest.approx(expected, abs=0.3)


def record(actions: str, rewards: Sequence[float], **more) -> Trajectory:
    turns = [
        Turn((1, k), (5, 6), (0.0, 0.0), (), "r", action=action, observation=f"o{k}", reward=reward)
        for k, (action, reward) in enumerate(zip(actions, rewards, strict=True))
    ]
    return Trajectory("t", "t", 0, 0, tuple(turns), sum(rewards), 0.0, StopReason.DONE, **more)


TWICE = {0: (1.0, 0.0), 1: (1.0, 1.0)}


def hand_played(starts, outcomes=TWICE):
    """What a policy came to, by the number of replayed turns: 1 and 0 before the first, 1 and 1 before the second."""
    for start in starts:
        turns = len(start.prefix)
        value = outcomes[turns][start.seed[-1]]
        done = start.prefix + record("xy", [0.0, value]).turns
        yield Trajectory("t", "t", 0, 0, done, sum(t.reward for t in done), value, StopReason.DONE, replayed=turns)


def test_by_hand() -> None:
    # V(s_0) = 1/2 +- sqrt((1/4 + 1/4) / 1 / 2) = 1/2, V(s_1) = 1 +- 0; rewards 0.25, 0: A = .25 + 1 - .5, 0 + 0 - 1
    found = turn_values([record("ab", [0.25, 0.0])], 2, lambda starts: list(hand_played(starts)))
    (values,) = found.trajectories
    assert values.values == (0.5, 1.0, 0.0)
    assert values.value_errors == (0.5, 0.0, 0.0)
    assert values.advantages == (0.75, -1.0)
    assert values.advantage_errors == (0.5, 0.0)
    assert values.halves == ((0.25, -1.0), (1.25, -1.0))  # first halves 1 and 1, the others 0 and 1
    assert values.finished == (2, 2)
    cost = found.cost
    assert (cost.states, cost.continuations, cost.failed) == (2, 4, 0)
    assert (cost.environment_steps, cost.replayed_steps, cost.generated_tokens) == (8, 2, 16)


def test_errors_of_common_random_numbers_by_hand() -> None:
    # before a: 1 and 0, behind it 1 and 1: differences 0 and 1, their mean 1/2 +- 1/2; the end is 0: -1 and -1
    (values,) = turn_values([record("ab", [0.25, 0.0])], 2, lambda s: list(hand_played(s)), common=True).trajectories
    assert values.advantages == (0.75, -1.0)
    assert values.advantage_errors == (0.5, 0.0)
    # the other way round: before a 1 and 0, behind it 0 and 1: differences -1 and 1, their mean 0 +- 1
    outcomes = {0: (1.0, 0.0), 1: (0.0, 1.0)}
    plays = functools.partial(hand_played, outcomes=outcomes)
    (values,) = turn_values([record("ab", [0.0, 0.0])], 2, lambda s: list(plays(s)), common=True).trajectories
    assert values.advantage_errors == (1.0, 0.5)
    (values,) = turn_values([record("ab", [0.0, 0.0])], 2, lambda s: list(plays(s))).trajectories
    assert values.advantage_errors == (math.sqrt(0.5), 0.5)


def test_seeds_are_of_the_turn_unless_random_numbers_are_common() -> None:
    def seeds(**options):
        asked = []

        def play(starts):
            asked.extend(starts)
            return list(hand_played(starts))

        turn_values([record("ab", [0.0, 0.0])], 2, play, seed=("mine",), **options)
        return [start.seed for start in asked]

    assert seeds() == [("mine", 0, 0), ("mine", 0, 1), ("mine", 1, 0), ("mine", 1, 1)]
    assert seeds(common=True) == [("mine", 0), ("mine", 1)] * 2


def test_states_that_are_read_in_different_contexts_are_not_shared() -> None:
    other = replace(record("ab", [0.0, 0.0]), rollout_index=1)
    for texts, states in ((("hint", "hint"), 2), (("hint", "other"), 4), ((None, "hint"), 4)):
        asked = []

        def play(starts, asked=asked):
            asked.extend(starts)
            return list(hand_played(starts))

        found = turn_values([record("ab", [0.0, 0.0]), other], 2, play, context=lambda t, k: texts[t.rollout_index])  # noqa: B023
        assert found.cost.states == states
        assert {start.context for start in asked} == set(texts)


def test_a_failed_continuation_is_left_out_and_counted() -> None:
    def play(starts):
        return [
            replace(t, failure="died") if s.seed[-1] == 1 else t
            for s, t in zip(starts, hand_played(starts), strict=True)
        ]

    found = turn_values([record("ab", [0.0, 0.0])], 2, play)
    (values,) = found.trajectories
    assert found.cost.failed == 2
    assert values.values == (1.0, 1.0, 0.0)
    assert values.finished == (1, 1)
    assert math.isnan(values.value_errors[0])

    found = turn_values(
        [record("ab", [0.0, 0.0])], 1, lambda starts: [replace(t, failure="x") for t in hand_played(starts)]
    )
    assert all(map(math.isnan, found.trajectories[0].advantages))


def test_equal_states_share_continuations_and_replayed_turns_have_none() -> None:
    seen = []

    def play(starts):
        seen.extend(starts)
        return list(hand_played(starts))

    behind = record("ac", [0.0, 0.0], replayed=1)
    found = turn_values([record("ab", [0.0, 0.0]), behind], 2, play)
    assert len(seen) == 4  # before a, and behind a, of both
    assert found.trajectories[1].turns == (1,)
    assert found.trajectories[1].values == found.trajectories[0].values[1:]
    assert states_of(behind)[1] == states_of(record("ab", [0.0, 0.0]))[1]


def test_saved_values_come_back(tmp_path) -> None:
    found = turn_values([record("ab", [0.25, 0.0])], 2, lambda starts: list(hand_played(starts)))
    assert BranchValues.load(found.save(tmp_path / "deep" / "values.jsonl")) == found
    (tmp_path / "other.jsonl").write_text('{"states": 1}\n')
    with pytest.raises(ValueError, match=r"BranchValues.load: path must name values that save wrote"):
        BranchValues.load(tmp_path / "other.jsonl")
    lines = (tmp_path / "deep" / "values.jsonl").read_text().splitlines()
    (tmp_path / "cut.jsonl").write_text(lines[0] + "\n")
    with pytest.raises(ValueError, match="does not hold the trajectories that it announces"):
        BranchValues.load(tmp_path / "cut.jsonl")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["values.jsonl"]


def test_refusals() -> None:
    with pytest.raises(ValueError, match="turn_values: continuations must be a whole number of at least 1, got 0"):
        turn_values([], 0, list)
    with pytest.raises(ValueError, match=r"turn_values: trajectories must not be failed ones, got \['t'\]"):
        turn_values([record("a", [0.0], failure="died")], 2, list)
    with pytest.raises(ValueError, match="turn_values: play must return one trajectory per start, 4, got 3"):
        turn_values([record("ab", [0.0, 0.0])], 2, lambda starts: list(hand_played(starts))[:3])


def test_an_environment_that_replays_otherwise_is_a_failure_not_a_branch() -> None:
    suite = ProcessSuite()
    with playing(suite, follow_the_process) as play:
        (trajectory,) = play.collect(suite.tasks("train")[:1], 1)
        wrong = replace(trajectory, turns=(replace(trajectory.turns[0], observation="two two"), *trajectory.turns[1:]))
        found = turn_values([wrong], 2, play.collect_starts)
    assert found.cost.failed == found.cost.continuations
    assert found.cost.environment_steps == 0


@pytest.mark.slow
def test_the_code_of_the_page_runs(monkeypatch, capsys) -> None:
    root = Path(__file__).resolve().parents[2]
    monkeypatch.chdir(root)
    (code,) = re.findall(r"```python\n(.*?)```", (root / "docs" / "branching.md").read_text(), re.S)
    exec(compile(code, "branching.md", "exec"), {})
    *turns, cost = capsys.readouterr().out.splitlines()
    assert turns
    assert all(" +- " in turn for turn in turns)
    assert "failed=0" in cost
