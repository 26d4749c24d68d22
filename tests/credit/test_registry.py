"""Methods by name: options, presets, requirements, schedules, and a method of one's own."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.credit_cases import random_batch

from turncredit.credit import (
    Credit,
    CreditInputs,
    Mean,
    get_credit,
    grpo,
    list_credits,
    register_credit,
    registry,
    rlsd,
)


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def last_turn(inputs: CreditInputs, *, share: float = 1.0) -> Credit:
    """Only the last turn is credited."""
    base = grpo(inputs)
    last = inputs.turn_ids == inputs.turn_counts[inputs.trajectory_ids] - 1
    weights = torch.where(last, share, 0.0).to(base.advantages.dtype)
    return Credit(base.advantages * weights[:, None], weights)


def test_every_method_is_listed() -> None:
    names = list_credits()
    assert names == sorted(names)
    assert {"grpo", "dr_grpo", "agent_opsd", "agent_opsd_token", "rlsd", "step_opsd", "gigpo"} <= set(names)


def test_options_are_resolved() -> None:
    method = get_credit("agent_opsd_gap", gamma=0.5)
    assert method.name == "agent_opsd_gap"
    assert method.options["gamma"] == 0.5
    assert method.options["revision"] == "gap"
    assert method.options["lam"] == 0.5
    assert method.requires == {"teacher_logprobs"}
    assert get_credit("step_opsd").requires == {"teacher_logprobs", "span_mask"}
    assert get_credit("grpo").requires == frozenset()


def test_a_preset_option_can_be_overridden() -> None:
    assert get_credit("dr_grpo").options["scale_rewards"] is False
    assert get_credit("dr_grpo", scale_rewards=True).options["scale_rewards"] is True


def test_unknown_name() -> None:
    with pytest.raises(
        ValueError, match=r"get_credit: name must be one of agent_opsd, .*grpo.*, got 'gpro'; did you mean 'grpo'"
    ):
        get_credit("gpro")


def test_unknown_option() -> None:
    message = (
        "options of rlsd must be among lam, band, decay_steps, eps, scale_rewards, normalization_scope, "
        "outcome_discount, got 'lamda'"
    )
    with pytest.raises(TypeError, match=message):
        get_credit("rlsd", lamda=0.1)
    with pytest.raises(TypeError, match="got 'step'; pass step when you call the method"):
        get_credit("rlsd", step=3)


def test_step_reaches_schedules_and_nothing_else() -> None:
    inputs = random_batch(0)
    assert torch.equal(get_credit("rlsd")(inputs, step=40).advantages, rlsd(inputs, step=40).advantages)
    assert not torch.equal(get_credit("rlsd")(inputs, step=40).advantages, rlsd(inputs).advantages)
    assert torch.equal(get_credit("grpo")(inputs, step=40).advantages, grpo(inputs).advantages)
    assert "step" not in get_credit("rlsd").options


def test_a_method_of_ones_own() -> None:
    function = register_credit("last_turn", presets={"half_turn": {"share": 0.5}})(last_turn)
    inputs = random_batch(0)
    assert "last_turn" in list_credits()
    assert torch.equal(get_credit("half_turn")(inputs).turn_weights * 2, function(inputs).turn_weights)
    register_credit("last_turn")(last_turn)


def test_a_name_is_not_taken_twice() -> None:
    with pytest.raises(
        ValueError, match=r"name must be new, got 'grpo', which is turncredit\.credit\.grpo\.grpo; choose"
    ):
        register_credit("grpo")(last_turn)


def test_requirements_may_depend_on_options() -> None:
    def needs(options: dict) -> tuple[str, ...]:
        return ("anchor_ids",) if options["share"] > 1 else ()

    register_credit("picky", requires=needs)(last_turn)
    assert get_credit("picky").requires == frozenset()
    assert get_credit("picky", share=2.0).requires == {"anchor_ids"}


def test_methods_run_without_gradient() -> None:
    def leaky(inputs: CreditInputs) -> Credit:
        advantages = inputs.student_logprobs * 1.0
        return Credit(advantages, advantages[:, 0])

    inputs = random_batch(0)
    inputs.student_logprobs.requires_grad_()
    assert not register_credit("leaky")(leaky)(inputs).advantages.requires_grad


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda inputs, share=1.0: None, "bad must take its options by keyword with a default, got share=1.0"),
        (lambda inputs, *, share: None, "bad must take its options by keyword with a default, got share; write"),
    ],
)
def test_options_need_keywords_and_defaults(function: Callable, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        register_credit("bad")(function)


def test_a_required_field_must_exist() -> None:
    with pytest.raises(ValueError, match=r"requires of bad must be among teacher_logprobs, .* got 'teacher'; "):
        register_credit("bad", requires=("teacher",))(last_turn)


def test_a_preset_must_set_known_options() -> None:
    with pytest.raises(TypeError, match="options of other must be among share, got 'part'"):
        register_credit("bad", presets={"other": {"part": 1}})(last_turn)


def test_a_method_must_return_credit() -> None:
    register_credit("bare")(lambda inputs: inputs.rewards)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="bare: the method must return a Credit, got Tensor; return Credit"):
        get_credit("bare")(random_batch(0))


@pytest.mark.parametrize("shape", [(1,), (1, 1), (None, 1), (1, None)])
def test_advantages_must_be_those_of_every_token(shape: tuple) -> None:
    """Torch would spread another shape over the batch without a word."""
    inputs = random_batch(0)
    size = [own if wanted is None else wanted for own, wanted in zip(inputs.response_mask.shape, shape, strict=False)]
    register_credit("spread")(lambda inputs: Credit(torch.ones(size), torch.ones(len(inputs.turn_ids))))
    with pytest.raises(
        ValueError, match=re.escape(f"spread: advantages must be [M, T] = {[*inputs.response_mask.shape]}")
    ):
        get_credit("spread")(inputs)


@pytest.mark.parametrize("value", ["fast", "3", None, [1.0], torch.ones(2)])
def test_a_metric_must_be_a_number(value: object) -> None:
    def mine(inputs: CreditInputs) -> Credit:
        return Credit(grpo(inputs).advantages, torch.ones(len(inputs.turn_ids)), {"size": value})  # type: ignore[dict-item]

    register_credit("mine")(mine)
    with pytest.raises(TypeError, match=r"mine: metrics must be numbers, got .* for 'size'; return tensors in details"):
        get_credit("mine")(random_batch(0))


def test_metrics_of_any_numeric_type_are_floats_and_keep_what_they_know() -> None:
    def mine(inputs: CreditInputs) -> Credit:
        metrics = {"a": torch.tensor(2.0), "b": np.float32(0.5), "c": 3, "d": Mean(1.0, 4), "e": True}
        return Credit(grpo(inputs).advantages, torch.ones(len(inputs.turn_ids)), metrics)  # type: ignore[arg-type]

    register_credit("mine")(mine)
    found = get_credit("mine")(random_batch(0)).metrics
    assert found == {"a": 2.0, "b": 0.5, "c": 3.0, "d": 1.0, "e": 1.0}
    assert all(isinstance(value, float) for value in found.values())
    assert isinstance(found["d"], Mean)
    assert found["d"].weight == 4
