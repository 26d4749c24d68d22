"""The gradient of an update: against a naive loop over rows, and however the rows are cut or spread."""

import socket

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from helpers.gradient_cases import CASES, GROUPS, Cramped, config, learned, make_rows, run_rank
from helpers.tiny import tiny_model

from turncredit.rollout import PolicyScorer
from turncredit.trainers import GRPOConfig
from turncredit.trainers.losses import LOSS_TYPES, clipped_policy_loss, kl_k3
from turncredit.trainers.optimization import (
    MicroBatchLimits,
    MicroBatchTooLarge,
    accumulate_gradients,
    learning_rate,
)
from turncredit.trainers.terms import SDARTerm, SkillSDTerm, objective


def fresh_accelerator():
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    return Accelerator(cpu=True)


def gradient(rows, settings, terms=(), policy_weight=1.0, scorer=None):
    scorer = scorer or PolicyScorer(tiny_model())
    metrics = accumulate_gradients(
        fresh_accelerator(),
        scorer,
        rows,
        settings,
        pad_token_id=0,
        terms=objective(settings, terms, policy_weight),
    )
    names = {n.removeprefix("model."): p for n, p in scorer.named_parameters()}
    return {n: None if p.grad is None else p.grad.clone() for n, p in names.items()}, metrics


def naive_gradient(rows, settings):
    """Row by row from the definition of the objective, with the full logits of the model."""
    model = tiny_model()
    loss = torch.zeros(())
    tokens = {}
    for i, t in enumerate(rows.slot_ids.tolist()):
        if rows.active[i]:
            tokens[t] = tokens.get(t, 0) + len(rows.responses[i])
    for i, (prompt, response) in enumerate(zip(rows.prompts, rows.responses, strict=True)):
        if not rows.active[i]:
            continue
        n = len(response)
        log_all = model(torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        logp = log_all.gather(-1, torch.tensor(response)[:, None]).squeeze(-1)
        term = clipped_policy_loss(logp, rows.old_logprobs[i, :n], rows.advantages[i, :n]).loss
        term = term + settings.beta * kl_k3(logp, rows.signals["ref_logprobs"][i, :n])
        term = term + settings.entropy_coef * (log_all.exp() * log_all).sum(-1)
        if settings.loss_type == "seq-mean-token-mean":
            loss = loss + term.mean() * n / tokens[int(rows.slot_ids[i])] / len(tokens)
        elif settings.loss_type == "token-mean":
            loss = loss + term.sum() / sum(tokens.values())
        else:
            loss = loss + term.sum() / settings.sampling.max_completion_length / len(tokens)
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters()}, loss.item()


def assert_same(got, expected, relative=1e-5):
    for name, value in expected.items():
        error = (got[name] - value).norm() / value.norm().clamp(min=1e-12)
        assert error < relative, (name, float(error))


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_gradient_and_loss_equal_the_naive_loop(loss_type):
    rows, _ = make_rows(dead_groups=(2, 5))
    settings = config(loss_type=loss_type)
    got, metrics = gradient(rows, settings)
    expected, loss = naive_gradient(rows, settings)
    assert_same(got, expected)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("rows_per_batch", [1, 2, 7])
def test_accumulation_changes_nothing(loss_type, rows_per_batch):
    rows, _ = make_rows()
    whole, whole_metrics = gradient(rows, config(loss_type=loss_type))
    cut, cut_metrics = gradient(rows, config(loss_type=loss_type, per_device_train_batch_size=rows_per_batch))
    assert_same(cut, whole)
    assert learned(cut_metrics) == pytest.approx(learned(whole_metrics), rel=1e-4)


def test_micro_batch_tokens_changes_nothing_and_dead_rows_cost_nothing():
    rows, _ = make_rows(dead_groups=(0,))
    whole, _ = gradient(rows, config())
    cut, _ = gradient(rows, config(micro_batch_tokens=20))
    assert_same(cut, whole)
    alive, _ = gradient(rows.select(rows.active.nonzero().flatten()), config())
    assert_same(alive, whole)


def test_without_an_active_row_nothing_happens():
    rows, _ = make_rows(dead_groups=range(GROUPS))
    got, metrics = gradient(rows, config())
    assert metrics is None
    assert all(value is None for value in got.values())


def test_row_order_changes_nothing():
    rows, _ = make_rows()
    order = torch.randperm(len(rows.prompts), generator=torch.Generator().manual_seed(3))
    whole, _ = gradient(rows, config())
    shuffled, _ = gradient(rows.select(order), config())
    assert_same(shuffled, whole)


