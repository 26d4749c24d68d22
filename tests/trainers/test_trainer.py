"""The whole loop on a tiny model and a toy environment: it learns, resumes bit for bit, and refuses bad input."""

import hashlib
import json
import math
from dataclasses import replace

import pytest
import torch
from helpers.recorder import NAMES
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.envs import Task
from turncredit.rollout import SamplingConfig, load_trajectories
from turncredit.trainers import GRPOCallback, GRPOConfig, GRPOTrainer
from turncredit.trainers.encoder import HashingEncoder

EASY = {"num_tasks": 8, "needed": 1, "lenient": True}
SUITE = ToySuite(**EASY)


def config(folder, **changes):
    settings = {
        "output_dir": str(folder),
        "max_steps": 4,
        "num_tasks": 4,
        "num_generations": 4,
        "credit": "grpo",
        "sampling": SamplingConfig(max_completion_length=8),
        "num_envs": 16,
        "num_workers": 0,
        "learning_rate": 3e-3,
        "eval_steps": 2,
        "num_eval_tasks": 4,
        "save_steps": 2,
        "beta": 0.01,
    }
    return GRPOConfig(**{**settings, **changes})


def trainer(folder, model=None, callbacks=(), **changes):
    settings = config(folder, **changes)
    encoder = HashingEncoder()
    return GRPOTrainer(model or tiny_model(), tiny_tokenizer(), SUITE, settings, callbacks=callbacks, encoder=encoder)


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(run):
    return {name: p.detach().clone() for name, p in run.model.named_parameters()}


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def test_it_learns_the_toy_task(tmp_path):
    options = {"num_generations": 8, "learning_rate": 1e-2, "beta": 0.0, "eval_steps": 0, "save_steps": 0}
    with trainer(tmp_path, max_steps=12, **options) as run:
        after = run.train()
    log = lines(tmp_path)
    assert [line["step"] for line in log] == list(range(13))
    assert log[1]["rollout/success"] < 0.6
    assert sum(line["rollout/success"] for line in log[-4:]) / 4 > 0.9
    assert after["eval/success"] == 1.0
    assert all(math.isfinite(v) for line in log for v in line.values())


