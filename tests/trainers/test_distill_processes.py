"""Distillation on two processes with different rows and chunks, plain and under ZeRO: one process's numbers, resume."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.processes import finish, start
from helpers.run_distill import CASES, make
from helpers.run_distributed import lines

SCRIPT = Path(__file__).parents[1] / "helpers" / "run_distill.py"
OWN = ("time/", "rollout/workers", "train/failed_saves", "score/padding", "score/shared", "train/padding")
OWN += ("train/shared",)
"""What a process says of itself and of how its rows are cut."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    for name in CASES:
        with make(folder / name, name) as run:
            run.train()
    assert all(line["train/guidance_loss"] > 0 for line in lines(folder / "lens_opd")[1:])
    assert lines(folder / "tcod_b2f")[1]["method/teacher_turns"] > 0
    assert all(line["train/bridge_loss"] > 0 for line in lines(folder / "futurebridge")[1:])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("stage", [-1, 2, 3])
def test_two_processes_train_like_one_and_resume(tmp_path, alone, stage):
    environment = {"ACCELERATE_USE_CPU": "true"} if stage < 0 else {"DS_ACCELERATOR": "cpu"}
    if stage > 0:
        pytest.importorskip("deepspeed")
    for code, output in finish(start(SCRIPT, str(stage), str(tmp_path), **environment), timeout=200):
        assert code == 0, output[-4000:]
        assert "finished" in output
    for name in CASES:
        ours, theirs = lines(tmp_path / name / "whole"), lines(alone / name)
        assert len(ours) == len(theirs) == 3
        for got, expected in zip(ours, theirs, strict=True):
            assert got.keys() == expected.keys()
            for key in got:
                if not key.startswith(OWN):
                    assert got[key] == pytest.approx(expected[key], rel=2e-4, abs=2e-6), (name, key, got["step"])
