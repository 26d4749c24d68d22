"""Whole updates where rows share prefixes: the weights after them, every metric, exact resume, all methods."""

from __future__ import annotations

import functools
import json
from typing import Any
from unittest import mock

import pytest
import torch
from accelerate import Accelerator
from helpers import recorder
from helpers.recorder import NAMES, record, settings
from helpers.reference_update import ReferenceRun, give_grpo_credit
from helpers.run_distributed import saved, timeless
from helpers.shared_prefixes import apart, weights_of
from helpers.shared_updates import append_only_rollouts
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from helpers.update_cases import ADAM_EPS, Angles, config, run_updates

from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOConfig, GRPOTrainer
from turncredit.trainers.losses import LOSS_TYPES

SHARING = ("shared_share", "padding_share")
rollouts = functools.cache(append_only_rollouts)


def about_learning(line):
    return {
        name: value
        for name, value in line.items()
        if not name.endswith(SHARING) and not name.startswith(("time/", "rollout/workers"))
    }


def assert_same_metrics(ours, theirs, relative=1e-5, absolute=1e-6):
    assert len(ours) == len(theirs)
    for got, want in zip(ours, theirs, strict=True):
        got, want = about_learning(got), about_learning(want)
        assert got.keys() == want.keys()
        for name, value in want.items():
            assert got[name] == pytest.approx(value, rel=relative, abs=absolute, nan_ok=True), name


def assert_same_updates(tmp_path, make=tiny_model, updates=2, **changes):
    """With sharing and without: the weights have moved to the same place; returns the metrics with sharing."""
    results = []
    for share in (True, False):
        model = make()
        settings = config(tmp_path / str(share), share_prefixes=share, **changes)
        metrics = run_updates(model, settings, rollouts(updates), answers=None, encoder=Angles())
        results.append((weights_of(model), metrics))
    (ours, got), (theirs, want) = results
    start = weights_of(make())
    moved = max(float((theirs[name] - start[name]).abs().max()) for name in start)
    assert moved > 1e-3
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
        assert apart(ours[name] - start[name], value - start[name], 1e-2) < 1e-3, name
    assert_same_metrics(got, want)
    return got


@pytest.mark.parametrize(
    "changes",
    [
        *({"loss_type": loss_type} for loss_type in LOSS_TYPES),
        {"num_iterations": 3, "num_minibatches": 1},
        {"num_iterations": 1, "num_minibatches": 4},
        {"recompute_logprobs": True},
        {"micro_batch_tokens": 64},
        {"per_device_train_batch_size": 3},
        {"credit": "sdar"},
        {"credit": "skill_sd"},
        {"credit": "opsd"},
        {"credit": "agent_opsd"},
        {"credit": "step_opsd"},
    ],
    ids=lambda changes: " ".join(f"{k}={v}" for k, v in changes.items()),
)
def test_updates_are_those_of_separate_rows(tmp_path, changes):
    metrics = assert_same_updates(tmp_path, **changes)
    for line in metrics:
        for kind in ("train", "score"):
            assert 0 < line[f"{kind}/shared_share"] < 1
            assert 0 <= line[f"{kind}/padding_share"] <= 0.1


