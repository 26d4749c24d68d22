"""Methods of a user's own, in tests/user_code: nothing of the library is touched, and they resume bit for bit."""

from __future__ import annotations

import contextlib
from pathlib import Path
from unittest import mock

import pytest
from accelerate import Accelerator
from helpers.processes import finish, start
from helpers.user_runs import RUNS, register, whole_and_in_parts

from turncredit.credit import registry, signals
from turncredit.trainers.methods import contexts, providers
from turncredit.trainers.methods import registry as methods

SAYS = {
    "own signal": ("credit/surprise",),
    "own correspondence": ("credit/supported", "teacher/pairs"),
    "own losses": ("train/brevity_loss", "train/likelihood_loss", "train/brevity_weight"),
    "context per turn": ("teacher/rows", "teacher/identical_rows"),
    "context function": ("teacher/rows", "teacher/identical_rows"),
    "averaged teacher": ("teacher/rows",),
    "other teacher": ("teacher/rows",),
    "value head": ("train/value_loss", "train/value_gap", "credit/value"),
    "hint rollouts": ("method/hint_gain", "method/diverged"),
    "state": ("method/baseline", "train/pull_loss"),
}


@pytest.fixture(scope="module", autouse=True)
def imported():
    """What users register is not there for other tests."""
    with contextlib.ExitStack() as stack:
        for known in (registry._REGISTRY, providers._PROVIDERS, methods._METHODS, contexts.CONTEXTS, signals._SIGNALS):
            stack.enter_context(mock.patch.dict(known))
        register()
        yield


@pytest.mark.parametrize("name", RUNS)
def test_two_updates_and_a_resumed_one_are_alike(tmp_path, name):
    metrics, run = whole_and_in_parts(Accelerator(cpu=True), tmp_path, name)
    assert all(key in metrics for key in SAYS[name])
    if name == "hint rollouts":
        assert metrics["method/diverged"] == 0
    if name == "other teacher":
        assert metrics["teacher/identical_rows"] == 0
        assert run.teacher.model is not run.model
    if name == "value head":
        rates = [group["lr"] for group in run.optimizer.param_groups]
        assert rates == [1e-2, 1e-1]


def test_every_file_is_short():
    files = list((Path(__file__).parents[1] / "user_code").glob("*.py"))
    assert len(files) >= 7
    for file in files:
        assert len(file.read_text().splitlines()) < 60, file.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "names"), [(-1, tuple(RUNS)), (3, ("value head", "averaged teacher", "other teacher"))]
)
def test_on_two_processes(tmp_path, stage, names):
    from helpers import user_runs

    environment = {"ACCELERATE_USE_CPU": "true"} if stage < 0 else {}
    pair = start(Path(user_runs.__file__), str(stage), str(tmp_path), ",".join(names), **environment)
    for code, output in finish(pair, timeout=900):
        assert code == 0, output[-3000:]
        assert "finished" in output
