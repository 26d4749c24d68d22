"""Ctrl-C on one of two processes, and the best model, plainly and under ZeRO-3."""

import json
from pathlib import Path

import pytest
import torch
from helpers.processes import finish, start
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

SCRIPT = Path(__file__).parents[1] / "helpers" / "run_stopped.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "environment"), [(-1, {"ACCELERATE_USE_CPU": "true"}), (3, {"DS_ACCELERATOR": "cpu"})]
)
def test_all_stop_after_the_same_update_and_go_on_together(tmp_path, stage, environment):
    if stage == 3:
        pytest.importorskip("deepspeed")
    for code, output in finish(start(SCRIPT, str(stage), str(tmp_path), **environment), timeout=400):
        assert code == 0, output[-4000:]
        assert "stopped 2 130" in output
        assert "trained 4" in output
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2, 3, 4]
    best = json.loads((tmp_path / "best" / "best.json").read_text())
    log = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert best["success"] == max(line["eval/success"] for line in log)
    assert log[best["step"]]["eval/success"] == best["success"]
    AutoModelForCausalLM.from_pretrained(tmp_path / "best")
    after = load_file(tmp_path / "after" / "model.safetensors")
    last = load_file(tmp_path / "checkpoints" / "step-000004" / "model" / "model.safetensors")
    assert after.keys() == last.keys()
    assert all(torch.equal(after[name], last[name]) for name in last)
