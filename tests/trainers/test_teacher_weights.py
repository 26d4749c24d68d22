"""Whose weights the teacher has: a stale or averaged one scores with its own, and whole updates under it are right."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from helpers.reference import agent_opsd, step_opsd
from helpers.reference_align import align_opsd as naive_align
from helpers.reference_align import eligibility, rectify, select
from helpers.reference_update import (
    ReferenceRun,
    assert_equal_weights,
    give_grpo_credit,
    give_shaped_credit,
    residuals,
    rewards_and_groups,
    rollouts,
    score,
)
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.update_cases import SUITE, TOKENIZER, Angles, config, play, run_updates

from turncredit.envs import ParsedResponse
from turncredit.rollout import render_prompt, with_privileged_context
from turncredit.trainers import GRPOTrainer
from turncredit.trainers.batch import make_batch, usable

TASKS = SUITE.tasks("train")[:4]


def hint_prompt(row, trajectories):
    good = [t for t in trajectories if t.failure is None]
    hint = f"hint say {good[row.index].task_id.split('-')[0]}"
    return render_prompt(TOKENIZER, with_privileged_context(row.turn.messages, hint))


def hindsight_prompt(row, trajectories):
    """The first other rollout of the group that succeeded, as observations and actions; None: no hindsight."""
    good = [t for t in trajectories if t.failure is None]
    own = good[row.index]
    winners = [t for t in good if t.group_id == own.group_id and t.success == 1.0 and t is not own]
    if not winners:
        return None
    lines = [f"Observation: {turn.observation}\nAction: {turn.action}" for turn in winners[0].turns]
    text = "A successful attempt at this task went like this.\n" + "\n".join(lines)
    return render_prompt(TOKENIZER, with_privileged_context(row.turn.messages, text))


@torch.no_grad()
def teach(rows, trajectories, teacher, prompt_of):
    """Teacher log-probs; where there is no context the gap is exactly 0."""
    for row in rows:
        prompt = prompt_of(row, trajectories)
        row.teacher = row.old if prompt is None else score(teacher, prompt, row.response, 0.7)[0]


LAGGING = {
    "lagging": {"credit": "agent_opsd", "credit_options": {"teacher": "stale", "refresh_every": 2}},
    "averaged": {"credit": "agent_opsd", "credit_options": {"teacher": "ema", "ema_rate": 0.3}},
}


@pytest.mark.parametrize("name", ["lagging", "averaged"])
def test_updates_under_a_teacher_of_its_own(tmp_path, name):
    """Four updates: the stale teacher is the policy of update 0, 0, 2, 2; the averaged one moves by 0.3 after each."""
    teachers = []

    def credit(rows, trajectories, run, step):
        if name == "lagging":
            if step % 2 == 0:
                teachers.append(copy.deepcopy(run.model))
        elif not teachers:
            teachers.append(copy.deepcopy(run.model))
        else:
            moved = copy.deepcopy(teachers[-1])
            for old, now in zip(moved.parameters(), run.model.parameters(), strict=True):
                old.data = 0.7 * old.data + 0.3 * now.data
            teachers.append(moved)
        teach(rows, trajectories, teachers[-1], hint_prompt)
        give_shaped_credit(rows, trajectories, agent_opsd)

    settings = config(tmp_path, **LAGGING[name], num_iterations=1, num_minibatches=1, learning_rate=5e-3)
    assert_equal_weights(settings, credit, updates=4)


def test_step_opsd_under_hindsight_with_its_schedule(tmp_path):
    teachers = []

    def credit(rows, trajectories, run, step):
        if step % 2 == 0:
            teachers.append(copy.deepcopy(run.model))
        teach(rows, trajectories, teachers[-1], hindsight_prompt)
        give_shaped_credit(rows, trajectories, step_opsd, lam=0.2 * (1 - step / 50))

    short = {"credit": "step_opsd", "credit_options": {"refresh_every": 2}}
    settings = config(tmp_path, **short, num_iterations=1, num_minibatches=1, learning_rate=5e-3)
    assert_equal_weights(settings, credit, updates=4)


def answers_of(batch):
    """The teacher's own answers: angles that are a function of the number of rows."""
    rng = random.Random(len(batch.turns))
    return [ParsedResponse(f"{rng.uniform(0, 1.2):.3f}", "0.5", True) for _ in batch.turns]


class Aligned:
    """A batch as the plain lists of `reference_align`, its pairs scored by the model."""

    @torch.no_grad()
    def __init__(self, rows, trajectories, model, threshold, top_k):
        rewards, groups = rewards_and_groups(trajectories)
        rng = random.Random(len(rows))
        sources = [float(f"{rng.uniform(0, 1.2):.3f}") for _ in rows]
        targets = [float(row.turn.thinking) for row in rows]
        every = [True] * len(rows)
        owners = [row.index for row in rows]
        cosine = torch.cos(torch.tensor(sources)[:, None] - torch.tensor(targets)[None]).tolist()
        eligible = eligibility(owners, groups, every, every)
        self.chosen = select(cosine, eligible, owners, [row.k for row in rows], threshold, top_k)
        cross = {
            (v, u): score(model, hint_prompt(rows[v], trajectories), rows[u].response, 0.7)[0].tolist()
            for u, best in self.chosen.items()
            for v in best
        }
        width = max(len(row.response) for row in rows)

        def padded(values):
            return [[*map(float, v), *[-1.0] * (width - len(v))] for v in values]

        self.case = {
            "trajectory": owners,
            "turn": [row.k for row in rows],
            "group": groups,
            "reward": rewards,
            "mask": [[t < len(row.response) for t in range(width)] for row in rows],
            "student": padded(row.old for row in rows),
            "teacher": padded(row.teacher for row in rows),
            "similarity": cosine,
            "source_valid": every,
            "target_valid": every,
            "cross": dict(zip(cross, padded(cross.values()), strict=True)),
        }