@pytest.mark.parametrize("kind", [SDARTerm, SkillSDTerm])
def test_auxiliary_terms_use_all_rows_and_opsd_drops_the_policy_gradient(kind):
    rows, _ = make_rows(dead_groups=range(GROUPS))
    settings = config(beta=0.0, entropy_coef=0.0)
    got, metrics = gradient(rows, settings, [kind(coef=0.5)], 0.0)
    assert sum(float(value.norm()) for value in got.values()) > 0
    assert metrics["auxiliary_loss"] == pytest.approx(metrics["loss"], rel=1e-4)
    double, _ = gradient(rows, settings, [kind(coef=1.0)], 0.0)
    assert_same(double, {n: 2 * g for n, g in got.items()})


def test_two_processes_give_the_gradient_of_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    processes = [context.Process(target=run_rank, args=(rank, 2, port, str(tmp_path))) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for name, case in CASES.items():
        rows, _ = make_rows(dead_groups=case.dead_groups)
        settings = config(loss_type=case.loss_type)
        expected, expected_metrics = gradient(rows, settings, case.terms, scorer=case.scorer())
        for result in results:
            got, metrics = result[name]
            assert_same({n.removeprefix("model."): value for n, value in got.items()}, expected)
            assert learned(metrics) == pytest.approx(learned(expected_metrics), rel=1e-4)


def test_running_out_of_memory_halves_the_micro_batch_once_and_keeps_the_gradient(caplog):
    rows, _ = make_rows()
    whole, _ = gradient(rows, config())
    model, settings = tiny_model(), config(share_prefixes=False)
    scorer, limits = Cramped(model, max_rows=40), MicroBatchLimits.of(settings)
    options = {"pad_token_id": 0, "limits": limits}
    metrics = accumulate_gradients(fresh_accelerator(), scorer, rows, settings, **options)
    assert metrics["num_tokens"] == float(rows.response_mask.sum())
    assert scorer.failures == 1
    assert limits.rows == 40
    assert "begins again with micro-batches of at most 40 rows" in caplog.text
    assert_same({n: p.grad for n, p in model.named_parameters()}, whole)
    accumulate_gradients(fresh_accelerator(), scorer, rows, config(), **options)
    assert scorer.failures == 1, "the smaller size stays"
    with pytest.raises(MicroBatchTooLarge, match="out of memory"):
        accumulate_gradients(fresh_accelerator(), Cramped(model, 0), rows, config(), pad_token_id=0)


def test_rows_that_share_prefixes_are_cut_smaller_too_when_memory_runs_out():
    rows, _ = make_rows()
    whole, _ = gradient(rows, config())
    model = tiny_model()
    scorer, limits = Cramped(model, 0), MicroBatchLimits.of(config())
    plan = limits.plan(rows, scorer)
    largest = max(len(entry.rows) for entry in plan)
    scorer.max_rows = max(len(entry.sequences) for entry in plan) - 1
    accumulate_gradients(fresh_accelerator(), scorer, rows, config(), pad_token_id=0, limits=limits)
    assert scorer.failures == 1
    assert limits.rows == -(-largest // 2)
    assert max(len(entry.rows) for entry in limits.plan(rows, scorer)) <= limits.rows
    assert_same({n: p.grad for n, p in model.named_parameters()}, whole)


def test_one_row_that_others_begin_cannot_be_cut():
    assert not MicroBatchLimits(100).halve(rows=4, branches=1)
    limits = MicroBatchLimits(100)
    assert limits.halve(rows=5, branches=2)
    assert (limits.tokens, limits.rows) == (50, 3)


def test_other_errors_are_not_taken_for_memory():
    rows, _ = make_rows()
    scorer = PolicyScorer(tiny_model())
    scorer.forward = lambda *a: (_ for _ in ()).throw(RuntimeError("shape mismatch"))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        accumulate_gradients(fresh_accelerator(), scorer, rows, config(), pad_token_id=0)


def test_learning_rate_by_hand():
    constant = GRPOConfig(learning_rate=1.0, warmup_steps=4, max_steps=14)
    assert [learning_rate(s, constant) for s in (0, 1, 3, 4, 13)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    linear = GRPOConfig(learning_rate=1.0, warmup_steps=4, max_steps=14, lr_scheduler_type="linear")
    assert [learning_rate(s, linear) for s in (4, 9, 14)] == [1.0, 0.5, 0.0]
    cosine = GRPOConfig(learning_rate=1.0, max_steps=10, lr_scheduler_type="cosine")
    assert learning_rate(5, cosine) == pytest.approx(0.5)
