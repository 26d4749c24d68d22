"""Every option of a run is checked where the configuration is made, by kind and by range."""

import copy
import json
import math
import pickle
import re
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.credit import get_credit, list_credits, register_credit, registry
from turncredit.envs import Task
from turncredit.rollout import SamplingConfig
from turncredit.trainers import EnvironmentConfig, GRPOConfig, GRPOTrainer, Method, Teacher, trl
from turncredit.trainers.config import _RULES, GROUPS
from turncredit.trainers.methods.tryout import made_up_inputs, try_options
from turncredit.trainers.rehearsal import check_tasks
from turncredit.trainers.rows import MicroBatchLimits

NUMBERS = [name for name, rule in _RULES.items() if rule.kind in ("int", "float")]
TEXTS = [name for name, rule in _RULES.items() if rule.kind == "str"]
FLAGS = [name for name, rule in _RULES.items() if rule.kind == "bool"]
NONE = {name for name, rule in _RULES.items() if rule.none}


def test_every_option_has_a_rule():
    assert set(GRPOConfig().to_dict()) == {
        *_RULES,
        *(field.name for field in fields(SamplingConfig)),
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
        (
            {"sampling": {"temprature": 1.0}},
            r"TypeError: GRPOConfig: sampling must hold .*got \['temprature'\]; did you mean 'temperature'\?",
        ),
        ({"sampling": {"temperature": "1"}}, r"TypeError: SamplingConfig: temperature must be a number .* got '1'"),
        ({"sampling": None}, r"TypeError: GRPOConfig: sampling must be SamplingConfig\(..\) or a mapping"),
        ({"credit_options": [("gamma", 1.0)]}, r"TypeError: GRPOConfig: credit_options must map"),
        ({"credit_options": {1: 2}}, r"TypeError: GRPOConfig: credit_options must map"),
        ({"report_to": "mlflow"}, r"ValueError: GRPOConfig: report_to must be \"none\", .* got \['mlflow'\]"),
        ({"report_to": ("none", "wandb")}, r"report_to must be"),
        ({"report_to": 3}, r"TypeError"),
        ({"num_env": 3}, r"TypeError: GRPOConfig: options must be known, got 'num_env'; did you mean 'num_envs'\?"),
        ({"xyz": 3}, r"TypeError: GRPOConfig: options must be known, got 'xyz'; known are beta, "),
        ({"environments": {"num_env": 3}}, r"environments must hold .*got \['num_env'\]; did you mean 'num_envs'\?"),
        ({"environments": {"num_envs": 0}}, r"ValueError: EnvironmentConfig: num_envs must be a whole number"),
        ({"optimizer": EnvironmentConfig()}, r"TypeError: GRPOConfig: optimizer must be OptimizerConfig\(..\) or"),
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


def test_an_option_spoilt_after_the_configuration_was_made_is_named(tmp_path):
    config = GRPOConfig(output_dir=tmp_path, num_tasks=2)
    for name, value in (("learning_rate", "1e-6"), ("num_tasks", "2")):
        with pytest.raises(TypeError, match=f"GRPOConfig: {name} must be a"):
            setattr(config, name, value)
    config.delta = 1.1
    with pytest.raises(ValueError, match=r"delta must exceed 1 \+ epsilon_high"):
        GRPOTrainer(tiny_model(), tiny_tokenizer(), ToySuite(), config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refresh_every": 0}, "Teacher: refresh_every must be a whole number of at least 1, got 0"),
        ({"ema_rate": 1.5}, "Teacher: ema_rate must be a number above 0 and at most 1, got 1.5"),
        ({"ema_rate": "0.05"}, "Teacher: ema_rate must be a number"),
        ({"weights": 3}, "Teacher: weights must be text or a model, got 3"),
        ({"context": ""}, "Teacher: context must be a name, a function or None"),
        ({"context": None}, "Teacher: context must be given where the weights are the policy's"),
        ({"policy_weight": -1.0}, "Method: policy_weight must be a number of at least 0"),
        ({"student_context": ""}, "Method: student_context must be a name or None"),
    ],
)
def test_methods_and_teachers_are_checked_where_they_are_made(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        (Teacher if "Teacher" in message else partial(Method, "grpo"))(**options)


# ---- groups and flat names


def test_options_are_read_and_set_in_their_group_or_by_name():
    config = GRPOConfig(environments=EnvironmentConfig(num_envs=3, num_workers=1), num_envs=5, temperature=0.5)
    assert config.environments == EnvironmentConfig(num_envs=5, num_workers=1)
    assert (config.num_envs, config.num_workers, config.temperature) == (5, 1, 0.5)
    config.num_workers = 4
    config.top_p = 0.9
    assert (config.environments.num_workers, config.sampling) == (4, SamplingConfig(temperature=0.5, top_p=0.9))
    assert len(fields(GRPOConfig)) <= 30
    assert GRPOConfig().credit == "grpo"


def test_a_name_that_is_no_option_is_neither_set_nor_read():
    config = GRPOConfig()
    with pytest.raises(AttributeError, match="GRPOConfig: 'num_env' is no option; did you mean 'num_envs'"):
        config.num_env = 3
    with pytest.raises(AttributeError, match="did you mean 'learning_rate'"):
        _ = config.learning_rat


def test_replace_equality_copies_pickles_and_json():
    config = GRPOConfig("run", num_envs=3, credit_options={"eps": 1e-3}, report_to="wandb", delta=None)
    other = replace(config, num_envs=2, temperature=0.0, seed=1)
    assert (other.num_envs, other.temperature, other.seed, other.delta) == (2, 0.0, 1, None)
    assert (config.num_envs, config.temperature) == (3, 1.0)
    assert replace(other, num_envs=3, temperature=1.0, seed=0) == config != other
    for again in (
        pickle.loads(pickle.dumps(other)),
        copy.deepcopy(other),
        GRPOConfig(**json.loads(json.dumps(asdict(other)))),
        GRPOConfig(**json.loads(json.dumps(other.to_dict()))),
    ):
        assert again == other
    assert not set(config.to_dict()) & set(GROUPS)


# ---- TRL's names

PAGE = (Path(__file__).parents[2] / "docs" / "trl.md").read_text()


def names_of(section):
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_the_page_of_trls_names_says_what_is_accepted():
    defaults = GRPOConfig().to_dict() | {"scale_rewards": True}
    for name in names_of("The same") | names_of("The same name, and a difference"):
        assert getattr(GRPOConfig(**{name: defaults[name]}), name) == defaults[name], name
    assert names_of("Not here") == set(trl._ABSENT)


def test_trls_values_have_their_meaning_here():
    config = GRPOConfig(loss_type="dr_grpo", scale_rewards=False, use_vllm=False, min_p=None, repetition_penalty=1.0)
    assert (config.loss_type, config.credit_options) == ("seq-mean-token-sum-norm", {"scale_rewards": False})
    assert config == GRPOConfig(loss_type="seq-mean-token-sum-norm", credit_options={"scale_rewards": False})
    assert GRPOConfig(loss_type="grpo").loss_type == "seq-mean-token-mean"
    assert GRPOConfig(loss_type="dapo").loss_type == "token-mean"
    assert GRPOConfig(credit_options={"scale_rewards": "none"}).credit_options == {"scale_rewards": False}
    assert GRPOConfig(scale_rewards="group", credit_options={"eps": 0.1}).credit_options == {
        "eps": 0.1,
        "scale_rewards": True,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_vllm": True}, "use_vllm must be False or left out, got True; responses are sampled by Hugging Face"),
        ({"vllm_mode": "colocate"}, "vllm_mode must be left out, got 'colocate'"),
        (
            {"gradient_accumulation_steps": 1},
            "gradient_accumulation_steps must be left out, got 1; num_tasks x num_gen",
        ),
        ({"bf16": True}, r"bf16 must be False or left out, got True; pass accelerator=Accelerator\(mixed_precision"),
        ({"min_p": 0.1}, "min_p must be None or left out, got 0.1; use temperature, top_p and top_k"),
        ({"scale_rewards": "batch"}, r'scale_rewards must be True \("group"\) or False \("none"\), got .batch'),
        ({"loss_type": "bnpo"}, "loss_type must be one of .*'grpo', 'dapo', 'dr_grpo'"),
        ({"loss_type": "cispo"}, 'loss_type must be an average, got "cispo"; write policy_loss="cispo"'),
        (
            {"importance_sampling_level": "sequence"},
            'importance_sampling_level must be "token", "turn" or "trajectory"',
        ),
    ],
)
def test_what_trl_has_and_this_library_has_not_is_refused_with_advice(options, message):
    with pytest.raises(ValueError, match=f"GRPOConfig: {message}"):
        GRPOConfig(**options)


