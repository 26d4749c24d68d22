"""Modules attached to the policy: what they read and answer, and that they are trained, saved and read like it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from helpers.gradient_cases import VALUE, config, heads, learned, make_rows
from helpers.processes import finish, start
from helpers.run_attached import make, resumed, steps, weights
from helpers.tiny import tiny_model
from torch import nn

from turncredit.rollout import PolicyScorer, score_responses
from turncredit.rollout.packing import pack_rows
from turncredit.trainers.attached import attached_state, load_attached
from turncredit.trainers.optimization import accumulate_gradients
from turncredit.trainers.optimizer_state import collect_optimizer, restore_optimizer
from turncredit.trainers.policy import make_policy
from turncredit.trainers.terms import objective

PROMPTS = [(3, 9, 2, 4), (3, 18, 9, 10, 2, 4), (3, 4)]
RESPONSES = [(5, 6, 7), (18,), (19, 20, 8, 1, 2)]


def hidden_states(model, prompt, response):
    """``[n, H]`` where each response token is predicted, one row at a time."""
    return model.model(torch.tensor([[*prompt, *response]])).last_hidden_state[0, len(prompt) - 1 : -1]


class Means(nn.Module):
    def forward(self, hidden):
        return hidden.mean(-1)


@pytest.mark.parametrize("max_tokens", [14, 4096])
def test_outputs_are_the_modules_at_the_positions_that_predict_the_response(max_tokens):
    model, modules = tiny_model(), {**heads(), "means": Means()}
    scorer = PolicyScorer(model, modules, chunk_tokens=2)
    options = {"pad_token_id": 0, "max_tokens": max_tokens}
    scores = score_responses(scorer, PROMPTS, RESPONSES, modules=("spare", "means"), **options)
    assert set(scores.outputs) == {"spare", "means"}
    assert scores.outputs["spare"].shape == (3, 5, 3)
    assert scores.outputs["means"].shape == (3, 5)
    for i, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        with torch.no_grad():
            hidden = hidden_states(model, prompt, response)
            expected = {name: modules[name](hidden) for name in ("spare", "means")}
        for name, values in expected.items():
            torch.testing.assert_close(scores.outputs[name][i, : len(response)], values, atol=1e-5, rtol=1e-5)
            assert not scores.outputs[name][i, len(response) :].any()
    plain = score_responses(PolicyScorer(model, chunk_tokens=2), PROMPTS, RESPONSES, **options)
    assert plain.logprobs.equal(scores.logprobs)
    assert plain.outputs == {}
    assert score_responses(scorer, [], [], modules=("spare",), **options).outputs["spare"].shape[0] == 0


def test_processes_that_keep_in_step_also_run_the_modules_equally_often():
    calls = []
    scorer = PolicyScorer(tiny_model(), heads())
    scorer.attached["value"].register_forward_hook(lambda *a: calls.append(1))
    score_responses(scorer, PROMPTS, RESPONSES, pad_token_id=0, modules=("value",), agree=lambda counts: [4, 1])
    assert len(calls) == 4


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_reach_the_module_and_the_policy(checkpointing):
    """Several chunks, recomputed in the backward pass, around layers that do the same."""
    gradients = []
    for scored in (True, False):
        model, value = tiny_model().train(), heads()["value"]
        if checkpointing and scored:
            model.gradient_checkpointing_enable()
        packed = pack_rows(PROMPTS, RESPONSES, 0)
        if scored:
            scorer = PolicyScorer(model, {"value": value}, chunk_tokens=2)
            arguments = (packed.input_ids, packed.positions, packed.targets, 1.0, False, 0, ("value",))
            logprobs, _, outputs = scorer(*arguments)
            answers = outputs["value"].squeeze(-1)
        else:
            rows = [hidden_states(model, *pair) for pair in zip(PROMPTS, RESPONSES, strict=True)]
            answers = value(torch.cat(rows)).squeeze(-1)
            logprobs = model.lm_head(torch.cat(rows)).log_softmax(-1)[range(9), packed.targets]
        (answers.square() + logprobs).sum().backward()
        gradients.append([p.grad for p in (*model.parameters(), *value.parameters())])
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_nothing_changes_where_nothing_is_attached():
    model = tiny_model()
    assert list(PolicyScorer(model).state_dict()) == [f"model.{name}" for name in model.state_dict()]
    policy = make_policy(Accelerator(cpu=True), model, config(beta=0.0), None, None)
    assert len(policy.optimizer.param_groups) == 1
    assert "lr_scale" not in policy.optimizer.param_groups[0]
    assert attached_state(policy.scorer) == {}


def test_modules_learn_at_a_rate_of_their_own_and_unused_ones_stay():
    policy = make(Accelerator(cpu=True))
    before = weights(policy)
    steps(Accelerator(cpu=True), policy, range(1))
    assert [group["lr"] for group in policy.optimizer.param_groups] == [1e-3, 1e-3, 1e-2]
    after = weights(policy)
    moved = {name: float((after[name] - before[name]).abs().max()) for name in before}
    assert moved["value.2.bias"] == pytest.approx(1e-2, rel=1e-2), "AdamW's first step is the learning rate"
    assert moved["spare.weight"] == 0.0
    assert 0 < max(value for name, value in moved.items() if name.startswith("model")) < 2e-3


def test_a_policy_with_modules_goes_on_bit_for_bit_from_its_parts():
    accelerator = Accelerator(cpu=True)
    policy = make(accelerator)
    lines, whole = steps(accelerator, policy, range(4)), weights(policy)
    later, parts = resumed(accelerator)
    assert later == lines[2:]
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_buffers_are_kept_and_other_modules_refused():
    def scorer(width):
        module = nn.Linear(32, width)
        module.register_buffer("mean", torch.full((width,), float(width)))
        return PolicyScorer(tiny_model(), {"value": module})

    state = attached_state(scorer(2))
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "value.weight": (2, 32), "value.bias": (2,), "value.mean": (2,)
    }  # fmt: skip
    other = scorer(2)
    other.attached["value"].mean.zero_()
    load_attached(other, state)
    assert all(value.equal(state[name]) for name, value in attached_state(other).items())
    assert attached_state(other, keep=False) == {}
    with pytest.raises(ValueError, match=r"attached modules \['value'\], got another for \['value.bias'"):
        load_attached(scorer(3), state)
    with pytest.raises(ValueError, match=r"attached modules \[\], got another"):
        load_attached(PolicyScorer(tiny_model()), state)


def test_an_optimiser_of_other_modules_is_refused():
    accelerator = Accelerator(cpu=True)
    policy = make(accelerator)
    saved = collect_optimizer(accelerator, policy.scorer, policy.optimizer)
    plain = make_policy(accelerator, tiny_model(), config(beta=0.0), None, None)
    with pytest.raises(ValueError, match=r"trainable weights must be those of the checkpoint, got groups of \[\d+\]"):
        restore_optimizer(accelerator, plain.scorer, plain.optimizer, saved)


def test_bad_modules_are_named():
    class Sums(nn.Module):
        def forward(self, hidden):
            return hidden.sum()

    options = {"pad_token_id": 0}
    with pytest.raises(ValueError, match=r"must be among the attached ones, \['sums'\], got 'value'"):
        score_responses(PolicyScorer(tiny_model(), {"sums": Sums()}), PROMPTS, RESPONSES, modules=("value",), **options)
    with pytest.raises(ValueError, match=r"module 'sums' must answer a tensor \[n, \.\.\.\] .* = \[9, 32\], got \[\]"):
        score_responses(PolicyScorer(tiny_model(), {"sums": Sums()}), PROMPTS, RESPONSES, modules=("sums",), **options)
    head = type("Frozen", (nn.Linear,), {"lr_scale": 0.0})(32, 1)
    with pytest.raises(ValueError, match=r"modules\['value'\]: lr_scale must be a number above 0, got 0.0"):
        make_policy(Accelerator(cpu=True), tiny_model(), config(beta=0.0), None, None, {"value": head})
    half = nn.Linear(32, 1, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="trainable weights must be float32, got bfloat16"):
        make_policy(Accelerator(cpu=True), tiny_model(), config(beta=0.0), None, None, {"value": half})


def test_a_module_in_float32_reads_a_policy_in_half_precision():
    model = tiny_model().bfloat16()
    scores = score_responses(PolicyScorer(model, heads()), PROMPTS, RESPONSES, pad_token_id=0, modules=("value",))
    assert scores.outputs["value"].dtype == torch.float32
    assert scores.outputs["value"].any()


def test_memory_that_runs_out_halves_the_micro_batch_of_modules_too():
    class Cramped(PolicyScorer):
        def forward(self, input_ids, *arguments):
            if len(input_ids) > 40:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().forward(input_ids, *arguments)

    rows, _ = make_rows()
    gradients = []
    for kind in (PolicyScorer, Cramped):
        scorer, settings = kind(tiny_model(), heads()), config(beta=0.0)
        terms = objective(settings, [VALUE])
        accumulate_gradients(Accelerator(cpu=True), scorer, rows, settings, pad_token_id=0, terms=terms)
        gradients.append([p.grad for p in scorer.parameters()])
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [-1, 1, 3])
def test_two_processes_train_modules_like_one(tmp_path, stage):
    environment: dict[str, Any] = {"ACCELERATE_USE_CPU": "true"}
    if stage >= 0:
        pytest.importorskip("deepspeed")
        environment = {"DS_ACCELERATOR": "cpu"}
    script = Path(__file__).parents[1] / "helpers" / "run_attached.py"
    for code, output in finish(start(script, str(stage), str(tmp_path), **environment), timeout=300):
        assert code == 0, output[-4000:]
        assert "finished" in output
    lines, whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    policy = make(Accelerator(cpu=True))
    expected = steps(Accelerator(cpu=True), policy, range(4))
    for got, want in zip(lines, expected, strict=True):
        assert learned(got) == pytest.approx(learned(want), rel=2e-3, abs=1e-5)
    for name, value in weights(policy).items():
        torch.testing.assert_close(whole[name], value, rtol=1e-3, atol=5e-4, msg=lambda text, n=name: f"{n}: {text}")
