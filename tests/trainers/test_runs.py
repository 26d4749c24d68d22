"""What a run keeps: its best model, every finished update after Ctrl-C, and what another run left in its folder."""

import json
import os
import signal

import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from transformers import AutoModelForCausalLM

from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOCallback, GRPOConfig, GRPOTrainer
from turncredit.trainers.guard import TerminationGuard


def trainer(folder, callbacks=(), **changes):
    settings = {
        "output_dir": str(folder),
        "max_steps": 3,
        "num_tasks": 2,
        "num_generations": 2,
        "num_workers": 0,
        "beta": 0.0,
        "learning_rate": 1e-2,
        "eval_steps": 1,
        "num_eval_tasks": 1,
        "save_steps": 0,
        "sampling": SamplingConfig(max_completion_length=4),
        "preflight": False,
        "logging_steps": 0,
    }
    suite = ToySuite(needed=1, lenient=True)
    config = GRPOConfig(**{**settings, **changes})
    return GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, config, callbacks=callbacks)


def steps(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def best(folder):
    return json.loads((folder / "best" / "best.json").read_text())


def with_success(run, values):
    """Evaluation says what the test wants: the success of each update."""
    evaluate = run.evaluate

    def told(*args, **kwargs):
        evaluate(*args, **kwargs)
        run.evaluation["eval/success"] = values[run.step]
        run.best = {"success": max(values[: run.step + 1]), "step": float(_latest_best(values[: run.step + 1]))}
        return dict(run.evaluation)

    run.evaluate = told


def _latest_best(values):
    return max(place for place, value in enumerate(values) if value == max(values))


# ---- best/


class Weights(GRPOCallback):
    def __init__(self):
        self.seen = {}

    def on_step_end(self, trainer, metrics):
        self.seen[trainer.step] = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


def test_the_model_of_the_best_evaluation_is_kept(tmp_path):
    look = Weights()
    with trainer(tmp_path, [look], max_steps=4) as run:
        with_success(run, [0.1, 0.5, 0.75, 0.25, 0.7])
        run.train()
    assert best(tmp_path)["step"] == 2
    assert best(tmp_path)["success"] == best(tmp_path)["evaluation"]["eval/success"] == 0.75
    kept = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "best").named_parameters())
    assert all(torch.equal(kept[name], value) for name, value in look.seen[2].items())
    assert any(not torch.equal(kept[name], value) for name, value in look.seen[4].items())
    assert "success 0.75 after update 2" in (tmp_path / "best" / "README.md").read_text()
    assert not list(tmp_path.glob(".best*"))


def test_nothing_is_kept_where_training_made_it_worse_or_it_is_not_wanted(tmp_path):
    with trainer(tmp_path / "worse", max_steps=2) as run:
        with_success(run, [0.9, 0.5, 0.5])
        run.train()
    with trainer(tmp_path / "unwanted", max_steps=1, save_best=False) as run:
        run.train()
    assert not (tmp_path / "worse" / "best").exists()
    assert not (tmp_path / "unwanted" / "best").exists()


def test_a_best_model_that_cannot_be_written_costs_itself_only(tmp_path, monkeypatch, caplog):
    from turncredit.trainers import model_files

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(model_files, "write_model", full)
    with trainer(tmp_path, max_steps=1) as run:
        run.train()
    assert "the best model so far, of update 1, could not be written: No space left" in caplog.text
    assert steps(tmp_path) == [0, 1]
    assert not list(tmp_path.glob(".best*"))


def test_the_best_model_of_an_update_that_is_made_again_is_set_aside(tmp_path):
    with trainer(tmp_path, save_steps=1, max_steps=2, save_total_limit=None) as run:
        with_success(run, [0.1, 0.2, 0.3])
        run.train()
    with trainer(tmp_path, max_steps=3) as run:
        with_success(run, [0.1, 0.2, 0.0, 0.0])
        run.train(resume_from=tmp_path / "checkpoints" / "step-000001")
    assert json.loads((tmp_path / "best.1" / "best.json").read_text())["step"] == 2
    assert not (tmp_path / "best").exists()


# ---- Ctrl-C


class Interrupt(GRPOCallback):
    def __init__(self, hook, times=1):
        self.times = times
        setattr(self, hook, self._hit)

    def _hit(self, trainer, *_):
        if trainer.step == 1:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def python_answers_ctrl_c():
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("python_answers_ctrl_c")
@pytest.mark.parametrize("hook", ["on_rollout", "on_evaluate"])
def test_ctrl_c_loses_no_finished_update_and_says_how_to_go_on(tmp_path, caplog, hook):
    """In `on_rollout` it is heard before scoring, where one process stops at once."""
    with trainer(tmp_path, [Interrupt(hook)]) as run, pytest.raises(KeyboardInterrupt) as stop:
        run.train()
    assert isinstance(stop.value, SystemExit)
    assert stop.value.code == 130
    last = caplog.records[-1].getMessage()
    assert last == (
        f"stopped after update 1 of 3, which is saved in {tmp_path}; go on with --resume, or train(resume_from=True)"
    )
    assert steps(tmp_path) == [0, 1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with trainer(tmp_path) as run:
        run.train(resume_from=True)
    assert steps(tmp_path) == [0, 1, 2, 3]


@pytest.mark.usefixtures("python_answers_ctrl_c")
def test_the_same_trainer_goes_on_after_ctrl_c(tmp_path):
    """As in a notebook, where the cell is run again."""
    with trainer(tmp_path, [Interrupt("on_step_end")]) as run:
        with pytest.raises(KeyboardInterrupt):
            run.train()
        run.callbacks = []
        run.train(resume_from=True)
    assert steps(tmp_path) == [0, 1, 2, 3]


@pytest.mark.usefixtures("python_answers_ctrl_c")
@pytest.mark.parametrize("held", [True, False])
def test_a_second_ctrl_c_is_not_held_unless_it_is_the_first_one_again(tmp_path, caplog, monkeypatch, held):
    """A launcher passes on the Ctrl-C that its processes got from the terminal as well."""
    from turncredit.trainers import guard

    monkeypatch.setattr(guard, "_SAME_SECONDS", 1.0 if held else -1.0)
    with trainer(tmp_path, [Interrupt("on_credit", times=2)]) as run, pytest.raises(KeyboardInterrupt) as stop:
        run.train()
    assert isinstance(stop.value, SystemExit) is held
    assert ("the state of update 1 was saved" in caplog.text) is not held


def test_several_processes_leave_a_second_ctrl_c_to_their_launcher(caplog):
    guard = TerminationGuard(immediate=False)
    guard._handle(signal.SIGINT, None)
    guard._heard -= 100.0
    guard._handle(signal.SIGINT, None)
    assert guard.requested
    assert "once more" not in caplog.text


def test_a_signal_that_is_ignored_stays_so():
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with TerminationGuard(immediate=True).installed():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, former)


# ---- a used folder


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_second_run_overwrites_nothing(tmp_path, by_hand):
    with trainer(tmp_path, max_steps=1) as run:
        run.train()
    before = content(tmp_path)
    assert {name.split("/")[0] for name in before} == {"best", "checkpoints", "completions", "metrics.jsonl"}
    with trainer(tmp_path, max_steps=1, seed=1) as run:
        if by_hand:
            run.train_step()
            run.save()
        else:
            run.train()
    after = content(tmp_path)
    for name, data in before.items():
        first, slash, rest = name.partition("/")
        stem, dot, ending = first.partition(".")
        assert after[f"{stem}.1{dot}{ending}{slash}{rest}"] == data
