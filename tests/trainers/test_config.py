"""Every option of a run is checked where the configuration is made, by kind and by range."""

import json
import math
import re
from dataclasses import asdict, fields

import numpy as np
import pytest
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.credit import get_credit, list_credits, register_credit, registry
from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOConfig, GRPOTrainer, Recipe
from turncredit.trainers.config import _RULES
from turncredit.trainers.tryout import made_up_inputs, try_options

NUMBERS = [name for name, rule in _RULES.items() if rule.kind in ("int", "float")]
TEXTS = [name for name, rule in _RULES.items() if rule.kind == "str"]
FLAGS = [name for name, rule in _RULES.items() if rule.kind == "bool"]
NONE = {name for name, rule in _RULES.items() if rule.none}


def test_every_option_has_a_rule():
    assert {field.name for field in fields(GRPOConfig)} == {
        *_RULES,
        "sampling",
        "credit_options",
        "chat_template_kwargs",
        "report_to",
    }


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["1e-6", "3", True, math.nan, math.inf, -1, [1], 1 + 1j])
def test_a_number_must_be_one(name, value):
    with pytest.raises((TypeError, ValueError), match=f"GRPOConfig: {name} must be a (whole )?number .*got"):
        GRPOConfig(**{name: value})


@pytest.mark.parametrize("name", [*TEXTS, *FLAGS])
@pytest.mark.parametrize("value", [3, "", 0.5, b"x"])
def test_text_and_flags_must_be_that(name, value):
    with pytest.raises((TypeError, ValueError), match=f"GRPOConfig: {name} must be "):
        GRPOConfig(**{name: value})


@pytest.mark.parametrize("name", sorted(_RULES))
def test_none_is_taken_where_it_means_something(name):
    if name in NONE:
        assert getattr(GRPOConfig(**{name: None}), name) is None
    else:
        with pytest.raises(TypeError, match=f"GRPOConfig: {name} must be .*, got None; "):
            GRPOConfig(**{name: None})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"learning_rate": "1e-6"},
            r"TypeError: GRPOConfig: learning_rate must be a number above 0, got '1e-6'; write",
        ),
        ({"num_tasks": 8.0}, r"TypeError: GRPOConfig: num_tasks must be a whole number of at least 1, got 8.0"),
        ({"num_tasks": True}, r"TypeError: GRPOConfig: num_tasks .* got True"),
        (
            {"recompute_logprobs": 1},
            r"TypeError: GRPOConfig: recompute_logprobs must be True or False, or None .* got 1",
        ),
        ({"recompute_logprobs": "true"}, r"got 'true'; write true or false without quotes"),
        ({"delta": 1.24}, r"ValueError: GRPOConfig: delta must exceed 1 \+ epsilon_high = 1.24, got 1.24; raise it"),
        ({"delta": 2.0, "epsilon_high": 1.0}, r"delta must exceed 1 \+ epsilon_high = 2, got 2.0"),
        ({"epsilon": 20}, r"epsilon must be a number of at least 0 and at most 1, got 20"),
        ({"num_tasks": 2, "num_generations": 2, "num_minibatches": 5}, r"num_minibatches must be at most the 4 traj"),
        ({"per_device_train_batch_size": 0}, r"per_device_train_batch_size must be a whole number of at least 1"),
        ({"loss_type": "mean"}, r"loss_type must be one of .*token-mean.* got 'mean'"),
        ({"seed": -1}, r"seed must be a whole number of at least 0, got -1"),
        ({"sampling": {"temprature": 1.0}}, r"TypeError: GRPOConfig: sampling must hold .*got \['temprature'\]"),
        ({"sampling": {"temperature": "1"}}, r"TypeError: SamplingConfig: temperature must be a number .* got '1'"),
        ({"sampling": None}, r"TypeError: GRPOConfig: sampling must be a SamplingConfig or a mapping"),
        ({"credit_options": [("gamma", 1.0)]}, r"TypeError: GRPOConfig: credit_options must map"),
        ({"credit_options": {1: 2}}, r"TypeError: GRPOConfig: credit_options must map"),
        ({"report_to": "mlflow"}, r"ValueError: GRPOConfig: report_to must be \"none\", .* got \['mlflow'\]"),
        ({"report_to": ("none", "wandb")}, r"report_to must be"),
        ({"report_to": 3}, r"TypeError"),
    ],
)
def test_the_message_names_rule_value_and_fix(options, message):
    with pytest.raises((TypeError, ValueError)) as error:
        GRPOConfig(**options)
    assert re.search(message, f"{type(error.value).__name__}: {error.value}")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", None),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("top_k", 1.5),
        ("max_completion_length", 0),
        ("max_completion_length", "512"),
        ("max_trajectory_tokens", 0),
        ("max_prompt_length", True),
        ("max_prompt_length", None),
    ],
)
def test_sampling_options_too(field, value):
    with pytest.raises((TypeError, ValueError), match=f"SamplingConfig: {field} must be .*, got"):
        SamplingConfig(**{field: value})


