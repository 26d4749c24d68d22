"""What is seen of a run while it goes on: trackers and their places, a line an update, a bar, a warning."""

import importlib.util
import io
import json
import logging
import re
import sys
from types import SimpleNamespace

import pytest
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOConfig, GRPOTrainer
from turncredit.trainers.collapse import CollapseWatch
from turncredit.trainers.loggers import MetricsLogger
from turncredit.trainers.monitor import bars_shown, evaluation_line, update_line
from turncredit.trainers.trackers import RUNS, Target


def config(folder, **changes):
    settings = {
        "output_dir": str(folder),
        "max_steps": 2,
        "num_tasks": 2,
        "num_generations": 2,
        "num_workers": 0,
        "beta": 0.0,
        "eval_steps": 0,
        "num_eval_tasks": 1,
        "sampling": SamplingConfig(max_completion_length=4),
        "preflight": False,
    }
    return GRPOConfig(**{**settings, **changes})


def train(folder, resume=False, **changes):
    suite = ToySuite(needed=1, lenient=True)
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, config(folder, **changes)) as run:
        run.train(resume_from=resume)


# ---- trackers


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("wandb", ("wandb", "", "", "")),
        ("wandb:project", ("wandb", "project", "", "")),
        ("wandb:project/name/group", ("wandb", "project", "name", "group")),
        ("trackio:project//group", ("trackio", "project", "", "group")),
    ],
)
def test_a_place_in_a_tracker_is_project_name_and_group(text, parts):
    target = Target.of(text)
    assert (target.tracker, target.project, target.name, target.group) == parts
    assert GRPOConfig(report_to=text).report_to == (text,)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("wandb:a/b/c/d", "a project, a run and a group, got 'wandb:a/b/c/d'; write wandb:project/name/group"),
        ("wandb:", "must name a project"),
        ("tensorboard:runs", "TensorBoard has only its folder"),
        ("wnadb:project", "any of"),
        (["wandb", "wandb:project"], "must name a tracker once"),
    ],
)
def test_a_place_that_is_none_is_named_when_the_configuration_is_made(given, error):
    with pytest.raises(ValueError, match=error):
        GRPOConfig(report_to=given)


class FakeTracker:
    """What wandb and trackio have in common; several runs may be open at once with ``reinit``."""

    def __init__(self):
        self.run, self.runs = None, []

    def init(self, **options):
        run = SimpleNamespace(options=options, logged=[], finished=False, id=f"id{len(self.runs)}")
        run.log = lambda metrics, step: run.logged.append(step)
        run.finish = lambda exit_code=0: setattr(run, "finished", True)
        self.runs.append(run)
        return run


@pytest.fixture
def fake(monkeypatch):
    from turncredit.trainers import trackers

    found = FakeTracker()
    for name in ("wandb", "trackio"):
        monkeypatch.setitem(sys.modules, name, found)
    for name in ("WANDB_PROJECT", "WANDB_RUN_ID", "TRACKIO_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(trackers, "_used", set())
    return found


def test_the_place_reaches_the_tracker(tmp_path, fake):
    log = MetricsLogger(tmp_path, ("wandb:project/name/group", "trackio:other/first"), GRPOConfig())
    log.log(0, {"a": 1.0})
    log.close()
    wandb, trackio = fake.runs
    assert {name: wandb.options[name] for name in ("project", "name", "group")} == {
        "project": "project",
        "name": "name",
        "group": "group",
    }
    assert "reinit" not in wandb.options
    assert trackio.options["project"] == "other"
    assert re.fullmatch(r"first-\w{6}", trackio.options["name"])
    assert trackio.options["resume"] == "never"
    assert json.dumps(trackio.options["config"])
    assert [run.logged for run in fake.runs] == [[0], [0]]
    assert all(run.finished for run in fake.runs)


def test_a_run_of_the_users_own_serves_one_training_run_and_a_place_asks_for_another(tmp_path, fake):
    fake.run = own = fake.init(project="mine")
    for name, entry in (("a", "wandb"), ("b", "wandb"), ("c", "wandb:project")):
        log = MetricsLogger(tmp_path / name, (entry,), GRPOConfig())
        log.log(0, {"a": 1.0})
        log.close()
    assert own.logged == [0]
    assert not own.finished
    second, third = fake.runs[1:]
    assert second.options["reinit"] == third.options["reinit"] == "create_new"
    assert (second.logged, third.logged) == ([0], [0])
    assert second.finished
    assert third.finished
    log = MetricsLogger(tmp_path / "a", ("wandb",), GRPOConfig(), resume_step=0)
    log.log(1, {"a": 1.0})
    assert own.logged == [0, 1]


def test_an_id_from_the_environment_serves_one_training_run(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "theirs")
    for name in "ab":
        MetricsLogger(tmp_path / name, ("wandb",), GRPOConfig()).close()
    first, second = (run.options["id"] for run in fake.runs)
    assert first == "theirs" != second


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_checkpoint_knows_the_trackers_run(tmp_path, fake, tracker):
    """Also where the file in the output folder is gone, as of a checkpoint that was copied."""
    key = {"wandb": "id", "trackio": "name"}[tracker]
    train(tmp_path, report_to=f"{tracker}:project", max_steps=1)
    state = json.loads((tmp_path / "checkpoints" / "step-000001" / "trainer_state.json").read_text())
    assert state["tracker_runs"] == {tracker: {key: fake.runs[0].options[key], "project": "project"}}
    (tmp_path / RUNS).unlink()
    train(tmp_path, resume=True, report_to=f"{tracker}:project", max_steps=2)
    train(tmp_path, resume=True, report_to=f"{tracker}:elsewhere", max_steps=2)
    first, second, third = (run.options for run in fake.runs)
    assert first[key] == second[key] != third[key]
    assert second["resume"] == "allow"


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="needs turncredit[trackio]")
def test_trackio_itself_takes_two_sessions_as_one_run(tmp_path, monkeypatch):
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    runs = {}
    for resume, steps in ((None, (0, 1)), (1, (2,))):
        log = MetricsLogger(tmp_path, ("trackio:project/name",), GRPOConfig(), resume, runs)
        for step in steps:
            log.log(step, {"a": float(step)})
        log.close()
    logged = SQLiteStorage.get_logs("project", runs["trackio"]["name"])
    assert [(line["step"], line["a"]) for line in logged] == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_a_tracker_that_is_not_installed_names_its_extra(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "trackio", None)
    MetricsLogger(tmp_path, ("trackio:project",), GRPOConfig())
    assert "trackio is not available and is left out" in caplog.text
    assert "pip install 'turncredit[trackio]'" in caplog.text


