"""What a continued run may have otherwise: addresses, counters, caches, NaN; and ordinary configurations."""

import enum
import functools
import json
import logging
from dataclasses import asdict, replace
from unittest import mock

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOConfig, GRPOTrainer
from turncredit.trainers.checkpoint import list_checkpoints
from turncredit.trainers.identity import check_resumable, describe_run, describe_suite, fingerprint_of, plain, unmoved
from turncredit.trainers.rows import MicroBatchLimits


def trainer(folder, suite, **changes):
    settings = {
        "max_steps": 1,
        "num_tasks": 2,
        "num_generations": 2,
        "credit": "grpo",
        "sampling": SamplingConfig(max_completion_length=4),
        "num_workers": 0,
        "beta": 0.0,
        "eval_steps": 0,
        "num_eval_tasks": 1,
    }
    return GRPOTrainer(
        tiny_model(), tiny_tokenizer(), suite, GRPOConfig(output_dir=str(folder), **{**settings, **changes})
    )


class Keeps(ToySuite):
    """Counts, caches and holds what is no option, and is the same object in both parts of a run."""

    def __init__(self):
        super().__init__(num_tasks=8, needed=1, lenient=True)
        self.calls, self.seen, self.unset, self.words = 0, [], float("nan"), [str(i) for i in range(1000)]

    def messages(self, task, history, observation):
        self.calls += 1
        self.seen.append(self.calls)
        return super().messages(task, history, observation)


def test_a_suite_that_counted_meanwhile_is_the_same_suite(tmp_path):
    suite = Keeps()
    with trainer(tmp_path, suite) as run:
        run.train()
        assert suite.calls > 0
    with trainer(tmp_path, suite, max_steps=2) as run:
        run.train(resume_from=True)
        assert run.step == 2
    suite.history_length = 1
    with trainer(tmp_path, suite, max_steps=3) as run, pytest.raises(ValueError, match=r"suite.history_length: 2 -> 1"):
        run.train(resume_from=True)


def test_only_what_moved_is_left_out():
    before = {"max_turns": 4, "calls": 0, "unset": float("nan"), "gone": 1}
    assert list(unmoved(before, {"max_turns": 4, "calls": 3, "unset": float("nan")})) == ["max_turns", "unset"]


def test_a_long_list_is_a_hash_that_tells_lists_apart():
    one, other = Keeps(), Keeps()
    other.words[500] = "another"
    words = [describe_suite(suite)["words"] for suite in (one, other, Keeps())]
    assert words[0] == words[2] != words[1]
    assert len(words[0]) < 60


def test_a_property_that_raises_is_no_option():
    class Suite:
        name = "mine"

        @property
        def history_length(self):
            raise RuntimeError("not yet")

    assert describe_suite(Suite()) == {"name": "mine"}


def test_no_address_in_memory_is_compared():
    class Thing:
        pass

    class Mode(enum.Enum):
        A = Thing()

    values = [Thing(), Mode.A, functools.partial(max, 1), abs, lambda x: x, torch.nn.Linear, {"f": [Thing()]}]
    assert "0x" not in str([plain(value) for value in values])
    assert plain(Thing()) == plain(Thing())
    assert plain(abs) == "abs"
    assert plain(functools.partial(min, 1)) != plain(functools.partial(max, 1))


def test_a_smoke_test_of_a_run_with_warmup_is_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        assert GRPOConfig(max_steps=2, warmup_steps=10).warmup_steps == 10
    assert "warmup_steps = 10 is more than max_steps = 2" in caplog.text
    caplog.clear()
    GRPOConfig(max_steps=0, warmup_steps=10)  # to evaluate
    assert caplog.text == ""


def test_empty_entries_and_flags_of_numpy_are_ordinary():
    given = {"credit_options": None, "chat_template_kwargs": None, "preflight": np.bool_(False)}
    config = GRPOConfig(**given)
    assert (config.credit_options, config.chat_template_kwargs) == ({}, {})
    assert config.preflight is False


EARLIER = {
    "output_dir": "elsewhere",
    "max_steps": 1,
    "num_tasks": 2,
    "num_generations": 2,
    "credit": "grpo",
    "credit_options": {"eps": 0.001},
    "sampling": {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "max_completion_length": 4,
        "max_trajectory_tokens": None,
        "max_prompt_length": 2048,
    },
    "chat_template_kwargs": {},
    "num_envs": 64,
    "num_workers": 0,
    "env_timeout": 120.0,
    "epsilon": 0.2,
    "epsilon_high": 0.24,
    "delta": 3.0,
    "beta": 0.0,
    "entropy_coef": 0.001,
    "loss_type": "seq-mean-token-mean",
    "learning_rate": 1e-06,
    "weight_decay": 0.0,
    "warmup_steps": 0,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 1.0,
    "num_iterations": 1,
    "num_minibatches": 1,
    "micro_batch_tokens": 16384,
    "eval_steps": 0,
    "num_eval_tasks": 1,
    "report_to": [],
    "seed": 0,
    "an_option_that_is_no_more": 3,
}
"""The options in a checkpoint of the versions without groups but sampling's, some left out."""