def test_align_distill_distils_the_rectified_scores(tmp_path):
    rectified = []

    def credit(rows, trajectories, run, step):
        teach(rows, trajectories, run.model, hint_prompt)
        give_grpo_credit(rows, trajectories)  # decides only on which rows have KL and entropy: no policy gradient
        aligned = Aligned(rows, trajectories, run.model, 0.8, 3)
        case = aligned.case
        logprobs, *_ = rectify(
            case["teacher"], case["cross"], case["similarity"], aligned.chosen, 0.8, 0.1, 0.8, "probability"
        )
        for row, values in zip(rows, logprobs, strict=True):
            own = row.teacher
            row.teacher = torch.tensor(values[: len(row.response)])
            rectified.append(float((row.teacher - own).abs().max()))

    options = {"answers": answers_of, "encoder": Angles()}
    assert_equal_weights(config(tmp_path, credit="align_distill"), credit, ("sdar", 0.01, 0.0, 0.0), **options)
    assert max(rectified) > 0.1
    # the gradient of this term does not depend on the teacher, so the weights say nothing about it: its value does
    settings = config(tmp_path / "one step", credit="align_distill", num_iterations=1, num_minibatches=1)
    (played,), model = rollouts(1), tiny_model()
    (metrics,) = run_updates(tiny_model(), settings, [played], **options)
    total, tokens = 0.0, 0
    for row in ReferenceRun(model, settings, credit).prepare(played, 0):
        now, _ = score(model, row.prompt, row.response, 0.7)
        total, tokens = total + float((row.teacher - now).sum()) / 2, tokens + len(now)
    assert metrics["train/auxiliary_loss"] == pytest.approx(0.01 * total / tokens, rel=1e-4)


def test_align_opsd_with_its_auxiliary_loss(tmp_path):
    def credit(rows, trajectories, run, step):
        teach(rows, trajectories, run.model, hint_prompt)
        aligned = Aligned(rows, trajectories, run.model, 0.65, 2)
        out, *_ = naive_align(aligned.case, threshold=0.65, top_k=2)
        extra = residuals(rows, *rewards_and_groups(trajectories))
        for row, values, more in zip(rows, out, extra, strict=True):
            row.advantages = torch.tensor(values[: len(row.response)]) + more
            row.advantages[row.advantages.abs() < 1e-6] = 0.0

    options = {"normalization_scope": "trajectory"}
    settings = config(tmp_path, credit="align_opsd_alfworld_3b", credit_options=options)
    metrics, _ = assert_equal_weights(settings, credit, ("sdar", 0.01, 5.0, 1.0), answers=answers_of, encoder=Angles())
    assert metrics[0]["teacher/pairs"] > 0
    assert 0.5 < metrics[0]["credit/invalid_residual_max_abs"] < 1


@pytest.mark.parametrize("kind", ["stale", "ema"])
def test_the_teacher_scores_with_its_own_weights_and_the_policy_comes_back_bit_for_bit(tmp_path, kind):
    """The trainer's teacher scores are those of a model that holds the teacher's weights, exactly."""
    name = {"stale": "lagging", "ema": "averaged"}[kind]
    played = play(tiny_model(), TASKS, 0)
    batch = make_batch(usable(played))
    policy, teacher = tiny_model(0), tiny_model(1)
    with GRPOTrainer(policy, tiny_tokenizer(), SUITE, config(tmp_path, **LAGGING[name])) as run:
        run.teacher.snapshot.load_state_dict({n: p.detach().clone() for n, p in teacher.named_parameters()})
        before = {n: p.detach().clone() for n, p in run.model.named_parameters()}
        inputs = run.phase(batch, 0).inputs
        assert all(torch.equal(before[n], p) for n, p in run.model.named_parameters())
    with GRPOTrainer(teacher, tiny_tokenizer(), SUITE, config(tmp_path / "b", credit="agent_opsd")) as run:
        expected = run.phase(batch, 0).inputs
    with GRPOTrainer(policy, tiny_tokenizer(), SUITE, config(tmp_path / "c", credit="agent_opsd")) as run:
        current = run.phase(batch, 0).inputs
    assert torch.equal(inputs.teacher_logprobs, expected.teacher_logprobs)
    assert (inputs.teacher_logprobs - current.teacher_logprobs).abs().max() > 0.1
    assert torch.equal(inputs.student_logprobs, current.student_logprobs)
