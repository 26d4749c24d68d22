"""Two CPU processes whose rows share prefixes, plain and under DeepSpeed: the numbers of separate rows on one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from helpers.processes import finish, start
from helpers.run_shared import CASES, train
from helpers.tiny import tiny_model

QUIET = {"PYTHONWARNINGS": "ignore"}
"""A warning for every collective call would fill the pipe that is read at the end, and block the process."""
SCRIPT = Path(__file__).parents[1] / "helpers" / "run_shared.py"


@pytest.fixture(scope="module")
def alone():
    """The same steps on one process, every row by itself."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    accelerator = Accelerator(cpu=True)
    return {case: train(accelerator, case, share=False) for case in CASES}


def learned(line):
    return {name: value for name, value in line.items() if "share" not in name}


def compare(folder: Path, alone) -> None:
    ranks = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]
    start = dict(tiny_model().named_parameters())
    for case, expected in alone.items():
        for share in (True, False):
            for result in ranks:
                got = result[case, share]
                for ours, theirs in zip(got["lines"], expected["lines"], strict=True):
                    assert learned(ours) == pytest.approx(learned(theirs), rel=1e-4, abs=1e-6), (case, share)
                    assert (ours["shared_share"] > 0.1) == share, case
                    assert ours["padding_share"] <= 0.1 or not share
                for name, value in expected["weights"].items():
                    torch.testing.assert_close(got["weights"][name], value, rtol=1e-4, atol=1e-5)
            moved = max(
                float((expected["weights"][name] - value).detach().abs().max()) for name, value in start.items()
            )
            assert moved > 1e-3
        for result in ranks:
            assert result[case, True]["lines"][0].keys() == result[case, False]["lines"][0].keys()
            for ours, theirs in zip(result[case, True]["scores"], result[case, False]["scores"], strict=True):
                for a, b in zip(ours, theirs, strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
    for share in (True, False):
        both = [result["uneven", share]["lines"][0] for result in ranks]
        assert both[0] == both[1], "metrics are those of all processes"


@pytest.mark.slow
def test_two_plain_processes(tmp_path, alone):
    for code, output in finish(start(SCRIPT, "-1", str(tmp_path), ACCELERATE_USE_CPU="true", **QUIET), timeout=300):
        assert code == 0, output[-4000:]
    compare(tmp_path, alone)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_two_processes_under_zero(tmp_path, alone, stage):
    pytest.importorskip("deepspeed")
    for code, output in finish(start(SCRIPT, str(stage), str(tmp_path), DS_ACCELERATOR="cpu", **QUIET), timeout=400):
        assert code == 0, output[-4000:]
    compare(tmp_path, alone)
