"""What reaches the log and the trackers: whole lines, one run of a tracker per training run, continued on resume."""

import json
import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOConfig, GRPOTrainer
from turncredit.trainers.loggers import MetricsLogger, read_metrics


class FakeWandb:
    """The few parts of wandb that are used; like it, `init` goes on with a run that is open."""

    def __init__(self):
        self.run = None
        self.runs = []

    def init(self, **options):
        if self.run is None:
            self.run = SimpleNamespace(options=options, logged=[], finished=None)
            self.run.log = lambda metrics, step: self.run.logged.append(step)
            self.run.finish = self._finish
            self.runs.append(self.run)
        return self.run

    def _finish(self, exit_code=0):
        self.run.finished = exit_code
        self.run = None


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for name in ("WANDB_PROJECT", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    return fake


def train(folder, resume=False, **changes):
    settings = {
        "output_dir": str(folder),
        "max_steps": 2,
        "num_tasks": 2,
        "num_generations": 2,
        "credit": "grpo",
        "num_workers": 0,
        "beta": 0.0,
        "eval_steps": 0,
        "num_eval_tasks": 1,
        "report_to": "wandb",
        "sampling": SamplingConfig(max_completion_length=4),
    }
    config = GRPOConfig(**{**settings, **changes})
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), ToySuite(), config) as run:
        run.train(resume_from=resume)


def test_two_runs_in_one_process_are_two_runs_of_the_tracker(tmp_path, wandb):
    train(tmp_path / "a")
    train(tmp_path / "b")
    first, second = wandb.runs
    assert (first.logged, second.logged) == ([0, 1, 2], [0, 1, 2])
    assert (first.finished, second.finished) == (0, 0)
    assert first.options["id"] != second.options["id"]
    assert first.options["project"] == "turncredit"
    assert first.options["config"]["max_steps"] == 2


def test_a_continued_run_goes_on_with_its_tracker_run_and_a_fresh_one_does_not(tmp_path, wandb):
    train(tmp_path)
    train(tmp_path, resume=True, max_steps=4)
    train(tmp_path)
    first, second, third = wandb.runs
    assert second.options["id"] == first.options["id"] != third.options["id"]
    assert second.options["resume"] == "allow"
    assert second.logged == [3, 4]


def test_a_run_that_the_user_opened_is_used_and_left_open(tmp_path, wandb):
    own = wandb.init(project="mine")
    train(tmp_path)
    assert wandb.runs == [own]
    assert own.logged == [0, 1, 2]
    assert own.finished is None


def test_an_error_is_told_to_the_tracker(tmp_path, wandb, monkeypatch):
    monkeypatch.setattr(GRPOTrainer, "train_step", lambda self: (_ for _ in ()).throw(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        train(tmp_path)
    assert wandb.runs[0].finished == 1
    assert wandb.run is None


def test_the_users_project_is_taken(tmp_path, wandb, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    train(tmp_path)
    assert wandb.runs[0].options["project"] == "theirs"


def test_no_tracker_is_touched_with_none(tmp_path, wandb):
    train(tmp_path, report_to="none")
    assert wandb.runs == []


# ---- metrics.jsonl

TORN = [b'{"step": 2, "a"', b"\x00\x00\x00", b"\xff\xfe", b"[1, 2]", b"null", b'{"a": 1}', b'{"step": null}', b"3"]


@pytest.mark.parametrize("torn", TORN)
def test_damaged_lines_never_block_a_resume(tmp_path, caplog, torn):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0, "a": 1.0}\n' + torn + b'\n{"step": 1, "a": 0.1}\n' + torn)
    with caplog.at_level(logging.WARNING):
        log = MetricsLogger(tmp_path, (), {}, resume_step=2)
    assert "2 lines of" in caplog.text
    log.log(2, {"a": 3.0})
    assert path.read_text() == '{"step": 0, "a": 1.0}\n{"step": 1, "a": 0.1}\n{"step": 2, "a": 3.0}\n'


def test_a_torn_last_line_is_left_alone_while_the_run_goes_on(tmp_path):
    log = MetricsLogger(tmp_path, (), {})
    log.log(0, {"a": 1.0})
    with open(log.path, "ab") as file:
        file.write(b'{"step": 1, "a"')
    log.log(2, {"a": 2.0})
    assert [line["step"] for line in read_metrics(log.path)] == [0, 2]


def test_half_a_line_is_taken_back_when_the_disk_is_full(tmp_path, caplog):
    import resource
    import signal

    log = MetricsLogger(tmp_path, (), {})
    log.log(0, {"a": 1.0})
    before = log.path.read_bytes()
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, limits[1]))
        log.log(1, {"a": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, former)
    assert log.path.read_bytes() == before
    assert "metrics of update 1 could not be written" in caplog.text
    log.log(2, {"a": 1.0})
    assert [line["step"] for line in read_metrics(log.path)] == [0, 2]


def test_what_is_no_number_is_left_out_and_tensors_are_numbers(tmp_path, caplog):
    log = MetricsLogger(tmp_path, (), {})
    log.log(0, {"loss": torch.tensor(0.5), "count": 3, "text": "hello", "rows": torch.zeros(2), "nothing": None})
    assert json.loads(log.path.read_text()) == {"step": 0, "loss": 0.5, "count": 3}
    for name in ("text", "rows", "nothing"):
        assert f"metric {name} is no number" in caplog.text


def test_a_resumed_run_with_a_torn_log_goes_on(tmp_path):
    train(tmp_path, report_to="none")
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    train(tmp_path, report_to="none", resume=True, max_steps=3)
    assert [line["step"] for line in read_metrics(path)] == [0, 1, 2, 3]
    assert path.read_bytes().endswith(b"}\n")
