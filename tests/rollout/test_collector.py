import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import COLOURS, ToySuite

from turncredit.envs import Task
from turncredit.rollout import PolicyScorer, RolloutCollector, SamplingConfig, StopReason, score_responses

TOKENIZER = tiny_tokenizer()
SAMPLING = SamplingConfig(max_completion_length=12)


def collector(model=None, suite=None, **options):
    settings = {"num_envs": 6, "num_workers": 0, **options}
    return RolloutCollector(model or tiny_model(), TOKENIZER, suite or ToySuite(), SAMPLING, **settings)


class Scripted:
    """A sampler that says what it is told: responses by (task id, rollout, turn), as token ids."""

    equal_lengths = False

    def __init__(self, script):
        self.script, self.batches = script, []
        self.decode = lambda ids: TOKENIZER.decode(list(ids), skip_special_tokens=False)

    def sample(self, prompts, config, seeds, *, budgets, synced_gpus):
        from turncredit.rollout.sampling import Sample

        self.batches.append(len(prompts))
        samples = []
        for seed in seeds:
            ids = tuple(TOKENIZER(self.script(*seed[2:]))["input_ids"])
            samples.append(Sample(ids, (-0.5,) * len(ids), StopReason.STOP_STRING))
        return samples


def scripted(script, **options):
    made = collector(**options)
    made.sampler = Scripted(script)
    return made


def test_trajectories_come_in_order_with_exact_tokens_and_prompts():
    with collector() as rollouts:
        tasks = ToySuite().tasks("train")
        trajectories = rollouts.collect(tasks, 3, seed=1, step=2, first_group_id=10)
        assert [(t.task_id, t.group_id, t.rollout_index) for t in trajectories] == [
            (task.id, 10 + i, g) for i, task in enumerate(tasks) for g in range(3)
        ]
        turns = [turn for t in trajectories for turn in t.turns]
        scores = score_responses(
            PolicyScorer(rollouts.sampler.model),
            [turn.prompt_ids for turn in turns],
            [turn.response_ids for turn in turns],
            pad_token_id=0,
        )
        for row, turn in enumerate(turns):
            assert scores.logprobs[row, : len(turn.response_ids)].tolist() == pytest.approx(turn.logprobs, abs=1e-4)
        assert all(t.policy_version == 2 for t in trajectories)


def test_rollouts_do_not_depend_on_batching_nor_on_the_number_of_workers():
    tasks = ToySuite().tasks("train")
    results = []
    for options in (
        {},
        {"num_envs": 1},
        {"num_envs": 12, "generation_batch_size": 5},
        {"num_envs": 5, "num_workers": 2},
    ):
        with collector(**options) as rollouts:
            results.append([[turn.response_ids for turn in t.turns] for t in rollouts.collect(tasks, 2, seed=5)])
    assert all(result == results[0] for result in results)


def test_rollouts_of_a_group_differ_and_repeat():
    with collector() as rollouts:
        task = ToySuite().tasks("train")[:1]
        first = rollouts.collect(task, 6, seed=0)
        again = rollouts.collect(task, 6, seed=0)
        later = rollouts.collect(task, 6, seed=0, step=1)
    assert first == again
    assert len({t.turns[0].response_ids for t in first}) > 2
    assert [t.turns[0].response_ids for t in first] != [t.turns[0].response_ids for t in later]


def test_generation_never_includes_finished_episodes():
    # the rollouts of red win after 2 turns, those of green never do
    script = lambda task, rollout, turn: "<think> say </think> <action> red </action>"  # noqa: E731
    with scripted(script) as rollouts:
        red, green = ToySuite().tasks("train")[:2]
        trajectories = rollouts.collect([red, green], 2)
    assert rollouts.sampler.batches == [4, 4, 2, 2]
    assert [t.success for t in trajectories] == [1.0, 1.0, 0.0, 0.0]
    assert [t.stop_reason for t in trajectories] == [StopReason.SUCCESS] * 2 + [StopReason.MAX_TURNS] * 2
    assert [len(t.turns) for t in trajectories] == [2, 2, 4, 4]
    assert trajectories[0].reward == 1.0


def test_a_turn_records_what_happened():
    script = lambda task, rollout, turn: "<think> key one </think> <action> red </action>"  # noqa: E731
    with scripted(script) as rollouts:
        turn = rollouts.collect(ToySuite().tasks("train")[:1])[0].turns[1]
    assert turn.thinking == "key one"
    assert turn.action == "red"
    assert turn.observation == "door one"
    assert turn.admissible_actions == COLOURS
    assert turn.valid
    assert turn.messages == ({"role": "user", "content": "room red door red door one"},)
    ids = turn.response_ids
    assert TOKENIZER.decode(ids[slice(*turn.action_tokens)]).strip() == "red"
    assert TOKENIZER.decode(ids[slice(*turn.thinking_tokens)]).strip() == "key one"


