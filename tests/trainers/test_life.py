"""The order of a run's life: what an error, a kill or a second run may cost, and what a continued run must do."""

import inspect
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from transformers import AutoModelForCausalLM, GenerationConfig

from turncredit.envs import Task
from turncredit.rollout import SamplingConfig, load_trajectories
from turncredit.trainers import GRPOCallback, GRPOConfig, GRPOTrainer, Teacher, get_method
from turncredit.trainers.methods import registry

SUITE = ToySuite(num_tasks=8, needed=1, lenient=True)


def config(folder, **changes):
    settings = {
        "output_dir": str(folder),
        "max_steps": 4,
        "num_tasks": 4,
        "num_generations": 4,
        "credit": "grpo",
        "sampling": SamplingConfig(max_completion_length=6),
        "num_workers": 0,
        "learning_rate": 3e-3,
        "beta": 0.0,
        "eval_steps": 2,
        "num_eval_tasks": 3,
        "save_steps": 0,
        "num_minibatches": 2,
    }
    return GRPOConfig(**{**settings, **changes})


def trainer(folder, callbacks=(), suite=SUITE, model=None, tokenizer=None, **changes):
    settings = config(folder, **changes)
    return GRPOTrainer(model or tiny_model(), tokenizer or tiny_tokenizer(), suite, settings, callbacks=callbacks)


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def timeless(folder):
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines(folder)]


def checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def state_of(folder, step):
    return json.loads((folder / "checkpoints" / f"step-{step:06d}" / "trainer_state.json").read_text())


