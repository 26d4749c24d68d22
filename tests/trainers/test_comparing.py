"""What a method may ask beside the batch: student and teacher compared, and rows of one's own in the update."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest import mock

import pytest
import torch
from helpers.distill_runs import make
from helpers.tiny import tiny_model

from turncredit.trainers import LossTerm, update
from turncredit.trainers.optimization import MicroBatchTooLarge
from turncredit.trainers.rows import TrainRows

PROMPTS = [(3, 4, 5), (3, 4, 5), (7, 8, 9, 10)]
TOLD = [(11, 3, 4, 5), (12, 3, 4, 5), (13, 7, 8, 9, 10)]
RESPONSES = [(6, 7, 1), (6, 8), (9, 5, 4, 1)]


def log_softmax(model, prompt, response):
    with torch.no_grad():
        return model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run whose teacher is the policy under a hint, and one whose teacher is another, wider model."""
    folder = tmp_path_factory.mktemp("runs")
    other = tiny_model(3, hidden_size=48)
    with make(folder / "self", "opd") as own, make(folder / "other", "opd", other) as wider:
        yield {"self": (own, own.model), "other": (wider, other)}


@pytest.mark.parametrize("whose", ["self", "other"])
def test_comparison_is_what_whole_logits_say(runs, whose):
    run, teacher = runs[whose]
    found = run.run.compare(PROMPTS, RESPONSES, TOLD)
    assert found.mask.sum(1).tolist() == [3, 2, 4]
    for row, (prompt, told, response) in enumerate(zip(PROMPTS, TOLD, RESPONSES, strict=True)):
        p, q = log_softmax(run.model, prompt, response), log_softmax(teacher, told, response)
        tops = torch.stack([p.argmax(-1), q.argmax(-1)], -1)
        ids, size = torch.tensor(response)[:, None], len(response)
        assert torch.equal(found.top[row, :size], tops)
        for got, expected in (
            (found.kl, (p.exp() * (p - q)).sum(-1)),
            (found.logprobs, p.gather(-1, ids)[:, 0]),
            (found.teacher_logprobs, q.gather(-1, ids)[:, 0]),
            (found.top_logprobs, p.gather(-1, tops)),
            (found.teacher_top_logprobs, q.gather(-1, tops)),
        ):
            torch.testing.assert_close(got[row, :size], expected, rtol=0, atol=1e-5)
            assert not got[row, size:].any()
    assert float(found.kl.min()) > -1e-6
    assert not found.kl.requires_grad
    again = run.run.compare(PROMPTS[::-1], RESPONSES[::-1], TOLD[::-1])
    torch.testing.assert_close(again.kl.flip(0), found.kl, rtol=0, atol=1e-5)


def test_comparison_of_nothing_and_with_oneself(runs):
    run, _ = runs["self"]
    nothing = run.run.compare([], [])
    assert nothing.kl.shape == (0, 0)
    assert nothing.top.shape == (0, 0, 2)
    alike = run.run.compare(PROMPTS, RESPONSES)
    assert float(alike.kl.abs().max()) < 1e-6
    assert torch.equal(alike.top[..., 0], alike.top[..., 1])
    assert bool((alike.top_logprobs[..., 0] >= alike.logprobs).all())


def test_what_cannot_be_compared(runs, tmp_path):
    run, _ = runs["self"]
    with pytest.raises(ValueError, match="teacher_prompts must be left out beside teacher_hidden"):
        run.run.compare(PROMPTS, RESPONSES, TOLD, teacher_hidden=torch.zeros(3, 4, 32))
    with pytest.raises(ValueError, match=r"kind must be one of .*, got 'sideways'"):
        run.run.score(PROMPTS, RESPONSES, teacher_hidden=torch.zeros(3, 4, 32), kind="sideways")
    with (
        make(tmp_path, "opd", estimator="sampled", teacher="stale") as lagging,
        pytest.raises(ValueError, match=r"Run\.compare: teacher must be the policy as it is, or another model"),
    ):
        lagging.run.compare(PROMPTS, RESPONSES, TOLD)


class Surprise(LossTerm):
    """- log pi(y), of given answers."""

    def per_token(self, batch):
        return -batch.logprobs * batch.signals["worth"]