def test_what_is_right_is_taken_as_plain_numbers(tmp_path):
    config = GRPOConfig(
        learning_rate=np.float32(0.5),
        num_tasks=np.int64(3),
        beta=0,
        output_dir=tmp_path,
        sampling={"temperature": np.float64(0.5)},
    )
    json.dumps(asdict(config))
    assert (config.learning_rate, config.num_tasks, config.beta) == (0.5, 3, 0)
    assert (type(config.learning_rate), type(config.num_tasks)) == (float, int)
    assert config.output_dir == str(tmp_path)
    assert config.sampling == SamplingConfig(temperature=0.5)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("none", ()),
        (None, ()),
        ([], ()),
        (["none"], ()),
        ("wandb", ("wandb",)),
        (["tensorboard", "wandb", "wandb"], ("tensorboard", "wandb")),
    ],
)
def test_report_to_as_elsewhere(given, names):
    assert GRPOConfig(report_to=given).report_to == names


def test_all_trackers_are_those_that_are_installed(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "tensorboard" else None)
    assert GRPOConfig(report_to="all").report_to == ("tensorboard",)


def test_an_option_spoilt_after_the_configuration_was_made_is_named_by_the_trainer(tmp_path):
    config = GRPOConfig(output_dir=tmp_path, num_tasks=2)
    config.learning_rate = "1e-6"
    with pytest.raises(TypeError, match="learning_rate must be a number"):
        GRPOTrainer(tiny_model(), tiny_tokenizer(), ToySuite(), config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refresh_every": 0}, "Recipe: refresh_every must be a whole number of at least 1, got 0"),
        ({"ema_rate": 1.5}, "Recipe: ema_rate must be a number above 0 and at most 1, got 1.5"),
        ({"ema_rate": "0.05"}, "Recipe: ema_rate must be a number"),
        ({"policy_weight": -1.0}, "Recipe: policy_weight must be a number of at least 0"),
    ],
)
def test_recipes_are_checked_where_they_are_made(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Recipe("grpo", **options)


# ---- options of credit methods


@pytest.mark.parametrize("name", list_credits())
def test_the_made_up_batch_suits_every_method(name):
    method = get_credit(name)
    credit = method(made_up_inputs(method, 4), step=0)
    assert bool(credit.advantages.isfinite().all())
    assert bool((credit.advantages != 0).any())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("agent_opsd", {"gamma": 1.5}),
        ("agent_opsd", {"lam": -0.1}),
        ("agent_opsd", {"band": 0.0}),
        ("agent_opsd", {"granularity": "word"}),
        ("agent_opsd", {"eps": 0.0}),
        ("grpo", {"normalization_scope": "task"}),
        ("grpo", {"eps": -1.0}),
        ("gigpo", {"gamma": 2.0}),
        ("rlsd", {"decay_steps": 0}),
        ("align_opsd", {"top_k": 0}),
        ("align_opsd", {"similarity_threshold": 1.0}),
        ("align_opsd", {"alpha_max": 1.5}),
        ("align_opsd", {"mixture": "mean"}),
        ("align_opsd", {"spans": "sentence"}),
        ("align_opsd_alfworld_3b", {"boundary_quantile": 1.5}),
        ("agent_opsd", {"gamma": "0.9"}),
    ],
)
def test_an_option_out_of_range_is_named_before_the_first_rollout(tmp_path, name, options):
    config = GRPOConfig(output_dir=tmp_path, num_tasks=2, num_generations=2, credit=name, credit_options=options)
    with pytest.raises((TypeError, ValueError), match=f"{next(iter(options))}|numbers?|float"):
        GRPOTrainer(tiny_model(), tiny_tokenizer(), ToySuite(), config)


def test_a_method_of_ones_own_is_not_called(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    calls = []

    @register_credit("mine_for_the_config_test")
    def mine(inputs, *, size=1):
        calls.append(size)
        raise ValueError("a batch this small is not for me")

    try_options(get_credit("mine_for_the_config_test", size=8), 4)
    assert calls == []