def test_the_prompt_keeps_history_length_turns():
    script = lambda task, rollout, turn: "<think> say </think> <action> blue </action>"  # noqa: E731
    with scripted(script) as rollouts:
        turns = rollouts.collect(ToySuite().tasks("train")[:1])[0].turns
    assert turns[3].messages[0]["content"] == "door key blue door key blue door key"


def test_malformed_and_inadmissible_responses_cost_their_turn():
    answers = ["say say", "<action> door </action>", "<think> red", "<think> x </think> <action> red </action>"]
    with scripted(lambda task, rollout, turn: answers[turn]) as rollouts:
        trajectory = rollouts.collect(ToySuite().tasks("train")[:1])[0]
    assert [turn.valid for turn in trajectory.turns] == [False, False, False, True]
    assert [turn.action for turn in trajectory.turns] == ["", "door", "", "red"]


def test_privileged_context_reaches_the_prompt_but_not_the_messages():
    with collector() as rollouts:
        task = ToySuite().tasks("train")[:1]
        shown = TOKENIZER.decode(rollouts.collect(task, privileged=True)[0].turns[0].prompt_ids)
        turn = rollouts.collect(task)[0].turns[0]
    assert "hint say red" in shown
    assert "hint" not in TOKENIZER.decode(turn.prompt_ids)
    assert "hint" not in turn.messages[0]["content"]


def test_a_failed_reset_is_recorded_and_the_others_go_on():
    with collector() as rollouts:
        tasks = [Task("red-broken", "red"), *ToySuite().tasks("train")[:1]]
        trajectories = rollouts.collect(tasks, 2)
    assert [t.failure is None for t in trajectories] == [False, False, True, True]
    assert "cannot be reset" in trajectories[0].failure
    assert trajectories[0].stop_reason is StopReason.ENV_FAILURE


def test_a_worker_that_dies_costs_its_episodes_only():
    tasks = [Task("red-die", "red"), *ToySuite().tasks("train")]
    with collector(num_workers=2, num_envs=2) as rollouts:
        trajectories = rollouts.collect(tasks, 1, seed=3)
    assert [t.failure is None for t in trajectories] == [False, True, True, True, True]
    assert trajectories[0].failure.startswith("worker_died")
    assert len(trajectories[0].turns) == 1


def test_budgets():
    tasks = ToySuite().tasks("train")[:2]
    with collector() as rollouts:
        long = rollouts.collect(tasks, 2, sampling=SamplingConfig(max_completion_length=5))
        capped = rollouts.collect(tasks, 2, sampling=SamplingConfig(max_completion_length=5, max_trajectory_tokens=6))
        short = rollouts.collect(tasks, 2, sampling=SamplingConfig(max_completion_length=12, max_prompt_length=8))
        none = rollouts.collect(tasks, 1, sampling=SamplingConfig(max_prompt_length=2))
    assert max(len(turn.response_ids) for t in long for turn in t.turns) <= 5
    assert all(t.num_tokens <= 6 for t in capped)
    assert StopReason.TOKEN_BUDGET in {t.stop_reason for t in capped}
    assert StopReason.PROMPT_BUDGET in {t.stop_reason for t in short}
    assert all(len(turn.prompt_ids) <= 8 for t in short for turn in t.turns)
    assert [t.failure for t in none] == ["prompt over max_prompt_length"] * 2


def test_progress_counts_episodes():
    class Bar:
        done = 0

        def update(self, n):
            self.done += n

        def set_postfix(self, **values):
            self.values = values

    bar = Bar()
    with collector() as rollouts:
        rollouts.collect(ToySuite().tasks("train"), 2, progress=bar)
    assert bar.done == 8
    assert bar.values["turns"] > 0


def test_bad_arguments_are_named():
    with collector() as rollouts:
        with pytest.raises(ValueError, match="tasks must not be empty"):
            rollouts.collect([])
        with pytest.raises(ValueError, match="num_generations must be at least 1, got 0"):
            rollouts.collect(ToySuite().tasks("train"), 0)
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        collector(num_envs=0)


def test_dropout_and_training_mode_do_not_reach_sampling():
    model = tiny_model(attention_dropout=0.5)
    model.train()
    with collector(model) as rollouts:
        first = rollouts.collect(ToySuite().tasks("train")[:1], 2)
        assert rollouts.collect(ToySuite().tasks("train")[:1], 2) == first
    assert model.training
    assert torch.is_grad_enabled()