def test_options_of_a_checkpoint_are_compared_whether_they_lie_in_groups_or_not(tmp_path):
    options = {"credit_options": {"eps": 0.001}, "micro_batch_tokens": 16384}
    with trainer(tmp_path, ToySuite(num_tasks=8), **options) as run:
        now, description = fingerprint_of(run), describe_run(run)
    changed = replace(run.config, learning_rate=1e-3, loss_type="dapo", temperature=0.5, num_envs=8)
    state = {"config": EARLIER, "fingerprint": now, "adapter": False}
    switched = ["continuous_batching: False -> True", "share_prefixes: False -> True"]
    assert check_resumable(state, run.config, now, description, True) == switched
    without = {"share_prefixes": False, "continuous_batching": False}
    earlier = replace(run.config, **without)
    assert check_resumable(state, earlier, now, description, False) == []
    for saved in (EARLIER | dict.fromkeys(without, True), asdict(run.config), run.config.to_dict()):
        state = {"config": json.loads(json.dumps(saved)), "fingerprint": now, "adapter": False}
        assert check_resumable(state, replace(run.config, num_envs=8), now, description, False) == []
        assert check_resumable(state, changed, now, description, True) == [
            "learning_rate: 1e-06 -> 0.001",
            "loss_type: 'seq-mean-token-mean' -> 'token-mean'",
            "temperature: 1.0 -> 0.5",
        ]


def test_an_option_that_a_method_did_not_have_was_at_its_default(tmp_path):
    def check(run, saved):
        state = {"config": run.config.to_dict(), "fingerprint": fingerprint_of(run), "adapter": False, "method": saved}
        return check_resumable(state, run.config, fingerprint_of(run), describe_run(run), True)

    with trainer(tmp_path, ToySuite(num_tasks=8), credit="gigpo") as run:
        saved = json.loads(json.dumps(describe_run(run)["method"]))
        del saved["credit_options"]["outcome_discount"]
        for name in ("anchor", "anchor_threshold", "anchor_encoder"):
            del saved["options"][name]
        assert check(run, saved) == []
        saved["credit_options"]["discount"] = 0.9
        saved["options"]["lost"] = 1
        assert check(run, saved) == [
            "method.credit_options.discount: 0.9 -> 0.95",
            "method.options.lost: 1 -> absent",
        ]
    with trainer(tmp_path, ToySuite(num_tasks=8), credit="grpo") as run:
        saved = json.loads(json.dumps(describe_run(run)["method"]))
        run.method.credit.options["outcome_discount"] = 0.9  # as an edited method passes it on, by the name it had
        del saved["credit_options"]["outcome_discount"]
        assert check(run, saved) == ["method.credit_options.outcome_discount: 1.0 -> 0.9"]


def test_a_checkpoint_holds_every_option_by_its_own_name(tmp_path):
    with trainer(tmp_path, ToySuite(num_tasks=8)) as run:
        run.train()
    state = json.loads((list_checkpoints(tmp_path / "checkpoints")[-1] / "trainer_state.json").read_text())
    assert state["config"] == json.loads(json.dumps(run.config.to_dict()))


def test_all_checkpoints_are_kept_without_a_limit(tmp_path):
    with trainer(tmp_path, ToySuite(num_tasks=8), max_steps=4, save_steps=1, save_total_limit=None) as run:
        run.train()
    assert len(list_checkpoints(tmp_path / "checkpoints")) == 4


def test_another_teacher_is_noticed_by_its_weights(tmp_path):
    def make(seed):
        settings = GRPOConfig(output_dir=str(tmp_path), max_steps=1, num_tasks=2, num_generations=2, num_workers=0)
        settings.credit, settings.max_completion_length, settings.beta, settings.num_eval_tasks = (
            "agent_opsd",
            4,
            0.0,
            1,
        )
        options = {"teacher_model": tiny_model(seed)}
        return GRPOTrainer(tiny_model(), tiny_tokenizer(), ToySuite(num_tasks=8), settings, **options)

    with make(5) as run:
        run.save()
    with make(5) as run:
        run.resume(True)
    with make(6) as run, pytest.raises(ValueError, match=r"setup\.teacher_weights"):
        run.resume(True)


def test_room_that_was_made_stays_made_where_the_options_ask_for_the_same(tmp_path):
    suite = ToySuite(num_tasks=8)
    with trainer(tmp_path, suite) as run:
        run.train_step()
        run.limits.tokens, run.limits.rows = 7, 3
        run.save()
    for changes, limits in [({}, (7, 3)), ({"per_device_train_batch_size": 2}, (4096, 2))]:
        with trainer(tmp_path, suite, **changes) as run:
            run.resume(True, allow_changed_config=True)
            assert (run.limits.tokens, run.limits.rows) == limits
    with trainer(tmp_path, suite) as run, mock.patch.object(GRPOConfig, "tokens_per_pass", return_value=16384):
        run.limits = MicroBatchLimits.of(run.config)
        run.resume(True)
        assert (run.limits.tokens, run.limits.rows) == (16384, None), "another device"