def test_first_ratio_is_one_and_metrics_are_whole(tmp_path):
    with trainer(tmp_path, max_steps=1, model=tiny_model(attention_dropout=0.3), entropy_coef=0.01) as run:
        run.train()
    metrics = lines(tmp_path)[-1]
    assert metrics["train/ratio"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["train/kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["train/clip_low"] == metrics["train/clip_high"] == 0
    assert 0 < metrics["train/entropy"] < math.log(23) + 1e-4
    assert metrics["rollout/episodes"] == 16
    assert metrics["credit/groups"] == 4
    for phase in ("generation", "environment", "scoring", "training", "total"):
        assert metrics[f"time/{phase}_seconds"] >= 0


def test_recomputed_logprobs_agree_with_the_sampled_ones(tmp_path):
    with trainer(tmp_path, max_steps=1, recompute_logprobs=True) as run:
        run.train()
    assert lines(tmp_path)[-1]["train/sampling_drift"] < 1e-5


METHODS = NAMES.split()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_by_name(tmp_path, name):
    changes = {"max_steps": 2, "eval_steps": 0, "save_steps": 0, "num_eval_tasks": 1}
    with trainer(tmp_path, credit=name, **changes) as run:
        before = weights(run)
        run.train()
        assert not same(before, weights(run))
        needs_teacher, terms = run.method.reads_teacher, run.method.terms
    metrics = lines(tmp_path)[-1]
    assert ("teacher/rows" in metrics) == needs_teacher
    assert ("train/auxiliary_loss" in metrics) == bool(terms)
    assert all(math.isfinite(value) for value in metrics.values())


class NoHint(ToySuite):
    def privileged_context(self, task):
        return None if task.id.startswith("red") else super().privileged_context(task)


def test_identical_contexts_give_a_gap_of_exactly_zero(tmp_path):
    seen = []

    class Look(GRPOCallback):
        def on_credit(self, trainer, inputs, credit):
            seen.append((inputs.teacher_logprobs - inputs.student_logprobs, credit))

    settings = config(tmp_path, max_steps=1, num_tasks=2, credit="agent_opsd")
    suite = NoHint(**EASY)
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, settings, callbacks=[Look()]) as run:
        run.tasks_of = lambda step: [task for task in run.train_tasks if task.type == "red"]
        run.train()
    gap, credit = seen[0]
    assert torch.equal(gap, torch.zeros_like(gap))
    torch.testing.assert_close(credit.turn_weights, torch.ones_like(credit.turn_weights))


def test_a_real_hint_gives_a_gap(tmp_path):
    seen = []

    class Look(GRPOCallback):
        def on_credit(self, trainer, inputs, credit):
            seen.append(inputs)

    with trainer(tmp_path, max_steps=1, credit="agent_opsd", callbacks=[Look()]) as run:
        run.train_step()
    inputs = seen[0]
    gap = (inputs.teacher_logprobs - inputs.student_logprobs)[inputs.response_mask]
    assert gap.abs().mean() > 1e-3


# what differs between methods in what a checkpoint must hold; all names are in the slow half
MACHINERY = ("grpo", "agent_opsd", "step_opsd", "align_opsd", "sdar", "ema_teacher")
RESUMED = [
    *MACHINERY,
    *(pytest.param(n, marks=pytest.mark.slow) for n in sorted({*METHODS} - set(MACHINERY))),
]


EMA = {"credit": "agent_opsd", "credit_options": {"teacher": "ema", "ema_rate": 0.5}}


def test_an_averaged_teacher_follows_the_policy(tmp_path):
    with trainer(tmp_path, **EMA, beta=0.0) as run:
        before = weights(run)
        run.train_step()
        assert not same(before, weights(run))
        for name, now in weights(run).items():
            expected = before[name].lerp(now, 0.5)
            torch.testing.assert_close(run.teacher.snapshot.weights[name], expected)


@pytest.mark.parametrize("name", RESUMED)
def test_resume_is_bit_for_bit(tmp_path, name):
    options = {
        **(EMA if name == "ema_teacher" else {"credit": name}),
        "num_minibatches": 2,
        "warmup_steps": 3,
        "lr_scheduler_type": "cosine",
    }
    with trainer(tmp_path / "whole", **options) as run:
        run.train()
        expected, optimizer = weights(run), run.optimizer.state_dict()["state"]
    with trainer(tmp_path / "parts", **options) as run:
        while run.step < 2:
            run.train_step()
        run.save()
    torch.manual_seed(12345)
    with trainer(tmp_path / "parts", **options) as run:
        run.train(resume_from=True)
        assert same(expected, weights(run))
        for index, state in run.optimizer.state_dict()["state"].items():
            assert torch.equal(state["exp_avg_sq"], optimizer[index]["exp_avg_sq"])
    whole = {line["step"]: line for line in lines(tmp_path / "whole")}
    for line in lines(tmp_path / "parts"):
        timeless = {k: v for k, v in line.items() if not k.startswith("time/")}
        assert timeless == {k: v for k, v in whole[line["step"]].items() if not k.startswith("time/")}


def test_resuming_drops_log_lines_of_the_lost_future_and_goes_on(tmp_path):
    with trainer(tmp_path, max_steps=3, save_steps=2) as run:
        run.train()
        run_after_three = weights(run)
    import shutil

    shutil.rmtree(tmp_path / "checkpoints" / "step-000003")
    with trainer(tmp_path, max_steps=3, save_steps=2) as run:
        run.train(resume_from=True)
        assert same(run_after_three, weights(run))
    assert [line["step"] for line in lines(tmp_path)] == [0, 1, 2, 3]


def test_a_finished_run_that_is_resumed_is_evaluated_and_keeps_its_log(tmp_path):
    with trainer(tmp_path, max_steps=1) as run:
        after = run.train()
    with trainer(tmp_path, max_steps=1) as run:
        run.resume(True)
        assert run.train() == after
    assert [line["step"] for line in lines(tmp_path)] == [0, 1]


def test_a_checkpoint_is_an_ordinary_model_folder(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with trainer(tmp_path, max_steps=1) as run:
        run.train()
        expected = weights(run)
    folder = tmp_path / "checkpoints" / "step-000001" / "model"
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert same(expected, dict(loaded.named_parameters()))
    assert AutoTokenizer.from_pretrained(folder).chat_template == tiny_tokenizer().chat_template
    assert not list(folder.glob("*.bin"))


def test_save_total_limit(tmp_path):
    with trainer(tmp_path, save_steps=1, save_total_limit=2) as run:
        run.train()
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-000003", "step-000004"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 1e-4}, r"learning_rate: 0.003 -> 0.0001.*allow_changed_config=True"),
        ({"num_generations": 5}, "num_generations: 4 -> 5"),
        ({"sampling": SamplingConfig(max_completion_length=8, temperature=0.5)}, "temperature"),
    ],
)
def test_resuming_with_an_option_that_matters_asks(tmp_path, change, message):
    with trainer(tmp_path, max_steps=1) as run:
        run.train()
    with trainer(tmp_path, max_steps=2, **change) as run:
        with pytest.raises(ValueError, match=message):
            run.train(resume_from=True)
        run.train(resume_from=True, allow_changed_config=True)
        assert run.step == 2


