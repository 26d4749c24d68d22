"""Episodes that start behind recorded turns: replayed bit for bit, or failed with the cause, and continued."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from dataclasses import replace

import pytest
from helpers.text_tokenizers import byte_level_tokenizer
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToyEnv, ToySuite
from helpers.trace_files import as_version_1

from turncredit.envs import Observation, StepResult, Task
from turncredit.envs.replay import Recording, replay
from turncredit.envs.vector import VectorEnv
from turncredit.rollout import (
    EpisodeStart,
    RolloutCollector,
    SamplingConfig,
    StopReason,
    load_trajectories,
    save_trajectories,
)
from turncredit.rollout.sampling import Sample
from turncredit.trainers.batch import make_batch, usable

TOKENIZER = tiny_tokenizer()
SAMPLING = SamplingConfig(max_completion_length=12)
TASKS = ToySuite().tasks("train")


def collector(suite=None, **options):
    settings = {"num_envs": 6, "num_workers": 0, **options}
    return RolloutCollector(tiny_model(), TOKENIZER, suite or ToySuite(lenient=True), SAMPLING, **settings)


@pytest.fixture(scope="module")
def played():
    """Trajectories of two to four turns, won and lost."""
    with collector() as rollouts:
        trajectories = rollouts.collect(TASKS, 4, seed=3, step=1)
    assert {len(t.turns) for t in trajectories} >= {2, 4}
    assert {t.stop_reason for t in trajectories} >= {StopReason.SUCCESS, StopReason.MAX_TURNS}
    return trajectories


def without_logprobs(trajectories):
    """The records as they were sampled; log-probs differ in their last bits with the batch."""
    blank = [[replace(turn, logprobs=(0.0,) * len(turn.logprobs)) for turn in t.turns] for t in trajectories]
    return [replace(t, turns=turns, replayed=0) for t, turns in zip(trajectories, blank, strict=True)]


def every_start(trajectories, **changes):
    return [EpisodeStart.at_turn(t, k, **changes) for t in trajectories for k in range(len(t.turns) + 1)]


@pytest.mark.parametrize("options", [{}, {"num_envs": 1}, {"num_envs": 5, "num_workers": 2}])
def test_the_same_seed_and_no_change_gives_the_rest_of_the_record_from_every_turn(played, options):
    starts = every_start(played)
    with collector(**options) as rollouts:
        again = rollouts.collect_starts(starts, seed=3, step=1)
    originals = [t for t in played for _ in range(len(t.turns) + 1)]
    assert [t.replayed for t in again] == [len(start.prefix) for start in starts]
    assert without_logprobs(again) == without_logprobs(originals)
    for now, original in zip(again, originals, strict=True):
        assert now.turns[: now.replayed] == original.turns[: now.replayed]
        for one, other in zip(now.turns, original.turns, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_another_seed_goes_another_way_and_every_first_observation_is_the_recorded_one(played):
    starts = [s for s in every_start(played, seed=("branch", 0)) if s.prefix]
    with collector() as rollouts:
        again = rollouts.collect_starts(starts, seed=3, step=1)
    differ = 0
    for start, now in zip(starts, again, strict=True):
        original = next(t for t in played if (t.task_id, t.rollout_index) == (start.task.id, start.rollout_index))
        k = len(start.prefix)
        assert now.turns[:k] == original.turns[:k]
        if k < len(original.turns):
            assert now.turns[k].observation == original.turns[k].observation
            assert now.turns[k].prompt_ids == original.turns[k].prompt_ids
            differ += now.turns[k].response_ids != original.turns[k].response_ids
        assert now.reward == sum(turn.reward for turn in now.turns)
    assert differ > 5


def test_a_context_is_read_in_the_turns_that_it_is_asked_for(played):
    original = next(t for t in played if len(t.turns) == 4)
    starts = [
        EpisodeStart.at_turn(original, 1, context=lambda turn: "hint say two" if turn == 2 else None),
        EpisodeStart.at_turn(original, 1, context="hint say two"),
        EpisodeStart.at_turn(original, 1),
    ]
    with collector(ToySuite(needed=9)) as rollouts:
        once, always, never = rollouts.collect_starts(starts, seed=3, step=1)

    def told(trajectory):
        return ["hint say two" in TOKENIZER.decode(turn.prompt_ids) for turn in trajectory.turns]

    assert told(once) == [False, False, True, False]
    assert told(always) == [False, True, True, True]
    assert told(never) == [False] * 4
    assert not any("hint" in turn.messages[0]["content"] for t in (once, always) for turn in t.turns)
    assert once.turns[1] == never.turns[1]  # the same seeds: only what is asked for differs


def test_the_turn_limit_counts_from_the_prefix_on_and_the_suites_limit_holds(played):
    original = next(t for t in played if len(t.turns) == 4)
    cases = [(0, 1), (0, 3), (1, 2), (3, 1), (3, 9)]
    starts = [EpisodeStart.at_turn(original, k, max_turns=limit, seed=(k, limit)) for k, limit in cases]
    with collector(ToySuite(needed=9)) as rollouts:
        lengths = [len(t.turns) for t in rollouts.collect_starts(starts)]
        [over] = rollouts.collect_starts([EpisodeStart.at_turn(original, 4)])
    assert lengths == [1, 3, 3, 4, 4]
    assert (over.turns, over.replayed, over.stop_reason) == (original.turns, 4, StopReason.MAX_TURNS)


def test_an_episode_that_is_over_in_its_prefix_generates_nothing(played, monkeypatch):
    won = next(t for t in played if t.success == 1)
    with collector() as rollouts:
        batches = []
        assert not rollouts.sampler.equal_lengths  # tried out once
        monkeypatch.setattr(rollouts.sampler, "sample", lambda prompts, *a, **k: batches.append(prompts) or [])
        [again] = rollouts.collect_starts([EpisodeStart.at_turn(won, len(won.turns))])
    assert batches == []
    assert (again.turns, again.success, again.stop_reason) == (won.turns, 1.0, StopReason.SUCCESS)
    assert again.reward == won.reward


class Changing(ToyEnv):
    """Shows something else in the third turn of every second episode; ``-dies`` kills its process then."""

    episodes = 0

    def reset(self, task_id: str) -> Observation:
        Changing.episodes += 1
        self.odd = Changing.episodes % 2 == 0
        return super().reset(task_id)

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        if self.turns == 2 and self.odd:
            if self.task_id.startswith("red"):
                result = replace(result, observation=replace(result.observation, text="room two"))
            elif self.task_id.startswith("green"):
                result = replace(result, observation=replace(result.observation, admissible_actions=("open",)))
            elif self.task_id.startswith("blue"):
                raise RuntimeError("the engine fell over")
            else:
                result = replace(result, done=True)
        return result


class ChangingSuite(ToySuite):
    def make_env(self):
        return Changing


@pytest.mark.parametrize("turn", [2, 3])
def test_what_comes_otherwise_than_recorded_fails_that_episode_and_no_other(monkeypatch, turn):
    """Fails without the comparison: the episodes would go on from states that were never recorded."""
    monkeypatch.setattr(Changing, "episodes", 0)
    with collector(ChangingSuite(needed=9), num_envs=1) as rollouts:
        records = []
        for task in TASKS:
            records += rollouts.collect([task])
            Changing.episodes += 1
        again = []
        for record in records:
            Changing.episodes = 1
            again += rollouts.collect_starts([EpisodeStart.at_turn(record, turn)])
    seen = {t.task_type: t.failure for t in again}
    assert seen["red"].startswith(
        "replay_diverged: turn 2 of task 'red-train0' must show the recorded observation 'door key', got 'room two'; "
    )
    assert "must show the recorded admissible_actions ('red', 'green', 'blue', 'black'), got ('open',)" in seen["green"]
    assert seen["blue"].startswith("error: step of ")
    assert "the engine fell over" in seen["blue"]
    assert "turn 2 of task 'black-train3' must come as recorded, got the episode's end before it" in seen["black"]
    assert [(t.turns, t.replayed, t.stop_reason) for t in again] == [((), 0, StopReason.ENV_FAILURE)] * 4


def test_long_observations_are_shown_where_they_part():
    texts = ["a" * 400 + "red" + "b" * 400, "a" * 400 + "blue" + "b" * 400]
    recording = Recording("x", ("go",), (Observation(texts[0]),))

    class Long(ToyEnv):
        def reset(self, task_id):
            return Observation(texts[1])

    with VectorEnv(Long, 1, num_workers=0) as envs:
        failure = replay(envs, {0: recording})[0]
    assert failure.cause == "replay_diverged"
    assert re.search(r"observation \.\.'a{60}redb+'\.\., got \.\.'a{60}blueb+'\.\.;", failure.message)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_failing_replay_costs_its_episode_only(played, num_workers):
    turns = played[0].turns[:1]
    fine = next(t for t in played if t.task_id == TASKS[1].id)
    starts = [EpisodeStart(Task("red-broken", "red"), prefix=turns), EpisodeStart.at_turn(fine, 1)]
    if num_workers:
        deadly = (*turns, replace(turns[0], observation="door key", action="open"), turns[0])
        starts.append(EpisodeStart(Task(f"{turns[0].observation.split()[1]}-die", "red"), prefix=deadly))
    with collector(num_workers=num_workers, num_envs=2) as rollouts:
        trajectories = rollouts.collect_starts(starts, seed=3, step=1)
    assert "cannot be reset" in trajectories[0].failure
    assert without_logprobs(trajectories[1:2]) == without_logprobs([fine])
    assert all(t.failure.startswith(("worker_died", "replay_diverged")) for t in trajectories[2:])


def test_sampling_can_be_set_for_one_call(played):
    starts = [EpisodeStart.at_turn(played[0], 1, seed=(1,))]
    short = SamplingConfig(max_completion_length=2)
    greedy = SamplingConfig(temperature=0.0, max_completion_length=12)
    with collector() as rollouts:
        [cut] = rollouts.collect_starts(starts, sampling=short)
        one, other = (rollouts.collect_starts(starts, seed=s, sampling=greedy)[0] for s in (0, 1))
    assert len(cut.turns) > 1
    assert max(len(turn.response_ids) for turn in cut.turns[1:]) <= 2
    assert one == other


def test_tokens_of_the_prefix_count_towards_the_budget_of_the_trajectory(played):
    original = next(t for t in played if len(t.turns) == 4)
    used = sum(len(turn.response_ids) for turn in original.turns[:2])
    with collector(ToySuite(needed=9)) as rollouts:
        settings = SamplingConfig(max_completion_length=12, max_trajectory_tokens=used)
        [done] = rollouts.collect_starts([EpisodeStart.at_turn(original, 2)], sampling=settings)
    assert (len(done.turns), done.stop_reason, done.failure) == (2, StopReason.TOKEN_BUDGET, None)


def test_processes_in_step_play_also_without_a_start(played):
    """As under ZeRO-3 without gathered parameters: one answers that another plays, so this one generates on."""
    calls, idle = [], []

    def agree(counts):
        calls.append(counts)
        return [1] if len(calls) < 8 else counts

    with collector(agree=agree) as rollouts:
        assert not rollouts.sampler.equal_lengths  # tried out once
        sample = rollouts.sampler.sample
        rollouts.sampler.sample = lambda *a, synced_gpus, **more: idle.append(synced_gpus) or sample(*a, **more)
        assert rollouts.collect_starts([]) == []
        assert len(calls) == 9
        assert idle == [True] * 3
        again = rollouts.collect_starts([EpisodeStart.at_turn(played[0], 2)], seed=3, step=1)
    assert without_logprobs(again) == without_logprobs(played[:1])
    with collector() as rollouts:
        assert rollouts.collect_starts([]) == []


def test_replayed_turns_survive_a_file_and_are_never_trained(played, tmp_path):
    with collector() as rollouts:
        again = rollouts.collect_starts(every_start(played[:3]), seed=3, step=1)
    loaded = load_trajectories(save_trajectories(again, tmp_path / "again.jsonl.gz"))
    assert loaded == again
    batch = make_batch(usable(loaded))
    assert len(batch.turns) == sum(len(t.turns) - t.replayed for t in again)
    assert batch.turns == tuple(turn for t in again for turn in t.turns[t.replayed :])
    assert len(batch.trajectories) == len(again) - 3  # each record once whole


def test_files_of_before_replays_are_read(played, tmp_path):
    path = tmp_path / "old.jsonl"
    path.write_text(as_version_1(played, "replayed"))
    assert '"replayed"' not in path.read_text()
    assert load_trajectories(path) == played


def test_bad_starts_are_named(played):
    task = TASKS[0]
    with pytest.raises(TypeError, match="EpisodeStart: task must be a Task, got 'red'"):
        EpisodeStart("red")
    with pytest.raises(TypeError, match="EpisodeStart: prefix must be recorded turns, got 'red'"):
        EpisodeStart(task, prefix=("red",))
    with pytest.raises(TypeError, match=r"EpisodeStart: seed must be ints and strings, got 0\.5"):
        EpisodeStart(task, seed=(0.5,))
    with pytest.raises(TypeError, match="EpisodeStart: context must be text or a function of the turn, got 3"):
        EpisodeStart(task, context=3)
    with pytest.raises(ValueError, match="EpisodeStart: max_turns must be a whole number of at least 1, got 0"):
        EpisodeStart(task, max_turns=0)
    with pytest.raises(ValueError, match=r"turn must lie in 0\.\.\d, the trajectory's turns, got 9"):
        EpisodeStart.at_turn(played[0], 9)
    with pytest.raises(ValueError, match=r"turn must lie in 0\.\.\d, the trajectory's turns, got 1\.0"):
        EpisodeStart.at_turn(played[0], 1.0)
    with pytest.raises(TypeError, match="EpisodeStart: group_id must be an int, got None"):
        EpisodeStart(task, group_id=None)
    with pytest.raises(TypeError, match="EpisodeStart: observation must be an Observation or None, got 'door'"):
        EpisodeStart(task, observation="door")
    with pytest.raises(ValueError, match=r"Trajectory: replayed must lie in 0\.\.\d, its turns, got 9"):
        replace(played[0], replayed=9)
    with collector() as rollouts:
        with pytest.raises(TypeError, match="starts must be EpisodeStart records, got Task"):
            rollouts.collect_starts([task])
        with pytest.raises(ValueError, match="starts must differ, got two alike for task 'red-train0'"):
            rollouts.collect_starts([EpisodeStart(task), EpisodeStart(task, group_id=1)])
        with pytest.raises(TypeError, match="starts must be several EpisodeStart records, got EpisodeStart"):
            rollouts.collect_starts(EpisodeStart(task))
        assert len(rollouts.collect_starts([EpisodeStart(task), EpisodeStart(task, context="hint")])) == 2
        assert len(rollouts.collect_starts(EpisodeStart(task, context=hint) for hint in "ab")) == 2
        assert len(rollouts.collect(task for task in TASKS[:2])) == 2


def test_a_context_that_raises_or_is_no_text_fails_its_episode():
    starts = [
        EpisodeStart(TASKS[0], context=lambda turn: {}[turn]),
        EpisodeStart(TASKS[0], context=lambda turn: turn),
        EpisodeStart(TASKS[0]),
    ]
    with collector() as rollouts:
        raised, number, fine = rollouts.collect_starts(starts)
    assert raised.failure.startswith("suite_error: context raised KeyError at test_episodes.py")
    assert number.failure == "suite_error: context: the result must be a str or None, got 0 (int)"
    assert fine.failure is None


class Chooses:
    """A sampler that takes one of the admissible actions in the prompt, by its seed."""

    equal_lengths = False

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def decode(self, ids):
        return self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)

    def sample(self, prompts, config, seeds, **rest):
        return [self._choose(self.decode(prompt), seed) for prompt, seed in zip(prompts, seeds, strict=True)]

    def _choose(self, prompt, seed):
        actions = re.findall(r"^- (.*)$", prompt, re.MULTILINE)
        action = actions[int(hashlib.sha256(repr(seed).encode()).hexdigest(), 16) % len(actions)]
        ids = tuple(self.tokenizer(f"<think>why not</think><action>{action}</action>")["input_ids"])
        return Sample(ids, (-0.5,) * len(ids), StopReason.STOP_STRING)


@pytest.mark.skipif(importlib.util.find_spec("alfworld") is None, reason="the engine is not installed")
def test_alfworld_games_are_continued_from_every_turn(tmp_path):
    from turncredit.envs.alfworld import AlfWorldSuite, generate_games

    generate_games(tmp_path, 2, seed=5, house_size="small", verify=False)
    suite = AlfWorldSuite(tmp_path, privileged="skills", max_turns=5)
    tokenizer = byte_level_tokenizer()
    settings = SamplingConfig(max_completion_length=64, max_prompt_length=4000)
    model = tiny_model(vocab_size=len(tokenizer))
    with RolloutCollector(model, tokenizer, suite, settings, num_envs=4, num_workers=0) as rollouts:
        rollouts.sampler = Chooses(tokenizer)
        records = rollouts.collect(suite.tasks("train"), 2, seed=1)
        starts = every_start(records)
        again = rollouts.collect_starts(starts, seed=1)
        informed = rollouts.collect_starts([replace(s, context="Look around.", seed=(1,)) for s in starts], seed=1)
    assert [replace(t, replayed=0) for t in again] == [t for t in records for _ in range(len(t.turns) + 1)]
    assert {len(t.turns) for t in records} == {5}
    assert len({turn.observation for t in records for turn in t.turns}) > 8
    for record, start, other in zip([t for t in records for _ in range(6)], starts, informed, strict=True):
        k = len(start.prefix)
        assert other.failure is None
        if k < 5:
            assert (other.turns[k].observation, other.turns[k].admissible_actions) == (
                record.turns[k].observation,
                record.turns[k].admissible_actions,
            )
            assert "Look around." in tokenizer.decode(other.turns[k].prompt_ids)
