"""What the trainer hands to sampler, credit and teacher: seeds, temperatures, contexts, rewards, snapshots."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from helpers.update_cases import SUITE, config, play, score

from turncredit.credit import get_credit
from turncredit.rollout import PolicyScorer, SamplingConfig, render_prompt, score_responses
from turncredit.trainers import GRPOTrainer
from turncredit.trainers.batch import make_batch, usable
from turncredit.trainers.teacher import score_teacher, teacher_prompts

TASKS = SUITE.tasks("train")[:4]


def trainer(folder, suite=SUITE, **changes):
    changes = {"sampling": SamplingConfig(temperature=1.3, max_completion_length=8), **changes}
    return GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, config(folder, **changes))


def sampled_at(trajectories, model, temperature):
    """Whether the recorded log-probs are those of this temperature."""
    differences = []
    for turn in (turn for t in trajectories for turn in t.turns):
        with torch.no_grad():
            own, _ = score(model, turn.prompt_ids, turn.response_ids, temperature)
        differences.append(float((own - torch.tensor(turn.logprobs)).abs().max()))
    return max(differences) < 1e-4


def test_training_and_evaluation_sample_at_their_own_temperatures(tmp_path):
    with trainer(tmp_path, eval_temperature=0.4) as run:
        run.evaluate()
        assert sampled_at(run.eval_trajectories, run.model, 0.4)
        assert not sampled_at(run.eval_trajectories, run.model, 1.3)
        played = run.rollout(run.tasks_of(0))
        assert sampled_at(played, run.model, 1.3)


def responses(trajectories):
    return [turn.response_ids for t in trajectories for turn in t.turns]


def test_rollouts_differ_by_update_and_by_seed_and_the_panel_by_neither(tmp_path):
    with trainer(tmp_path) as run, trainer(tmp_path / "b", seed=4) as other:
        tasks = run.tasks_of(0)
        first = responses(run.rollout(tasks))
        assert responses(run.rollout(tasks)) == first
        assert responses(other.rollout(tasks)) != first
        run.evaluate()
        panel = responses(run.eval_trajectories)
        run.step = 1
        assert responses(run.rollout(tasks)) != first
        run.evaluate()
        other.evaluate()
        assert responses(run.eval_trajectories) == responses(other.eval_trajectories) == panel


def test_tasks_are_those_of_a_permutation_that_changes_with_epoch_and_seed(tmp_path):
    with trainer(tmp_path) as run, trainer(tmp_path / "b", seed=4) as other:
        ids = [[task.id for task in run.tasks_of(step)] for step in range(8)]
        everything = {task.id for task in SUITE.tasks("train")}
        for epoch in range(4):
            assert {*ids[2 * epoch], *ids[2 * epoch + 1]} == everything
        assert len({tuple(ids[2 * epoch]) for epoch in range(4)}) > 1
        assert [[task.id for task in other.tasks_of(step)] for step in range(8)] != ids


@pytest.mark.parametrize(("credit", "shown"), [("grpo", False), ("skill_grpo", True)])
def test_the_skill_stands_in_the_training_prompt_of_skill_grpo_alone(tmp_path, credit, shown):
    with trainer(tmp_path, credit=credit) as run:
        played = run.rollout(run.tasks_of(0))
        run.evaluate()
    for turn in (turn for t in played for turn in t.turns):
        assert (turn.prompt_ids != render_prompt(run.tokenizer, turn.messages)) == shown
    assert all("hint" not in run.tokenizer.decode(t.turns[0].prompt_ids) for t in run.eval_trajectories)


def test_credit_reads_returns_successes_turn_rewards_and_validity(tmp_path):
    played = usable(play(tiny_model(), TASKS, 0))
    played = [
        replace(t, reward=10.0 * i, turns=tuple(replace(turn, reward=float(k + i)) for k, turn in enumerate(t.turns)))
        for i, t in enumerate(played)
    ]
    batch = make_batch(played)
    with trainer(tmp_path, credit="gigpo", credit_options={"normalization": "mean"}) as run:
        result = run.phase(batch, 0)
    inputs = result.inputs
    assert inputs.rewards.tolist() == [10.0 * i for i in range(len(played))]
    assert inputs.successes.tolist() == [t.success for t in played]
    assert inputs.turn_rewards.tolist() == [turn.reward for t in played for turn in t.turns]
    assert inputs.valid_actions.tolist() == [turn.valid for t in played for turn in t.turns]
    assert torch.equal(result.credit.advantages, get_credit("gigpo")(inputs).advantages)
    slots = {(t.group_id, t.rollout_index): t.group_id * 4 + t.rollout_index for t in played}
    assert result.rows.slot_ids.tolist() == [slots[t.group_id, t.rollout_index] for t in played for _ in t.turns]


def test_a_schedule_sees_the_number_of_updates_done(tmp_path):
    batch = make_batch(usable(play(tiny_model(), TASKS, 0)))
    with trainer(tmp_path, credit="rlsd") as run:
        shares = [run.phase(batch, step).metrics["credit/lam"] for step in (0, 50, 100)]
    assert shares == [0.5, 0.25, 0.0]


def test_the_answering_teacher_draws_anew_in_every_update_and_rollout(tmp_path):
    batch = make_batch(usable(play(tiny_model(), TASKS, 0)))
    seen = []
    with trainer(tmp_path, credit="align_opsd", credit_options={"encoder": "hashing"}) as run:
        sample = run.collector.sample
        run.collector.sample = lambda prompts, sampling, seeds, **more: (
            seen.append(list(seeds)) or sample(prompts, sampling, seeds, **more)
        )
        for step in (0, 1):
            run.phase(batch, step)
    first, second = seen
    assert len(set(first) | set(second)) == len(first) + len(second) == 2 * len(batch.turns)


def test_a_teacher_prompt_that_just_fits_is_scored():
    model, played = tiny_model(), usable(play(tiny_model(), TASKS, 0))[:1]
    batch = make_batch(played)
    prompts = teacher_prompts(tiny_tokenizer(), batch, ["hint say red"] * len(batch.turns))
    longest = max(len(p) + len(r) for p, r in zip(prompts, batch.responses, strict=True))
    score, student = functools.partial(score_responses, PolicyScorer(model), pad_token_id=0), batch.sampled_logprobs
    fits = score_teacher(score, batch, prompts, student, max_length=longest)
    over = score_teacher(score, batch, prompts, student, max_length=longest - 1)
    assert fits.over_length == 0
    assert over.over_length >= 1


def test_failed_rollouts_are_in_no_row(tmp_path):
    played = play(tiny_model(), TASKS, 0)
    with trainer(tmp_path, suite=ToySuite(num_tasks=8)) as run:
        run.rollout = lambda tasks: played
        seen = []
        phase = run.phase
        run.phase = lambda batch, step: seen.append(batch) or phase(batch, step)
        run.train_step()
    assert [t.failure for t in played].count(None) == 15
    assert len(seen[0].trajectories) == 15
