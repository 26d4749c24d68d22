"""CISPO, and GSPO's ratios of turns and trajectories: tables, a naive loop, and the pass that only those pay for."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from unittest import mock

import pytest
import torch
from accelerate import Accelerator
from helpers.gradient_cases import config, learned, make_rows
from helpers.tiny import tiny_model

from turncredit.rollout import PolicyScorer
from turncredit.trainers import GRPOConfig, sequence_ratios
from turncredit.trainers.losses import cispo_loss, clipped_policy_loss, sequence_log_ratios
from turncredit.trainers.optimization import accumulate_gradients
from turncredit.trainers.terms import PolicyTerm, objective

F64 = {"dtype": torch.float64}
TIGHT = {"epsilon": 0.1, "epsilon_high": 0.15, "delta": 1.3}
KINDS = [(loss, level) for loss in ("clip", "cispo") for level in ("token", "turn", "trajectory")]


def T(*values):
    return torch.tensor(values, **F64)


def test_cispo_by_hand():
    logp = T(math.log(0.5), math.log(0.5), math.log(0.1)).requires_grad_()
    old = T(math.log(0.25), math.log(0.5), math.log(0.2))  # ratios 2, 1, 0.5
    found = cispo_loss(logp, old, T(1.0, -2.0, 3.0), epsilon_high=0.2)
    weights = [1.2, 1.0, 0.5]
    expected = [-w * a * lp for w, a, lp in zip(weights, (1.0, -2.0, 3.0), logp.tolist(), strict=True)]
    assert found.loss.tolist() == pytest.approx(expected)
    assert found.ratio.tolist() == pytest.approx([2, 1, 0.5])
    assert found.clipped_high.tolist() == [True, False, False]
    assert not (found.clipped_low | found.clipped_dual).any()
    found.loss.sum().backward()
    assert logp.grad.tolist() == pytest.approx([-1.2, 2.0, -1.5]), "a clipped token keeps its gradient"


def test_the_ratio_of_a_sequence_by_hand():
    logp = T(-1.0, -2.0, -3.0, -1.0).requires_grad_()
    old = T(-1.2, -1.8, -3.3, -1.4)  # log-ratios 0.2, -0.2, 0.3, 0.4 of the sequences a, a, a, b
    log_ratio = sequence_log_ratios(logp - old, torch.tensor([8, 8, 8, 3]))
    assert log_ratio.tolist() == pytest.approx([0.1, 0.1, 0.1, 0.4])
    assert not log_ratio.requires_grad
    advantages = T(1.0, 1.0, -1.0, 2.0)
    bounds = {"epsilon": 0.05, "epsilon_high": 0.2, "delta": 5.0}
    found = clipped_policy_loss(logp, old, advantages, log_ratio=log_ratio, **bounds)
    r = math.exp(0.1)
    assert found.loss.tolist() == pytest.approx([-r, -r, r, -1.2 * 2])
    found.loss.sum().backward()
    assert logp.grad.tolist() == pytest.approx([-r, -r, r, 0.0]), "the gradient of each token's own log-prob"
    heavy = cispo_loss(logp, old, advantages, epsilon_high=0.2, log_ratio=log_ratio)
    assert heavy.loss.tolist() == pytest.approx([-r * -1.0, -r * -2.0, r * -3.0, -1.2 * 2 * -1.0])


def test_a_sequence_of_equal_advantages_has_gspos_gradient():
    """The token form has the gradient of ``s A |y|`` with ``s = exp(mean log-ratio)`` differentiated as it is."""
    old, advantage = T(-1.0, -2.0, -0.5), 0.7
    logp = T(-1.1, -1.9, -0.4).requires_grad_()
    ratios = sequence_log_ratios(logp - old, torch.zeros(3, dtype=torch.long))
    wide = {"epsilon": 0.5, "epsilon_high": 0.5, "delta": None}
    clipped_policy_loss(logp, old, torch.full((3,), advantage, **F64), log_ratio=ratios, **wide).loss.sum().backward()
    direct = logp.detach().clone().requires_grad_()
    (-(direct - old).mean().exp() * advantage * 3).backward()
    torch.testing.assert_close(logp.grad, direct.grad)


def test_shapes_and_bounds_are_checked():
    for loss in (cispo_loss, clipped_policy_loss):
        with pytest.raises(ValueError, match=f"{loss.__name__}: logprobs, old_logprobs and advantages must agree"):
            loss(T(1.0), T(1.0, 2.0), T(1.0))
    with pytest.raises(ValueError, match="cispo_loss: epsilon_high must not be negative, got -1"):
        cispo_loss(T(1.0), T(1.0), T(1.0), epsilon_high=-1)
    for options in ({"loss": "gspo"}, {"level": "sequence"}):
        with pytest.raises(ValueError, match=f"PolicyTerm: {next(iter(options))} must be one of"):
            PolicyTerm(**options)


def gradient(rows, settings, policy_weight=1.0, **changes):
    scorer = PolicyScorer(tiny_model())
    terms = objective(settings, (), policy_weight)
    metrics = accumulate_gradients(Accelerator(cpu=True), scorer, rows, settings, pad_token_id=0, terms=terms)
    return {n.removeprefix("model."): p.grad.clone() for n, p in scorer.named_parameters()}, metrics


def naive(rows, settings):
    """Row by row, the log-ratios of sequences collected first; returns gradient, loss and mean ratio of tokens."""
    model = tiny_model()
    logps = []
    for prompt, response in zip(rows.prompts, rows.responses, strict=True):
        log_all = model(torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        logps.append(log_all.gather(-1, torch.tensor(response)[:, None]).squeeze(-1))
    alive = [i for i in range(len(logps)) if rows.active[i]]
    gaps = {i: (logps[i].detach() - rows.old_logprobs[i, : len(logps[i])]).tolist() for i in alive}
    slots, loss, ratios = rows.slot_ids.tolist(), torch.zeros(()), []
    tokens = {t: sum(len(gaps[i]) for i in alive if slots[i] == t) for t in {slots[i] for i in alive}}
    for i in alive:
        for j, logp in enumerate(logps[i]):
            level = settings.importance_sampling_level
            same = [i] if level == "turn" else [k for k in alive if slots[k] == slots[i]]
            every = [gap for k in same for gap in gaps[k]]
            gap = gaps[i][j] if level == "token" else sum(every) / len(every)
            ratio, advantage = math.exp(gap) * (logp - logp.detach()).exp(), rows.advantages[i, j]
            if settings.policy_loss == "cispo":
                term = -min(math.exp(gap), 1 + settings.epsilon_high) * advantage * logp
            else:
                bounded = ratio.clamp(1 - settings.epsilon, 1 + settings.epsilon_high)
                term = -torch.minimum(ratio * advantage, bounded * advantage)
                if advantage < 0 and -term < settings.delta * advantage:
                    term = -settings.delta * advantage + 0 * logp
            loss = loss + term / tokens[slots[i]] / len(tokens)
            ratios.append(math.exp(gap))
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters()}, float(loss.detach()), sum(ratios) / len(ratios)


@pytest.mark.parametrize(("loss", "level"), KINDS)
def test_gradient_and_loss_equal_a_naive_loop_however_rows_are_cut(loss, level):
    rows, _ = make_rows(dead_groups=(2, 5))
    rows = rows.select((rows.slot_ids < 12).nonzero().flatten().flip(0))
    settings = config(beta=0.0, entropy_coef=0.0, policy_loss=loss, importance_sampling_level=level, **TIGHT)
    expected, value, ratio = naive(rows, settings)
    for most in (None, 3):
        got, metrics = gradient(rows, GRPOConfig(**{**settings.to_dict(), "per_device_train_batch_size": most}))
        for name, wanted in expected.items():
            assert (got[name] - wanted).norm() < 2e-5 * wanted.norm().clamp(min=1e-12), name
        assert metrics["loss"] == pytest.approx(value, rel=1e-5)
        assert metrics["ratio"] == pytest.approx(ratio, rel=1e-5)


def test_levels_are_one_where_sequences_are_single_tokens():
    rows, _ = make_rows()
    one = torch.ones_like(rows.response_mask)[:, :1]
    first = {name: value[:, :1] if value.ndim == 2 else value for name, value in rows.signals.items()}
    responses = [response[:1] for response in rows.responses]
    narrow = replace(
        rows,
        responses=responses,
        response_mask=one,
        slot_ids=torch.arange(len(responses)),
        advantages=rows.advantages[:, :1],
        old_logprobs=rows.old_logprobs[:, :1],
        signals=first,
    )
    found = [
        learned(gradient(narrow, config(importance_sampling_level=level, **TIGHT))[1])
        for level in ("token", "turn", "trajectory")
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[2] == pytest.approx(found[0], rel=1e-4)


@pytest.mark.parametrize(
    ("level", "weight", "passes"),
    [("token", 1.0, 0), ("turn", 1.0, 0), ("trajectory", 1.0, 1), ("trajectory", 0.0, 0)],
)
def test_only_a_policy_gradient_by_trajectories_pays_for_one_more_pass(level, weight, passes):
    rows, _ = make_rows()
    settings = config(importance_sampling_level=level, **TIGHT)
    with mock.patch.object(sequence_ratios, "score_responses", wraps=sequence_ratios.score_responses) as scored:
        gradient(rows, settings, weight)
    assert scored.call_count == passes


def test_a_process_without_rows_takes_part():
    rows, _ = make_rows()
    none = rows.select(torch.zeros(0, dtype=torch.long))
    settings = config(importance_sampling_level="trajectory", **TIGHT)
    assert (
        accumulate_gradients(Accelerator(cpu=True), PolicyScorer(tiny_model()), none, settings, pad_token_id=0) is None
    )


def test_bounds_that_never_act_are_said(caplog):
    narrow = {"epsilon": 3e-4, "epsilon_high": 4e-4}
    with caplog.at_level(logging.WARNING):
        GRPOConfig()
        GRPOConfig(policy_loss="cispo")
        GRPOConfig(importance_sampling_level="turn", **narrow)
        GRPOConfig(importance_sampling_level="turn", policy_loss="cispo", epsilon_high=4e-3)
    assert not caplog.records
    GRPOConfig(importance_sampling_level="trajectory")
    assert "epsilon = 0.2, epsilon_high = 0.24 hardly ever clips the ratio of a trajectory" in caplog.text
    for option in ("policy_loss", "importance_sampling_level"):
        with pytest.raises(ValueError, match=f"{option} must be one of"):
            GRPOConfig(**{option: "gspo"})