def surprise(name="surprise", **changes):
    return Surprise(name, average="token-mean", rows="all", reads=("worth",), **changes)


def trained(folder, added, minibatches=1):
    """One update with rows that ``added(run, batch) -> [(rows, terms)]`` says; its metrics and weights."""
    with make(folder, "opd", config={"num_minibatches": minibatches}) as run:
        phase = run.phase

        def more(batch, step):
            result = phase(batch, step)
            for rows, terms in added(run, batch):
                run.run.add_rows(rows, terms)
            return result

        run.phase = more
        metrics = run.train_step()
        return metrics, {name: value.clone() for name, value in run.model.state_dict().items()}


def answers(run, batch, worth=1.0):
    """The first turn's prompt of every trajectory with an answer, in its trajectory's minibatch."""
    first = [row for row in range(len(batch.turns)) if int(batch.turn_ids[row]) == 0]
    owners = [batch.trajectories[int(batch.trajectory_ids[row])] for row in first]
    slots = [owner.group_id * run.config.num_generations + owner.rollout_index for owner in owners]
    prompts, responses = [batch.prompts[row] for row in first], [(6, 7, 1)[: 1 + row % 3] for row in first]
    return TrainRows.beside(prompts, responses, slots, {"worth": torch.full((len(first),), worth)})


def test_rows_of_ones_own_change_nothing_that_is_said_of_the_batch(tmp_path):
    plain, weights = trained(tmp_path / "plain", lambda run, batch: [])
    beside, moved = trained(tmp_path / "beside", lambda run, batch: [(answers(run, batch), [surprise()])])
    own = {"train/loss", "train/grad_norm", "train/surprise_loss", "train/auxiliary_loss"}
    assert set(beside) - set(plain) == {"train/surprise_loss"}
    for name in set(plain) - own:
        assert plain[name] == beside[name] or name.startswith("time/"), name
    assert beside["train/surprise_loss"] > 0
    assert beside["train/loss"] == pytest.approx(plain["train/loss"] + beside["train/surprise_loss"])
    assert beside["train/auxiliary_loss"] == pytest.approx(beside["train/opd_loss"] + beside["train/surprise_loss"])
    assert not torch.equal(weights["lm_head.weight"], moved["lm_head.weight"])


def test_a_weight_of_nothing_and_no_rows_leave_the_weights_bit_for_bit(tmp_path):
    _, weights = trained(tmp_path / "plain", lambda run, batch: [], 2)
    rows = TrainRows.beside([], [], [], {"worth": torch.zeros(0)})
    metrics, same = trained(tmp_path / "none", lambda run, batch: [(rows, [surprise()])], 2)
    assert "train/surprise_loss" not in metrics
    assert all(torch.equal(weights[name], same[name]) for name in weights)


def test_the_loss_of_added_rows_is_their_own_mean(tmp_path):
    """Two sets of rows, in a batch whose own terms hold none: the mean over these tokens, by hand."""
    kept = []

    def added(run, batch):
        kept.append(answers(run, batch))
        return [(answers(run, batch, 2.0), [surprise()]), (answers(run, batch), [surprise("other", coef=0.5)])]

    metrics, _ = trained(tmp_path, added)
    (rows,) = kept
    model, total, count = tiny_model(), 0.0, 0
    for prompt, response in zip(rows.prompts, rows.responses, strict=True):
        logs = log_softmax(model, prompt, response)
        total -= float(logs.gather(-1, torch.tensor(response)[:, None]).sum())
        count += len(response)
    assert metrics["train/surprise_loss"] == pytest.approx(2 * total / count, rel=1e-4)
    assert metrics["train/other_loss"] == pytest.approx(0.5 * total / count, rel=1e-4)


def test_rows_beside_a_batch_without_any(tmp_path):
    """A credit that moves no group: the added rows are the whole update."""
    with make(tmp_path, "grpo", config={"preflight": True}) as run:
        phase = run.phase

        def more(batch, step):
            result = phase(batch, step)
            run.run.add_rows(answers(run, batch), [surprise()])
            still = torch.zeros_like(result.rows.active)
            return replace(result, rows=replace(result.rows, active=still))

        run.phase = more
        metrics = run.train_step()
    assert metrics["train/optimizer_steps"] == 1
    assert metrics["train/loss"] == pytest.approx(metrics["train/surprise_loss"])
    assert math.isfinite(metrics["train/grad_norm"])