def test_updates_equal_a_plain_loop_over_rows(tmp_path):
    """The loop knows nothing of the trainer: `helpers.reference_update`."""
    got, expected = tiny_model(), tiny_model()
    settings = config(tmp_path)
    metrics = run_updates(got, settings, rollouts())

    def credit(rows, trajectories, run, step):
        give_grpo_credit(rows, trajectories)

    run = ReferenceRun(expected, settings, credit)
    for step, trajectories in enumerate(rollouts()):
        run.update(trajectories, step)
    assert metrics[0]["train/shared_share"] > 0.3
    pairs = zip(expected.parameters(), tiny_model().parameters(), strict=True)
    assert max(float((after - before).detach().abs().max()) for after, before in pairs) > 1e-3
    for (name, ours), theirs in zip(got.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_checkpointed_layers_and_untied_heads(tmp_path):
    def make():
        model = tiny_model(tie_word_embeddings=False)
        model.gradient_checkpointing_enable()
        return model

    assert_same_updates(tmp_path, make, updates=1, num_minibatches=1)


def test_an_adapter_with_its_reference(tmp_path):
    peft = pytest.importorskip("peft")

    def make():
        torch.manual_seed(1)
        lora = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
        return peft.get_peft_model(tiny_model(), lora)

    assert_same_updates(tmp_path, make, updates=1)


def run_settings(folder, **changes) -> GRPOConfig:
    settings = {
        "output_dir": str(folder),
        "max_steps": 4,
        "num_tasks": 4,
        "num_generations": 4,
        "num_workers": 0,
        "credit": "agent_opsd",
        "learning_rate": 1e-2,
        "beta": 0.01,
        "eval_steps": 0,
        "num_eval_tasks": 3,
        "save_steps": 0,
        "num_minibatches": 2,
        "sampling": SamplingConfig(max_completion_length=6),
    }
    return GRPOConfig(**{**settings, **changes})


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("credit", ["agent_opsd", "sdar"])
def test_a_resumed_run_is_the_whole_run_bit_for_bit(tmp_path, credit):
    def run(folder):
        suite = ToySuite(num_tasks=8, lenient=True, history_length=9)
        return GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, run_settings(folder, credit=credit))

    with run(tmp_path / "whole") as whole:
        whole.train()
    with run(tmp_path / "parts") as first:
        while first.step < 2:
            first.train_step()
        first.save()
    torch.manual_seed(99)
    with run(tmp_path / "parts") as second:
        second.train(resume_from=True)
    a, b = saved(tmp_path / "whole"), saved(tmp_path / "parts")
    assert all(torch.equal(a[name], b[name]) for name in a)
    by_step = {line["step"]: timeless(line) for line in lines(tmp_path / "whole")}
    later = [timeless(line) for line in lines(tmp_path / "parts") if line["step"] > 2]
    assert len(later) == 2
    assert all(line == by_step[line["step"]] for line in later)
    assert all(line["train/shared_share"] > 0 for line in later)


def at_a_lower_rate(settings: GRPOConfig) -> GRPOConfig:
    settings.learning_rate = 1e-3
    return settings


class SteadyAdamW(torch.optim.AdamW):
    """A class, since DeepSpeed makes subclasses of what stands in AdamW's place when it is imported."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options | {"eps": ADAM_EPS})


def assert_like_plain(name: str, tmp_path):
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    gentle = mock.patch.object(recorder, "settings", lambda *args: at_a_lower_rate(settings(*args)))
    # large steps of weights whose gradient is all rounding, and a KL that is exponential in them, would be compared
    with gentle, mock.patch("torch.optim.AdamW", SteadyAdamW):
        runs = [record(name, accelerator, tmp_path / str(plain), plain) for plain in (False, True)]
    ours, theirs = ([{k: float.fromhex(v) for k, v in line.items()} for line in run["updates"]] for run in runs)
    assert_same_metrics(ours, theirs)
    assert len(about_learning(theirs[0])) > 20


@pytest.mark.parametrize("name", ["agent_opsd", "align_opsd", "skill_sd"])
def test_a_method_trains_like_it_does_plain(tmp_path, name):
    """Rollouts, scores, credit and two updates of two epochs, by default and with everything computed row by row."""
    assert_like_plain(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES.split())
def test_every_method_trains_like_it_does_plain(tmp_path, name):
    assert_like_plain(name, tmp_path)


def test_shares_of_an_update_without_a_usable_rollout_and_without_sharing(tmp_path):
    dead = [[t.__class__(**{**vars(t), "failure": "died"}) for t in rollouts(1)[0][:4]] + list(rollouts(1)[0][4:])]
    (line,) = run_updates(tiny_model(), config(tmp_path / "a"), dead)
    assert 0 < line["train/shared_share"] < 1
    (line,) = run_updates(tiny_model(), config(tmp_path / "b", share_prefixes=False), rollouts(1))
    assert line["train/shared_share"] == line["score/shared_share"] == 0
    assert 0 < line["train/padding_share"] < 1
