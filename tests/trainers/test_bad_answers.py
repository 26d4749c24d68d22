"""An update goes on, and counts what it left out, when environments answer wrongly."""

from __future__ import annotations

import functools
import json
import math

import pytest
import torch
from helpers import result_fakes as known
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToyEnv, ToySuite

from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOConfig, GRPOTrainer

FAULTS = [known.BAD_STEPS[name][0] for name in ("reward None", "reward nan", "tuple of 5", "success 10", "info text")]


class SometimesBad(ToyEnv):
    """The third task of the suite answers wrongly from its second turn on."""

    def step(self, action):
        result = super().step(action)
        return FAULTS[len(action) % len(FAULTS)]() if self.task_id.endswith("train2") and self.turns > 1 else result


class SometimesBadSuite(ToySuite):
    def make_env(self):
        return functools.partial(SometimesBad, self.needed)


def run(folder, suite, **changes):
    settings = {
        "output_dir": str(folder),
        "max_steps": 1,
        "num_tasks": 4,
        "num_generations": 4,
        "credit": "grpo",
        "sampling": SamplingConfig(max_completion_length=8),
        "num_envs": 8,
        "num_workers": 0,
        "learning_rate": 3e-3,
        "eval_steps": 0,
        "save_steps": 0,
    }
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, GRPOConfig(**{**settings, **changes})) as trainer:
        before = [p.detach().clone() for p in trainer.model.parameters()]
        trainer.train()
        moved = any(not torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    log = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return log[-1], moved


def test_an_update_counts_the_episodes_it_leaves_out_and_trains_on_the_others(tmp_path):
    metrics, moved = run(tmp_path, SometimesBadSuite(needed=2, lenient=True))
    assert metrics["rollout/failed"] == 4
    assert moved
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_run_in_which_every_answer_is_wrong_stops_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(SometimesBad, "step", lambda self, action: ("room", 1.0, True, {}))
    with pytest.raises(RuntimeError, match="bad_result: step: the result must be a StepResult, got "):
        run(tmp_path, SometimesBadSuite(), max_steps=9, max_skipped_steps=1)