def test_added_rows_are_in_the_minibatch_of_their_trajectory(tmp_path, monkeypatch):
    taken, accumulate = [], update.accumulate_gradients

    def kept(accelerator, scorer, rows, *arguments, **options):
        taken.append((set(rows.slot_ids.tolist()), options["added"], options["reduces"]))
        return accumulate(accelerator, scorer, rows, *arguments, **options)

    monkeypatch.setattr(update, "accumulate_gradients", kept)
    trained(tmp_path, lambda run, batch: [(answers(run, batch), [surprise()])], 2)
    assert [one[1:] for one in taken] == [(False, False), (True, True)] * 2
    assert [part[0] for part in taken[::2]] == [part[0] for part in taken[1::2]]
    assert taken[0][0] | taken[2][0] == set(range(16))


def test_memory_that_runs_out_in_added_rows_is_said(tmp_path, monkeypatch):
    """A second beginning would lose the gradient of the batch's rows."""
    accumulate, failures = update.accumulate_gradients, []

    def short_of_memory(accelerator, scorer, *arguments, **options):
        forward = scorer.forward

        def failing(*inputs, **asked):
            if options["added"] and not failures:
                failures.append(True)
                raise RuntimeError("out of memory")
            return forward(*inputs, **asked)

        with mock.patch.object(scorer, "forward", failing):
            return accumulate(accelerator, scorer, *arguments, **options)

    monkeypatch.setattr(update, "accumulate_gradients", short_of_memory)
    with pytest.raises(MicroBatchTooLarge, match="micro_batch_tokens must leave a micro-batch that fits"):
        trained(tmp_path, lambda run, batch: [(answers(run, batch), [surprise()])])


def test_what_cannot_be_added(runs):
    run, _ = runs["self"]
    rows = TrainRows.beside(PROMPTS, RESPONSES, [0, 1, 2], {"worth": torch.ones(3)})
    run.run.extra.clear()
    with pytest.raises(ValueError, match=r"terms must have names of their own in an update, got 'opd' again from opd"):
        run.run.add_rows(rows, [surprise("opd")])
    run.run.add_rows(rows, [surprise()])
    with pytest.raises(ValueError, match="got 'surprise' again"):
        run.run.add_rows(rows, [surprise()])
    run.run.extra.clear()
    with pytest.raises(ValueError, match="signals must hold 'worth', which the term 'surprise' reads"):
        run.run.add_rows(replace(rows, signals={}), [surprise()])
    with pytest.raises(TypeError, match="rows must be TrainRows with a term at least, got list and 1 terms"):
        run.run.add_rows([], [surprise()])
    with pytest.raises(TypeError, match="and 0 terms"):
        run.run.add_rows(rows, [])
    with pytest.raises(ValueError, match="got 3, 2 and 3; leave empty ones out"):
        TrainRows.beside(PROMPTS, RESPONSES[:2], [0, 1, 2], {})
    with pytest.raises(ValueError, match="no prompt or response empty"):
        TrainRows.beside(PROMPTS, [(), *RESPONSES[1:]], [0, 1, 2], {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"divergence": "sideways", "reads": ("teacher_hidden",)}, "divergence must be one of .*, got 'sideways'"),
        ({"divergence": "reverse"}, r"beside 'teacher_hidden' among reads, got 'reverse' and \('worth',\)"),
    ],
)
def test_a_term_says_at_once_what_it_lacks(changes, message):
    with pytest.raises(ValueError, match=message):
        Surprise("surprise", **{"reads": ("worth",), **changes})


def test_two_divergences_in_one_objective_are_refused():
    from turncredit.trainers.terms import check_terms

    terms = [Surprise(k, reads=("teacher_hidden",), divergence=k) for k in ("reverse", "forward")]
    with pytest.raises(ValueError, match=r"one divergence between them, got \['forward', 'reverse'\]"):
        check_terms(terms)