# ---- a line an update


def test_a_line_says_how_far_and_fits_a_terminal():
    metrics = {
        "rollout/success": 0.53125,
        "rollout/reward": -1234.5,
        "train/loss": -0.0123,
        "train/grad_norm": 0.4142,
    }
    assert update_line(12, 10000, metrics, 1234.5678, 360000.0) == (
        "update    12/10000  success 0.531  reward -1.23e+03  loss -1.23e-02  grad 0.41  1234.6 s  ETA 100:00:00"
    )
    usual = update_line(12, 150, {**metrics, "rollout/reward": 0.53}, 12.34, 36000.0)
    assert usual == "update  12/150  success 0.531  reward 0.53  loss -1.23e-02  grad 0.41  12.3 s  ETA 10:00:00"
    assert len(usual) <= 100
    assert update_line(2, 2, {"rollout/success": 1.0, "train/loss": None}, 0.5, 0.0) == (
        "update 2/2  success 1.000  0.5 s  done"
    )
    assert evaluation_line(2, 10, {"eval/success": 0.5, "eval/reward": 0.5}, {"success": 0.75, "step": 1.0}) == (
        "update  2/10  eval success 0.500  reward 0.5  best 0.750 after update 1"
    )


def test_a_run_says_a_line_an_update(tmp_path, capsys):
    train(tmp_path, eval_steps=2)
    said = capsys.readouterr().out.splitlines()
    assert [re.sub(r"  .*", "", line) for line in said] == [f"update {n}/2" for n in (0, 1, 2, 2)]
    assert "eval success" in said[0]
    assert "ETA" in said[1]
    assert "done" in said[2]
    train(tmp_path, resume=True, max_steps=3)
    said = capsys.readouterr().out.splitlines()
    assert [re.sub(r"  .*", "", line) for line in said] == ["update 3/3", "update 3/3"]


def test_lines_are_as_many_as_asked_for_and_hold_means(tmp_path, capsys):
    train(tmp_path, max_steps=5, logging_steps=2)
    said = [line for line in capsys.readouterr().out.splitlines() if "eval" not in line]
    assert [line.split()[1] for line in said] == ["2/5", "4/5", "5/5"]
    log = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    mean = (log[1]["rollout/success"] + log[2]["rollout/success"]) / 2
    assert f"success {mean:.3f}" in said[0]
    train(tmp_path / "quiet", logging_steps=0, max_steps=1)
    assert capsys.readouterr().out == ""


def test_bars_are_drawn_in_a_terminal_or_where_asked_for(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    assert not bars_shown(True)
    assert bars_shown(False)
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        assert bars_shown(None) is shown
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    train(tmp_path, max_steps=1)
    assert "1/1" in stream.getvalue()


# ---- an early warning


def warned(watch, values):
    return [place for place, value in enumerate(values, start=1) if watch.see(value)]


def test_a_collapse_is_told_once():
    """Means over 5 updates, from the sixth on: 0.64, 0.48, 0.32, 0.16, 0. Under 0.4 from 8 on, a third time at 10."""
    values = [0.8] * 5 + [0.0] * 20
    assert warned(CollapseWatch(3), values) == [10]
    assert warned(CollapseWatch(0), values) == []


def test_a_collapse_is_told_again_after_a_recovery():
    values = [0.8] * 5 + [0.0] * 10 + [0.8] * 5 + [0.0] * 10
    assert warned(CollapseWatch(3), values) == [10, 25]


def test_noise_and_a_policy_that_learned_nothing_are_no_collapse():
    assert warned(CollapseWatch(1), [0.0, 1.0] * 20) == []
    assert warned(CollapseWatch(1), [0.09] * 5 + [0.0] * 20) == []
    assert warned(CollapseWatch(1), [None] * 20) == []


def test_a_continued_run_knows_what_was_told(tmp_path, caplog, monkeypatch):
    from turncredit.trainers.monitor import Monitor

    lines = [{"step": n, "rollout/success": value} for n, value in enumerate([0.8] * 5 + [0.0] * 4, start=1)]
    run = SimpleNamespace(config=config(tmp_path, max_steps=20, collapse_patience=3, logging_steps=0), step=9, best={})
    watch = Monitor(run, lines)
    run.step = 10
    with caplog.at_level(logging.WARNING):
        for run.step in range(10, 15):
            watch.after_update(run, {"rollout/success": 0.0})
    assert caplog.text.count("success has collapsed") == 1
    assert "update 10: success has collapsed" in caplog.text
    caplog.clear()
    later = Monitor(run, [*lines, {"rollout/success": 0.0}])
    run.step = 15
    later.after_update(run, {"rollout/success": 0.0})
    assert caplog.text == ""
