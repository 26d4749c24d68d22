"""Faults, injected: what a run loses when it is killed, told to stop, out of memory or disk, or started twice."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from helpers.gradient_cases import Cramped, make_rows
from helpers.processes import finish, start
from helpers.run_faults import MOMENTS, SUITE, config
from helpers.tiny import tiny_model, tiny_tokenizer
from safetensors.torch import load_file

from turncredit.rollout import load_trajectories
from turncredit.trainers import GRPOCallback, GRPOConfig, GRPOTrainer, checkpoint, optimization, resume, snapshots
from turncredit.trainers.checkpoint import latest_checkpoint, prune_checkpoints, verify_checkpoint, write_checkpoint
from turncredit.trainers.guard import Terminated, TerminationGuard, output_folder_lock
from turncredit.trainers.snapshots import TeacherSnapshot

TESTS = Path(__file__).parents[1]


def trainer(folder, callbacks=(), **changes):
    return GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(folder, **changes), callbacks=callbacks)


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def final(folder):
    return load_file(folder / "checkpoints" / "step-000005" / "model" / "model.safetensors")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As in the processes that are hurt: sums in another order differ in their last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    with trainer(folder) as run:
        run.train()
    return final(folder)


@pytest.fixture(scope="module")
def hurt(tmp_path_factory):
    """Runs in processes of their own, hurt in the third of five updates: folder, and exit code by fault."""
    folder = tmp_path_factory.mktemp("hurt")
    faults = [*(f"{moment}:SIGKILL" for moment in MOMENTS), "generation:SIGTERM", "disk"]
    code, output = finish(start(TESTS / "helpers" / "run_faults.py", str(folder), *faults, world=1), timeout=300)[0]
    assert code == 0, output[-3000:]
    found = [json.loads(line) for line in output.splitlines() if line.startswith('{"fault"')]
    return folder, {line["fault"]: line["code"] for line in found}, output


def assert_goes_on_as_if_nothing_had_happened(folder, undisturbed):
    with trainer(folder) as again:
        again.train(resume_from=True)
    ours = final(folder)
    assert all(torch.equal(ours[name], undisturbed[name]) for name in undisturbed)
    assert [line["step"] for line in lines(folder)] == list(range(6))


@pytest.mark.parametrize("moment", MOMENTS)
def test_kill_costs_the_running_update_and_no_more(hurt, undisturbed, moment):
    root, codes, output = hurt
    folder = root / f"{moment}-SIGKILL"
    assert codes[f"{moment}:SIGKILL"] == -signal.SIGKILL, output[-3000:]
    newest, complaints = latest_checkpoint(folder / "checkpoints")
    assert newest.name == "step-000002"
    assert complaints == []
    assert any(name.startswith(".") for name in checkpoints(folder)) == (moment == "saving")
    assert_goes_on_as_if_nothing_had_happened(folder, undisturbed)
    assert not any(name.startswith(".") for name in checkpoints(folder)), "half a checkpoint is cleared away"


def test_sigterm_ends_the_process_with_143(hurt, undisturbed):
    root, codes, output = hurt
    assert codes["generation:SIGTERM"] == 143, output[-3000:]
    assert_goes_on_as_if_nothing_had_happened(root / "generation-SIGTERM", undisturbed)


def test_a_full_disk_costs_checkpoints_and_not_the_run(hurt, undisturbed):
    root, codes, output = hurt
    assert codes["disk"] == 0, output[-3000:]
    assert "could not be written" in output
    failed = [line.get("train/failed_saves") for line in lines(root / "disk")]
    assert failed == [None, 0.0, 0.0, 1.0, 2.0, 2.0]
    assert checkpoints(root / "disk") == ["step-000002", "step-000005"]
    assert all(torch.equal(final(root / "disk")[name], undisturbed[name]) for name in undisturbed)


class Send(GRPOCallback):
    """SIGTERM to this process at a moment of the third update."""

    def __init__(self, moment):
        self.moment = moment

    def _at(self, moment, trainer):
        if moment == self.moment and trainer.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_rollout(self, trainer, trajectories):
        self._at("rollout", trainer)

    def on_credit(self, trainer, inputs, credit):
        self._at("credit", trainer)


@pytest.mark.parametrize("moment", ["rollout", "credit"])
def test_sigterm_between_phases_is_answered_with_a_checkpoint(tmp_path, undisturbed, moment):
    former = signal.getsignal(signal.SIGTERM)
    with trainer(tmp_path, callbacks=[Send(moment)]) as run, pytest.raises(SystemExit) as stop:
        run.train()
    assert stop.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is former
    # once the update is past scoring it is finished first
    assert checkpoints(tmp_path)[-1] == ("step-000002" if moment == "rollout" else "step-000003")
    assert_goes_on_as_if_nothing_had_happened(tmp_path, undisturbed)


def test_sigterm_waits_for_the_update_where_processes_save_together(tmp_path, undisturbed):
    with trainer(tmp_path, callbacks=[Send("rollout")]) as run:
        run.guard = TerminationGuard(immediate=False)  # as with several processes
        with pytest.raises(SystemExit) as stop:
            run.train()
    assert stop.value.code == 143
    assert checkpoints(tmp_path)[-1] == "step-000003"
    assert_goes_on_as_if_nothing_had_happened(tmp_path, undisturbed)


def test_the_last_checkpoint_must_be_written(tmp_path, monkeypatch):
    with trainer(tmp_path, max_steps=1) as run:
        monkeypatch.setattr(
            run.model, "save_pretrained", lambda *a, **k: (_ for _ in ()).throw(OSError(28, "no space"))
        )
        with pytest.raises(OSError, match="no space"):
            run.train()
    assert checkpoints(tmp_path) == []


def test_two_runs_into_one_folder_are_refused(tmp_path):
    with trainer(tmp_path, max_steps=1) as run:
        with (
            output_folder_lock(tmp_path),
            pytest.raises(RuntimeError, match=f"one run at a time.*process {os.getpid()}"),
        ):
            run.train()
        run.train()
        assert run.step == 1


def test_a_fresh_run_sets_earlier_checkpoints_aside(tmp_path, caplog):
    for _ in range(2):
        with trainer(tmp_path, max_steps=1) as run:
            run.train()
    assert checkpoints(tmp_path) == ["step-000001"]
    assert (tmp_path / "checkpoints.1" / "step-000001" / "manifest.json").is_file()
    assert "are now checkpoints.1, metrics.1.jsonl, completions.1" in caplog.text


def test_going_on_from_an_older_checkpoint_sets_later_ones_aside(tmp_path, caplog):
    with trainer(tmp_path, max_steps=3, save_total_limit=3, eval_steps=0) as run:
        run.train()
    with trainer(tmp_path, max_steps=3, save_total_limit=3, eval_steps=0) as run:
        run.resume(str(tmp_path / "checkpoints" / "step-000001"))
        assert len(checkpoints(tmp_path)) == 3, "looking at an older one moves nothing"
        run.train_step()
        run.save()
    assert checkpoints(tmp_path) == ["step-000001", "step-000002"]
    assert os.listdir(tmp_path / "checkpoints.1") == ["step-000003"]
    assert "checkpoints after update 2" in caplog.text


def test_a_worker_that_grows_is_replaced_between_episodes(tmp_path):
    with trainer(tmp_path, max_steps=2, num_workers=1, max_worker_rss_mb=1.0, eval_steps=0) as run:
        run.train()
    assert lines(tmp_path)[-1]["rollout/workers_recycled"] >= 2
    assert lines(tmp_path)[-1]["rollout/failed"] == 0


def test_one_process_that_fails_ends_the_other(tmp_path):
    """No process waits for ever for one that is gone, and the rollouts of the failed update are on disk."""
    began = time.monotonic()
    pair = start(TESTS / "helpers" / "run_distributed.py", "fail", str(tmp_path), ACCELERATE_USE_CPU="true")
    results = finish(pair, timeout=200)
    assert [code != 0 for code, _ in results] == [True, True], results
    assert -9 not in [code for code, _ in results], f"a process had to be killed after {time.monotonic() - began:.0f} s"
    assert "this process fails" in results[1][1]
    assert len(load_trajectories(tmp_path / "failed-update-000002-process-1.jsonl.gz")) == 8
    # a hook is a place where all stop together, so that they could save the first update
    assert "another process failed" in results[0][1]
    assert verify_checkpoint(tmp_path / "checkpoints" / "step-000001") is None


def test_sigterm_while_a_lagging_teacher_leaves_keeps_the_policys_weights(monkeypatch):
    model = tiny_model()
    snapshot = TeacherSnapshot(model, "stale")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    own = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    load, calls = snapshots.load_full_weights, []

    def interrupted(module, weights, names):
        calls.append(len(names))
        load(module, weights, names[:3] if len(calls) == 2 else names)
        if len(calls) == 2:
            raise Terminated

    monkeypatch.setattr(snapshots, "load_full_weights", interrupted)
    with pytest.raises(Terminated), snapshot.swapped_in():
        assert not torch.equal(dict(model.named_parameters())[snapshot.names[-1]], own[snapshot.names[-1]])
    assert all(torch.equal(parameter, own[name]) for name, parameter in model.named_parameters())


def fill(text):
    return lambda folder: (folder / "state").write_text(text)


def test_a_checkpoint_written_again_is_never_missing(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, 1, fill("old"))
    remove, found = shutil.rmtree, []

    def watched(path, **options):
        if path.exists():
            found.append((tmp_path / "step-000001" / "state").read_text())
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", watched)
    write_checkpoint(tmp_path, 1, fill("new"))
    assert found == ["new"], "the old one is removed once the new one is in its place"
    assert os.listdir(tmp_path) == ["step-000001"]
    assert verify_checkpoint(tmp_path / "step-000001") is None


def test_pruning_after_a_save_reads_no_checkpoint_again(tmp_path, monkeypatch):
    folders = [write_checkpoint(tmp_path, step, fill(str(step))) for step in (1, 2, 3)]
    monkeypatch.setattr(checkpoint, "_digest", lambda path: pytest.fail(f"{path} was read"))
    prune_checkpoints(tmp_path, 1, keep=folders[-1])
    assert os.listdir(tmp_path) == ["step-000003"]


def test_other_processes_take_the_checkpoint_of_the_first(tmp_path, monkeypatch):
    answer = [tmp_path / "step-000007", None]
    monkeypatch.setattr(resume, "broadcast_object_list", lambda values: values.__setitem__(slice(None), answer))
    monkeypatch.setattr(resume, "find_run", lambda *a: pytest.fail("a second process reads checkpoints"))
    other = SimpleNamespace(is_main_process=False)
    assert resume.agree_on_run(other, tmp_path, True) == answer[0]
    answer[:] = [None, ValueError("it is damaged")]
    with pytest.raises(ValueError, match="it is damaged"):
        resume.agree_on_run(other, tmp_path, True)


def test_out_of_memory_under_zero_ends_the_run_and_waits_for_nobody(monkeypatch):
    rows, _ = make_rows()
    agreed = []
    monkeypatch.setattr(optimization, "zero_stage", lambda accelerator: 2)
    monkeypatch.setattr(optimization, "agree_max", lambda accelerator, counts: agreed.append(counts) or list(counts))
    with pytest.raises(
        optimization.MicroBatchTooLarge, match=r"micro_batch_tokens must leave .* out of memory.*; lower"
    ):
        optimization.accumulate_gradients(
            Accelerator(cpu=True),
            Cramped(tiny_model(), 40),
            rows,
            GRPOConfig(entropy_coef=0.0, share_prefixes=False),
            pad_token_id=0,
        )
    assert len(agreed) == 1, "the number of micro-batches, before the first of them"
