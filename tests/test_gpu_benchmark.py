"""benchmarks/gpu.py and benchmarks/trl.py run before a machine is paid for."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def output_of(*arguments: str, timeout: float) -> str:
    command = [sys.executable, *arguments]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.mark.slow
def test_figures_of_a_gpu_are_printed_for_a_toy_on_a_cpu():
    lines = output_of("benchmarks/gpu.py", "--toy", timeout=120).splitlines()
    rows = {cells[1]: cells[2:4] for cells in (line.replace(" ", "").split("|") for line in lines) if len(cells) == 5}
    assert rows["toy"] == ["plain,separaterows", "continuous,sharedprefixes"]
    for name in ("rollout,sampledtokensasecond", "scoring,tokensasecond", "training,tokensasecond"):
        assert all(float(figure.replace(",", "")) > 0 for figure in rows[name])
    saved = [float(share) for share in rows["shareoftokenssaved"]]
    assert saved[0] == 0 < saved[1]
    # a response ends by chance: before its budget of 16 tokens, for most of the 2 x 4 x 3 turns
    assert 24 < float(rows["sampledtokens"][0]) < 24 * 14


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="turncredit[trl] is not installed")
def test_both_trainers_take_the_same_step_from_the_same_rollouts():
    arguments = ("--tables", "policy", "--rounds", "1", "--updates", "1", "--threads", "1")
    lines = output_of("benchmarks/trl.py", *arguments, "--columns", "turncredit", "TRL", timeout=500).splitlines()
    row = next(line for line in lines if line.startswith("| gradient norm of the first update"))
    ours, theirs = (float(cell) for cell in row.split("|")[2:4])
    assert ours == pytest.approx(theirs, rel=1e-2)