def test_the_trainer_takes_trls_names_of_its_arguments(tmp_path):
    config, tokenizer = GRPOConfig(tmp_path, num_tasks=2, num_generations=2, preflight=False), tiny_tokenizer()
    with GRPOTrainer(tiny_model(), suite=ToySuite(), args=config, processing_class=tokenizer) as run:
        assert (run.config, run.tokenizer) == (config, tokenizer)
    for options, message in (
        ({"config": config, "args": config}, "config must be given once, got config= and TRL's args=; leave one out"),
        ({"processing_class": tokenizer, "tokenizer": tokenizer}, "tokenizer must be given once"),
        ({"processing_class": None}, "tokenizer must be given, got None; pass tokenizer= or processing_class="),
        ({"suite": None}, "suite must be given, got None; pass suite="),
    ):
        given = {"suite": ToySuite(), "config": config, "processing_class": tokenizer}
        with pytest.raises(TypeError, match=f"GRPOTrainer: {message}"):
            GRPOTrainer(tiny_model(), **{**given, **options})


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


@pytest.mark.parametrize(
    ("options", "device", "tokens"),
    [({}, "cpu", 4096), ({}, "cuda", 16384), ({"micro_batch_tokens": 100}, "cpu", 100)],
)
def test_a_forward_pass_holds_what_suits_the_device_or_what_was_asked_for(options, device, tokens):
    assert GRPOConfig(**options).tokens_per_pass(device) == tokens
    assert MicroBatchLimits.of(GRPOConfig(**options), device).tokens == tokens


def test_a_panel_smaller_than_asked_for_is_said(caplog):
    train, held_out = [Task("a", "x", "train")], [Task("b", "x", "eval")]
    check_tasks(GRPOConfig(num_tasks=1, num_eval_tasks=1), train, held_out)
    assert not caplog.text
    check_tasks(GRPOConfig(num_tasks=1, num_eval_tasks=3), train, held_out)
    assert "num_eval_tasks is 3, but only 1 tasks are held out" in caplog.text