def test_resuming_with_another_tokenizer_is_refused(tmp_path):
    with trainer(tmp_path, max_steps=1) as run:
        run.train()
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template += " "
    with (
        GRPOTrainer(tiny_model(), tokenizer, SUITE, config(tmp_path)) as run,
        pytest.raises(ValueError, match="tokenizer must be the checkpoint's"),
    ):
        run.train(resume_from=True, allow_changed_config=True)


def test_resuming_from_a_checkpoint_of_an_earlier_version_is_refused(tmp_path):
    with trainer(tmp_path, max_steps=1) as run:
        run.train()
    folder = tmp_path / "checkpoints" / "step-000001"
    state = json.loads((folder / "trainer_state.json").read_text())
    del state["adapter"]
    (folder / "trainer_state.json").write_text(json.dumps(state))
    sums = json.loads((folder / "manifest.json").read_text())
    sums["trainer_state.json"] = hashlib.sha256((folder / "trainer_state.json").read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(sums))
    with (
        trainer(tmp_path, max_steps=2) as run,
        pytest.raises(ValueError, match=r"of this version.*lacks \['adapter'\]"),
    ):
        run.resume(True)


def test_resuming_from_nothing_and_from_damage(tmp_path):
    with trainer(tmp_path, max_steps=1) as run:
        run.resume(True)
        assert run.step == 0
        with pytest.raises(FileNotFoundError, match="source must be a checkpoint folder"):
            run.resume(str(tmp_path / "nowhere"))
        run.train()
    folder = tmp_path / "checkpoints" / "step-000001"
    (folder / "optimizer.pt").write_bytes(b"half")
    with trainer(tmp_path) as run:
        with pytest.raises(ValueError, match=r"optimizer.pt does not match its checksum"):
            run.resume(str(folder))
        run.resume(True)
        assert run.step == 0


def test_the_panel_is_fixed(tmp_path):
    with trainer(tmp_path) as run, trainer(tmp_path / "b", num_envs=1, num_tasks=2) as other:
        assert run.evaluate() == run.evaluate() == other.evaluate()
        assert run.evaluate(privileged=True).keys() == {
            name.replace("eval/", "eval_privileged/") for name in run.evaluate()
        }


def test_tasks_of_an_update_never_repeat_and_cover_the_epoch(tmp_path):
    with trainer(tmp_path) as run:
        first, second, third = (run.tasks_of(step) for step in range(3))
        assert len({task.id for task in first}) == 4
        assert {t.id for t in first} | {t.id for t in second} == {t.id for t in SUITE.tasks("train")}
        assert [t.id for t in third] != [t.id for t in first]
        assert run.tasks_of(1) == second


def test_failed_episodes_are_counted_and_left_out(tmp_path):
    tasks = [Task("red-broken", "red"), *SUITE.tasks("train")[:3]]
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(tmp_path), train_tasks=tasks) as run:
        metrics = run.train_step()
    assert metrics["rollout/failed"] == 4
    assert metrics["rollout/episodes"] == 16
    assert metrics["credit/groups"] == 3