def weights(run):
    return {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


class RaiseAt(GRPOCallback):
    """Raises in one hook, first where `trainer.step` is the given one."""

    def __init__(self, hook, step):
        self.hook, self.step, self.files = hook, step, []

    def _at(self, hook, trainer):
        if (hook, trainer.step) == (self.hook, self.step):
            self.files = checkpoints(trainer.folder) if (trainer.folder / "checkpoints").exists() else []
            raise RuntimeError("a bug in my callback")

    def on_rollout(self, trainer, trajectories):
        self._at("on_rollout", trainer)

    def on_credit(self, trainer, inputs, credit):
        self._at("on_credit", trainer)

    def on_step_end(self, trainer, metrics):
        self._at("on_step_end", trainer)

    def on_evaluate(self, trainer, metrics):
        self._at("on_evaluate", trainer)

    def on_save(self, trainer, folder):
        self._at("on_save", trainer)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    with trainer(folder) as run:
        run.train()
        return folder, weights(run), dict(run.best)


def assert_goes_on(folder, undisturbed, first=0, **changes):
    whole, expected, best = undisturbed
    with trainer(folder, **changes) as run:
        run.train(resume_from=True)
        assert same(weights(run), expected)
        assert run.best == best
    assert timeless(folder) == timeless(whole)[first:]
    assert [line["step"] for line in lines(folder)] == list(range(first, 5))


@pytest.mark.parametrize("hook", ["on_rollout", "on_credit", "on_step_end", "on_evaluate"])
@pytest.mark.parametrize("save_steps", [0, 1])
def test_an_error_in_a_hook_costs_no_finished_update(tmp_path, undisturbed, hook, save_steps):
    """With the state saved on the way out (save_steps 0) and with a checkpoint that is there already."""
    with (
        trainer(tmp_path, [RaiseAt(hook, 2)], save_steps=save_steps) as run,
        pytest.raises(RuntimeError, match="a bug in my callback"),
    ):
        run.train()
    assert [line["step"] for line in lines(tmp_path)] == [0, 1, 2]
    assert lines(tmp_path)[2]["rollout/episodes"] == 16
    assert checkpoints(tmp_path)[-1] == "step-000002"
    assert "eval/success" in lines(tmp_path)[2]
    failed = tmp_path / "failed-update-000003-process-0.jsonl.gz"
    assert failed.exists() == (hook in ("on_rollout", "on_credit"))
    if failed.exists():
        assert len(load_trajectories(failed)) == 16
    assert_goes_on(tmp_path, undisturbed, save_steps=save_steps)


@pytest.mark.parametrize("save_steps", [0, 2])
def test_an_error_in_the_evaluation_costs_the_evaluation_only(tmp_path, undisturbed, monkeypatch, save_steps):
    with trainer(tmp_path, save_steps=save_steps) as run:
        collect = run.collector.collect

        def broken(tasks, generations, **options):
            if options["seed"] == -1 and run.step == 2:
                raise ValueError("a bug in my suite")
            return collect(tasks, generations, **options)

        monkeypatch.setattr(run.collector, "collect", broken)
        with pytest.raises(ValueError, match="a bug in my suite"):
            run.train()
    assert [line["step"] for line in lines(tmp_path)] == [0, 1, 2]
    assert "eval/success" not in lines(tmp_path)[2]
    assert checkpoints(tmp_path) == ["step-000002"]
    assert state_of(tmp_path, 2)["evaluation_due"]
    assert not (tmp_path / "checkpoints" / "step-000002" / "evaluation.json").exists()
    assert_goes_on(tmp_path, undisturbed, save_steps=save_steps)


def test_the_checkpoint_is_written_before_the_evaluation_and_the_model_before_the_last_one(tmp_path):
    seen = []

    class Look(GRPOCallback):
        def on_evaluate(self, trainer, metrics):
            seen.append((trainer.step, checkpoints(trainer.folder) if trainer.step else []))

    with trainer(tmp_path, [Look()], max_steps=3, save_steps=2) as run:
        run.train()
    assert seen == [(0, []), (2, ["step-000002"]), (3, ["step-000002", "step-000003"])]


def test_a_kill_between_checkpoint_and_evaluation_is_made_up_for(tmp_path, undisturbed):
    """As after kill -9 there: the checkpoint of update 2 exists, its line and evaluation do not."""
    with trainer(tmp_path, save_steps=2, max_steps=2) as run:
        run.train()
    (tmp_path / "checkpoints" / "step-000002" / "evaluation.json").unlink()
    kept = (tmp_path / "metrics.jsonl").read_text().splitlines()[:2]
    (tmp_path / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    ended = []

    class Look(GRPOCallback):
        def on_step_end(self, trainer, metrics):
            ended.append((trainer.step, "eval/success" in metrics))

    with trainer(tmp_path, [Look()], save_steps=2) as run:
        run.train(resume_from=True)
    assert ended == [(2, True), (3, False), (4, True)]
    assert timeless(tmp_path) == timeless(undisturbed[0])


def test_an_evaluation_that_was_made_is_not_made_again(tmp_path, undisturbed):
    with trainer(tmp_path, save_steps=2, max_steps=2) as run:
        run.train()
    steps = []

    class Look(GRPOCallback):
        def on_evaluate(self, trainer, metrics):
            steps.append(trainer.step)

    with trainer(tmp_path, [Look()], save_steps=2) as run:
        run.train(resume_from=True)
        assert run.best == undisturbed[2]
    assert steps == [4]
    assert timeless(tmp_path) == timeless(undisturbed[0])


def test_sigterm_in_the_evaluation_is_answered_at_once(tmp_path, undisturbed, monkeypatch):
    with trainer(tmp_path) as run:
        generate = run.collector.sampler.model.generate

        def hit(*args, **kwargs):
            if run.step == 2 and run.update_metrics is not None and run.evaluation is None:
                os.kill(os.getpid(), signal.SIGTERM)
            return generate(*args, **kwargs)

        monkeypatch.setattr(run.collector.sampler.model, "generate", hit)
        with pytest.raises(SystemExit) as stop:
            run.train()
    assert stop.value.code == 143
    assert checkpoints(tmp_path) == ["step-000002"]
    assert "eval/success" not in lines(tmp_path)[2]
    assert_goes_on(tmp_path, undisturbed)


def test_weights_between_two_updates_are_never_saved(tmp_path, monkeypatch, caplog):
    """An error after the first of two optimiser steps: the weights are those of no update."""
    import turncredit.trainers.update as module

    with trainer(tmp_path, save_steps=1) as run:
        accumulate, calls = module.accumulate_gradients, []

        def broken(*args, **options):
            calls.append(run.step)
            if calls.count(2) == 2:
                raise RuntimeError("out of luck")
            return accumulate(*args, **options)

        monkeypatch.setattr(module, "accumulate_gradients", broken)
        run.config.save_steps = 0
        with pytest.raises(RuntimeError, match="out of luck"):
            run.train()
        assert run.torn
    assert not (tmp_path / "checkpoints").exists()
    assert "update 2 is in no checkpoint" in caplog.text


def test_a_lagging_teacher_in_the_policys_place_is_never_saved(tmp_path, monkeypatch):
    import turncredit.trainers.snapshots as snapshots

    with trainer(tmp_path, credit="step_opsd") as run:
        load, calls = snapshots.load_full_weights, []

        def broken(module, found, names):
            calls.append(run.step)
            if calls.count(1) == 2:
                raise RuntimeError("out of memory")
            load(module, found, names)

        monkeypatch.setattr(snapshots, "load_full_weights", broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            run.train()
        assert run.torn
    assert not (tmp_path / "checkpoints").exists()


def test_an_error_of_another_process_ends_this_one_where_all_can_save(monkeypatch):
    from turncredit.trainers import life

    monkeypatch.setattr(life, "agree_max", lambda accelerator, counts: [1])
    shared = []
    with pytest.raises(life.OtherProcessFailed, match="its own output says why"), life.together(None, shared):
        pass
    own = ValueError("mine")
    with pytest.raises(ValueError, match="mine"), life.together(None, shared):
        raise own
    assert isinstance(shared[0], life.OtherProcessFailed)
    assert shared[1] is own


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_stopping_by_hand_saves_what_was_finished(tmp_path, undisturbed, error):
    class Stop(GRPOCallback):
        def on_credit(self, trainer, inputs, credit):
            if trainer.step == 3:
                raise error

    with trainer(tmp_path, [Stop()]) as run, pytest.raises(error):
        run.train()
    assert checkpoints(tmp_path) == ["step-000003"]
    assert_goes_on(tmp_path, undisturbed)


def test_a_trainer_that_is_refused_leaves_no_process_behind(tmp_path):
    import multiprocessing

    before = set(multiprocessing.active_children())
    model = tiny_model()
    model.generation_config = GenerationConfig(do_sample=False, temperature=0.6)
    with pytest.raises(ValueError, match="generation_config"):
        trainer(tmp_path, model=model, num_workers=1)
    assert set(multiprocessing.active_children()) == before


def test_an_upload_that_fails_is_no_failed_checkpoint(tmp_path):
    class Upload(GRPOCallback):
        def on_save(self, trainer, folder):
            raise ConnectionError("network away")

    with trainer(tmp_path, [Upload()], save_steps=1) as run:
        with pytest.raises(ConnectionError):
            run.train()
        assert run.failed_saves == 0
    assert checkpoints(tmp_path) == ["step-000001"]


def test_a_rollout_that_failed_twice_at_one_update_is_kept_twice(tmp_path):
    for _ in range(2):
        with trainer(tmp_path, [RaiseAt("on_credit", 0)]) as run, pytest.raises(RuntimeError):
            run.train_step()
    names = sorted(path.name for path in tmp_path.glob("failed-*"))
    assert names == ["failed-update-000001-process-0.1.jsonl.gz", "failed-update-000001-process-0.jsonl.gz"]


# ---- a second run


def test_a_second_run_into_a_used_folder_sets_everything_aside(tmp_path, caplog):
    with trainer(tmp_path, [RaiseAt("on_credit", 1)], max_steps=2, save_steps=1) as run, pytest.raises(RuntimeError):
        run.train()
    for name in ("eval_trajectories.jsonl.gz", "learning_curve.png", "notes.txt"):
        (tmp_path / name).write_text(name)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    completions = sorted(path.name for path in (tmp_path / "completions").iterdir())
    for _ in range(2):
        with trainer(tmp_path, max_steps=1) as run:
            run.train()
    assert (tmp_path / "metrics.1.jsonl").read_bytes() == before["metrics.jsonl"]
    assert (tmp_path / "eval_trajectories.1.jsonl.gz").read_bytes() == b"eval_trajectories.jsonl.gz"
    assert (tmp_path / "learning_curve.1.png").exists()
    failed = "failed-update-000002-process-0"
    assert (tmp_path / f"{failed}.1.jsonl.gz").read_bytes() == before[f"{failed}.jsonl.gz"]
    assert sorted(path.name for path in (tmp_path / "completions.1").iterdir()) == completions
    assert os.listdir(tmp_path / "checkpoints.1") == ["step-000001"]
    assert (tmp_path / "notes.txt").exists(), "files of other names stay"
    assert [line["step"] for line in lines(tmp_path)] == [0, 1]
    assert (tmp_path / "metrics.2.jsonl").exists()
    assert (tmp_path / "completions.2").exists()
    assert "metrics.1.jsonl" in caplog.text


def test_going_on_from_an_older_checkpoint_keeps_the_later_log(tmp_path):
    with trainer(tmp_path, save_steps=1, save_total_limit=9) as run:
        run.train()
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    late = (tmp_path / "completions" / "step-000004.txt").read_bytes()
    with trainer(tmp_path, save_steps=1, save_total_limit=9, max_steps=3) as run:
        run.train(resume_from=str(tmp_path / "checkpoints" / "step-000002"))
    assert (tmp_path / "metrics.1.jsonl").read_bytes() == whole
    assert [line["step"] for line in lines(tmp_path)] == [0, 1, 2, 3]
    assert (tmp_path / "completions.1" / "step-000004.txt").read_bytes() == late
    assert sorted(os.listdir(tmp_path / "completions")) == [f"step-00000{step}.txt" for step in (1, 2, 3)]
    with trainer(tmp_path, save_steps=1, save_total_limit=9) as run:
        run.train(resume_from=True)
    assert not (tmp_path / "metrics.2.jsonl").exists(), "the newest one leaves nothing behind"


def test_going_on_from_another_folder_does_not_mix_with_the_run_in_this_one(tmp_path, undisturbed):
    with trainer(tmp_path / "first", max_steps=2, save_steps=2) as run:
        run.train()
    with trainer(tmp_path / "second", max_steps=3, learning_rate=1e-4) as run:
        run.train()
    log = (tmp_path / "second" / "metrics.jsonl").read_bytes()
    with trainer(tmp_path / "second") as run:
        run.train(resume_from=str(tmp_path / "first" / "checkpoints" / "step-000002"))
        assert same(weights(run), undisturbed[1])
    assert timeless(tmp_path / "second") == timeless(undisturbed[0])[2:]
    assert (tmp_path / "second" / "metrics.1.jsonl").read_bytes() == log
    assert checkpoints(tmp_path / "first") == ["step-000002"]


def test_a_run_stopped_before_its_first_update_is_continued_and_not_set_aside(tmp_path, monkeypatch):
    class Stop(GRPOCallback):
        def on_rollout(self, trainer, trajectories):
            os.kill(os.getpid(), signal.SIGTERM)

    with trainer(tmp_path, [Stop()], max_steps=1) as run, pytest.raises(SystemExit):
        run.train()
    assert checkpoints(tmp_path) == ["step-000000"]
    with trainer(tmp_path, max_steps=1) as run:
        run.train(resume_from=True)
    assert [line["step"] for line in lines(tmp_path)] == [0, 1]
    assert not (tmp_path / "metrics.1.jsonl").exists()


def test_an_output_folder_that_cannot_be_is_named_at_once(tmp_path):
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with (
            trainer(folder) as run,
            pytest.raises(OSError, match=r"output_dir must be a folder that can be written to, got .*file"),
        ):
            run.train()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("x")
    with trainer(tmp_path / "run") as run, pytest.raises(OSError, match="is no folder"):
        run.train()


# ---- what cannot be saved


def test_a_generation_config_that_cannot_be_saved_is_named_at_the_start(tmp_path):
    model = tiny_model()
    model.generation_config = GenerationConfig(do_sample=False, temperature=0.6, eos_token_id=1)
    with pytest.raises(ValueError, match=r"generation_config must be something that can be saved.*do_sample = True"):
        trainer(tmp_path, model=model)
    model.generation_config.do_sample = True
    with trainer(tmp_path, model=model, max_steps=1) as run:
        run.train()


def test_a_config_or_tokenizer_that_cannot_be_saved_is_named_at_the_start(tmp_path, monkeypatch):
    model = tiny_model()
    model.config.mine = object()
    with pytest.raises(ValueError, match=r"GRPOTrainer: config must be something that can be saved, got TypeError"):
        trainer(tmp_path, model=model)
    tokenizer = tiny_tokenizer()
    monkeypatch.setattr(tokenizer, "save_pretrained", lambda folder: (_ for _ in ()).throw(NotImplementedError("no")))
    with pytest.raises(ValueError, match="tokenizer must be something that can be saved, got NotImplementedError: no"):
        trainer(tmp_path, tokenizer=tokenizer)
    assert not list(tmp_path.iterdir())


def test_weights_that_cannot_be_written_back_from_quantisation_are_named(tmp_path):
    from types import SimpleNamespace

    from turncredit.trainers.rehearsal import check_saveable

    model = tiny_model()
    model.hf_quantizer = SimpleNamespace(is_serializable=lambda: False)
    with pytest.raises(ValueError, match="weights quantised by"):
        check_saveable(model, tiny_tokenizer(), {})


def test_a_folder_given_as_a_path_and_options_of_numpy_can_be_saved(tmp_path):
    import numpy as np

    options = {"credit": "agent_opsd", "credit_options": {"gamma": np.float64(0.9)}}
    with trainer(Path(tmp_path), max_steps=1, **options) as run:
        run.train()
    with trainer(tmp_path, max_steps=2, credit="agent_opsd", credit_options={"gamma": 0.9}) as run:
        run.train(resume_from=True)
        assert run.step == 2


def test_weights_tied_without_a_word_are_read_back_as_they_were(tmp_path):
    model = tiny_model(tie_word_embeddings=False)
    model.lm_head.weight = model.model.embed_tokens.weight
    with trainer(tmp_path, model=model, max_steps=1) as run:
        run.train()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoints" / "step-000001" / "model")
    ids = torch.tensor([[3, 5, 7]])
    torch.testing.assert_close(loaded(ids).logits, run.model(ids).logits)


# ---- resuming with something else


@pytest.mark.parametrize(
    ("suite", "message"),
    [
        (replace(SUITE, max_turns=2), "suite.max_turns: 4 -> 2"),
        (replace(SUITE, history_length=1), "suite.history_length: 2 -> 1"),
        (replace(SUITE, stop_strings=("</action>", "!")), r"suite.stop_strings: \['</action>'\] -> "),
        (replace(SUITE, needed=2), "suite.needed: 1 -> 2"),
        (replace(SUITE, name="other"), "suite.name: 'toy' -> 'other'"),
    ],
)
def test_another_suite_option_is_named(tmp_path, suite, message):
    with trainer(tmp_path, max_steps=1) as run:
        run.train()
    with trainer(tmp_path, suite=suite, max_steps=2) as run:
        with pytest.raises(ValueError, match=message):
            run.resume(True)
        run.resume(True, allow_changed_config=True)
        assert run.step == 1


def test_a_suites_description_holds_options_and_no_places():
    from turncredit.trainers.identity import describe_suite

    def prompts(task, history, observation):
        return []

    class Suite:
        name, max_turns, history_length, stop_strings = "mine", 3, 1, ("</a>",)

        def __init__(self):
            self.root = Path("/somewhere")
            self.data_folder = "somewhere"
            self.archive = "/abs/olute"
            self.reward = "score"
            self.anchor = None
            self._build_messages = prompts
            self._limits = {"eval": 3}

    found = describe_suite(Suite())
    assert found == {
        "name": "mine",
        "max_turns": 3,
        "history_length": 1,
        "stop_strings": ["</a>"],
        "reward": "score",
        "anchor": None,
        "build_messages": prompts.__qualname__,
    }


def test_what_a_suite_counts_while_it_plays_is_no_difference(tmp_path):
    class Counting(ToySuite):
        calls = 0

        def messages(self, task, history, observation):
            self.calls += 1
            return super().messages(task, history, observation)

    def counting():
        suite = Counting(num_tasks=8, needed=1, lenient=True)
        suite.calls = 0
        return suite

    with trainer(tmp_path, suite=counting(), max_steps=1) as run:
        run.train()
    with trainer(tmp_path, suite=counting(), max_steps=1) as run:
        run.resume(True)
        assert run.step == 1


def test_another_attention_precision_and_method_are_named(tmp_path, monkeypatch):
    mine = {"credit": "agent_opsd", "credit_options": {"teacher": "stale"}}
    with trainer(tmp_path, **mine, max_steps=1) as run:
        run.train()
    eager = tiny_model()
    eager.set_attn_implementation("eager")
    with (
        trainer(tmp_path, **mine, model=eager) as run,
        pytest.raises(ValueError, match=r"setup\.attn_implementation: 'sdpa' -> 'eager'"),
    ):
        run.resume(True)
    function = get_method("agent_opsd").credit.function  # another default in a later version
    monkeypatch.setitem(registry._COMPANIONS, inspect.unwrap(function), {"teacher": Teacher(refresh_every=4)})
    with trainer(tmp_path, **mine) as run:
        run.description["setup"]["zero_stage"] = 2
        run.description["setup"]["dtype"] = "torch.bfloat16"
        with pytest.raises(ValueError, match="config must equal") as error:
            run.resume(True)
    for part in (
        "method.options.refresh_every: 10 -> 4",
        "setup.zero_stage: 0 -> 2",
        "'torch.float32' -> 'torch.bfloat16'",
    ):
        assert part in str(error.value)


def test_another_weight_decay_is_named_and_applies_when_allowed(tmp_path):
    with trainer(tmp_path, max_steps=1) as run:
        run.train()
    with trainer(tmp_path, weight_decay=0.5, max_steps=1) as run:
        with pytest.raises(ValueError, match=r"weight_decay: 0.0 -> 0.5"):
            run.resume(True)
        run.resume(True, allow_changed_config=True)
        assert [group["weight_decay"] for group in run.optimizer.param_groups] == [0.5]
        before = weights(run)
        for parameter in run.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for state in run.optimizer.state.values():
            state["exp_avg"].zero_()
        run.optimizer.step()
        rate = run.optimizer.param_groups[0]["lr"]
        for name, now in weights(run).items():
            torch.testing.assert_close(now, before[name] * (1 - 0.5 * rate))


def test_changing_to_a_method_with_a_snapshot_is_named_and_begins_with_the_policy_when_allowed(tmp_path, caplog):
    with trainer(tmp_path, max_steps=1, learning_rate=1e-2) as run:
        run.train()
        trained = weights(run)
    with trainer(tmp_path, credit="step_opsd", max_steps=2, learning_rate=1e-2) as run:
        assert not same(run.teacher.snapshot.weights, trained)
        with pytest.raises(ValueError, match="credit: 'grpo' -> 'step_opsd'"):
            run.resume(True)
        run.resume(True, allow_changed_config=True)
        assert same(run.teacher.snapshot.weights, trained)
        assert "holds no teacher" in caplog.text
        assert "although it differs: credit: 'grpo' -> 'step_opsd'" in caplog.text
        run.train()
    with trainer(tmp_path, max_steps=3, learning_rate=1e-2) as run:  # and back
        run.train(resume_from=True, allow_changed_config=True)
        assert run.step == 3


def test_one_option_inside_sampling_is_named_alone(tmp_path):
    with trainer(tmp_path, max_steps=1) as run:
        run.train()
    other = SamplingConfig(max_completion_length=6, temperature=0.5)
    with (
        trainer(tmp_path, sampling=other) as run,
        pytest.raises(ValueError, match=r"got temperature: 1\.0 -> 0\.5; pass"),
    ):
        run.resume(True)


def test_a_checkpoint_that_says_less_is_resumed_as_far_as_it_says(tmp_path):
    from turncredit.trainers import checkpoint

    with trainer(tmp_path, max_steps=1) as run:
        run.train()
    folder = tmp_path / "checkpoints" / "step-000001"
    state = state_of(tmp_path, 1)
    for name in ("suite", "setup", "method", "metrics", "evaluation_due"):
        del state[name]
    del state["config"]["delta"]
    state["config"] |= {"encoder": "hashing", "invalid_action_penalty": 0.2}  # where earlier versions had them
    (folder / "trainer_state.json").write_text(json.dumps(state))
    (folder / "evaluation.json").unlink()
    sums = json.loads((folder / "manifest.json").read_text())
    sums["trainer_state.json"] = checkpoint._digest(folder / "trainer_state.json")
    (folder / "manifest.json").write_text(json.dumps(sums))
    with trainer(tmp_path) as run, pytest.raises(ValueError, match=r"credit_options\.invalid_penalty: 0\.2 -> 0\.1"):
        run.resume(True)
    penalty = {"credit_options": {"invalid_penalty": 0.2}}
    with trainer(tmp_path, max_steps=2, **penalty) as run:
        run.train(resume_from=True)
        assert run.step == 2
    assert [line["step"] for line in lines(tmp_path)] == [0, 1, 2]
    with trainer(tmp_path, max_steps=3, delta=4.0, **penalty) as run:
        run.resume(str(folder), allow_changed_config=True)
        with pytest.raises(ValueError, match=r"delta: 3\.0 -> 4\.0"):
            run.resume(str(folder))


# ---- evaluation


def test_evaluation_uses_its_own_temperature_and_one_rollout(tmp_path, monkeypatch):
    settings = SamplingConfig(max_completion_length=6, temperature=0.9, top_p=0.8, top_k=5, max_trajectory_tokens=11)
    with trainer(tmp_path, max_steps=1, sampling=settings, eval_temperature=0.3) as run:
        collect, seen = run.collector.collect, []

        def recorded(tasks, generations, **options):
            seen.append((len(tasks), generations, options.get("sampling"), options["seed"]))
            return collect(tasks, generations, **options)

        monkeypatch.setattr(run.collector, "collect", recorded)
        run.train()
    panel = (3, 1, replace(settings, temperature=0.3), -1)
    assert seen == [panel, (4, 4, None, 0), panel]
    assert run.collector.sampling == settings


def test_a_panel_smaller_than_asked_for_and_one_that_fails(tmp_path, caplog):
    with trainer(tmp_path, num_eval_tasks=100) as run:
        assert len(run.eval_tasks) == 8
        assert run.evaluate()["eval/episodes"] == 8
    broken = [Task("red-broken", "red", "eval"), Task("blue-broken", "blue", "eval")]
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(tmp_path, max_steps=1), eval_tasks=broken) as run:
        assert run.train() == {"eval/episodes": 2.0, "eval/failed": 2.0}
        assert run.best == {}
    mixed = [broken[0], SUITE.tasks("eval")[0]]
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(tmp_path), eval_tasks=mixed) as run:
        metrics = run.evaluate()
        assert (metrics["eval/episodes"], metrics["eval/failed"]) == (2, 1)
        assert metrics["eval/success"] in (0.0, 1.0), "the mean over the one that was played"
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(tmp_path, max_steps=1), eval_tasks=[]) as run:
        assert run.train() == {}
    assert [line["step"] for line in lines(tmp_path)] == [0, 1]


# ---- callbacks


def test_a_callback_of_transformers_is_refused_before_anything_is_played(tmp_path):
    import transformers

    class Mine(transformers.TrainerCallback):
        pass

    with pytest.raises(TypeError, match=r"callbacks must be GRPOCallback objects, got Mine without .*'on_credit'"):
        trainer(tmp_path, [Mine()])
    with pytest.raises(TypeError, match="callbacks must be GRPOCallback objects, got the class GRPOCallback;"):
        trainer(tmp_path, [GRPOCallback])


def test_the_old_name_of_a_callback_warns():
    import turncredit.trainers as trainers

    with pytest.warns(FutureWarning, match="TrainerCallback is now GRPOCallback"):
        assert trainers.TrainerCallback is GRPOCallback
    with pytest.raises(AttributeError, match=r"turncredit\.trainers has no attribute 'Trainer'"):
        _ = trainers.Trainer