def test_an_update_without_any_usable_rollout_goes_on(tmp_path):
    tasks = [Task(f"red{i}-broken", "red") for i in range(4)]
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(tmp_path), train_tasks=tasks) as run:
        before = weights(run)
        metrics = run.train_step()
        assert same(before, weights(run))
    assert metrics["rollout/failed"] == 16
    assert metrics["train/optimizer_steps"] == 0


def test_a_run_in_which_every_prompt_is_too_long_stops_and_says_so(tmp_path):
    sampling = SamplingConfig(max_completion_length=8, max_prompt_length=2)
    with trainer(tmp_path, sampling=sampling, max_skipped_steps=1) as run:
        run.train_step()
        with pytest.raises(RuntimeError, match=r"all failed in 2 updates in a row; .*prompt over max_prompt_length"):
            run.train_step()


def test_a_finished_rollout_is_never_lost(tmp_path):
    class Broken(GRPOCallback):
        def on_credit(self, trainer, inputs, credit):
            raise RuntimeError("a bug in my method")

    with trainer(tmp_path, callbacks=[Broken()]) as run, pytest.raises(RuntimeError, match="a bug in my method"):
        run.train_step()
    saved = load_trajectories(tmp_path / "failed-update-000001-process-0.jsonl.gz")
    assert len(saved) == 16
    assert list((tmp_path / "completions").iterdir())


def test_a_step_that_is_not_finite_is_left_out_and_after_a_limit_the_run_stops(tmp_path, monkeypatch):
    import turncredit.trainers.terms as module

    plain = module.clipped_policy_loss
    monkeypatch.setattr(
        module,
        "clipped_policy_loss",
        lambda *a, **k: replace(plain(*a, **k), loss=plain(*a, **k).loss * math.nan),
    )
    with trainer(tmp_path, max_skipped_steps=1) as run:
        before = weights(run)
        metrics = run.train_step()
        assert metrics["train/skipped_steps"] == 1
        assert same(before, weights(run))
        with pytest.raises(FloatingPointError, match="must be finite, got nan"):
            run.train_step()
    assert load_trajectories(tmp_path / "failed-update-000002-process-0.jsonl.gz")


class NoTasks(ToySuite):
    def tasks(self, split):
        return []


def test_bad_input_is_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="num_generations must be a whole number of at least 2, got 1; a group of one"):
        config(tmp_path, num_generations=1)
    with pytest.raises(ValueError, match=r"name must be one of .*, got 'agentopsd'; did you mean 'agent_opsd'"):
        trainer(tmp_path, credit="agentopsd")
    with pytest.raises(TypeError, match=r"options of agent_opsd must be among .*gamma.*got 'gama'"):
        trainer(tmp_path, credit="agent_opsd", credit_options={"gama": 1.0})
    with pytest.raises(ValueError, match="train_tasks must not be empty"):
        GRPOTrainer(tiny_model(), tiny_tokenizer(), NoTasks(), config(tmp_path))
    with pytest.raises(ValueError, match="train_tasks must hold at least num_tasks = 9, got 8"):
        trainer(tmp_path, num_tasks=9)
    tasks = SUITE.tasks("train")
    with pytest.raises(ValueError, match="eval_tasks must not overlap train_tasks, got 2 in both"):
        GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(tmp_path), train_tasks=tasks, eval_tasks=tasks[:2])
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="must have a chat template"):
        GRPOTrainer(tiny_model(), tokenizer, SUITE, config(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="launched for 2 processes but runs as 1"):
        trainer(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_tasks", 0),
        ("beta", -0.1),
        ("learning_rate", 0.0),
        ("loss_type", "mean"),
        ("lr_scheduler_type", "step"),
        ("report_to", ("mlflow",)),
        ("save_total_limit", 0),
        ("max_steps", -1),
    ],
)
def test_bad_configuration_is_named(field, value):
    with pytest.raises(ValueError, match=f"GRPOConfig: .*{field} must"):
        GRPOConfig(**{field: value})
