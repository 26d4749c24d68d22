"""What a run keeps of its rollouts is what credit was computed from: the same credit comes of it, bit for bit."""

import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.processes import finish, start
from helpers.recorder import ALIGN, ALIGNED, NAMES, PAIRS
from helpers.run_rollout_files import play
from helpers.toy import ToySuite

from turncredit.credit import CreditInputs, get_credit
from turncredit.rollout import load_trajectories, to_pandas
from turncredit.trainers import load_rollouts, rollout_files

SCRIPT = Path(__file__).parents[1] / "helpers" / "run_rollout_files.py"
OTHERWISE = [
    ("agent_opsd", {"gamma": 0.9, "band": 0.35, "scale_rewards": False}),
    ("gigpo", {"step_weight": 0.5, "discount": 0.8}),
]


def file_of(folder, update, process=0):
    return folder / "rollouts" / f"step-{update:06d}" / f"process-{process}.jsonl.gz"


def assert_same(found, credit):
    assert torch.equal(found.advantages, credit.advantages)
    assert torch.equal(found.turn_weights, credit.turn_weights)


@pytest.mark.parametrize(("name", "options"), OTHERWISE)
def test_credit_follows_from_the_files_bit_for_bit(tmp_path, name, options):
    seen = play(tmp_path, credit=name, credit_options=options)
    default = get_credit(name)
    for update, (inputs, credit) in enumerate(seen, 1):
        about = json.loads(file_of(tmp_path, update).with_name("process-0.json").read_text())
        trajectories = load_trajectories(file_of(tmp_path, update))
        again = CreditInputs.from_trajectories(trajectories, **dict.fromkeys(about["left_out"]))
        method = get_credit(about["credit"], **about["credit_options"])
        assert method.options.items() >= options.items()
        assert_same(method(again, step=about["step"]), credit)
        assert not torch.equal(default(again).advantages, credit.advantages)
        assert torch.equal(again.student_logprobs, inputs.student_logprobs)
        if inputs.teacher_logprobs is not None:
            assert torch.equal(again.teacher_logprobs, inputs.teacher_logprobs)
        assert (about["update"], about["step"], about["method"]) == (update, update - 1, name)


FEW = ("align_opsd", "gagpo", "opd")
PRESETS = re.compile("align_opsd_|agent_opsd_|gigpo_|posterior_[^a]|lens_opd_|tcod_f|faded|dr_")


@pytest.mark.parametrize(
    "name",
    [
        *FEW,
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in NAMES.split()
            if name not in FEW and not PRESETS.match(name)
        ),
    ],
)
def test_every_method_says_what_it_said(tmp_path, name):
    options = PAIRS if name in ALIGNED else ALIGN if name.startswith("align") else {}
    seen = play(tmp_path, credit=name, credit_options=options, max_steps=1)
    kept = load_rollouts(file_of(tmp_path, 1).parent)
    assert kept.about["not_saved"] == {}
    if not seen:
        assert kept.credit is None
        with pytest.raises(ValueError, match=f"method must give credit, got '{name}'"):
            kept.recompute()
        return
    assert_same(kept.recompute(), seen[0][1])
    assert_same(kept.credit, seen[0][1])
    assert kept.about["metrics"].keys() == seen[0][1].metrics.keys()
    rows = to_pandas(kept.trajectories, kept.credit)
    assert rows["weight"].tolist() == kept.credit.turn_weights.double().tolist()


class CleanSteps(ToySuite):
    """Everything that was said is thinking."""

    causal_span = "clean_step"

    def parse(self, response):
        return replace(super().parse(response), thinking=response, thinking_span=(0, len(response)))


def test_tokens_of_a_clean_step_do_not_follow_from_the_trajectories_and_are_kept(tmp_path):
    seen = play(tmp_path, suite=CleanSteps(num_tasks=8, lenient=True), credit="step_opsd", max_steps=1)
    kept = load_rollouts(file_of(tmp_path, 1))
    inputs, credit = seen[0]
    assert kept.about["left_out"] == ["anchor_ids"]
    assert [name for name, value in kept.signals.items() if value is not None] == ["span_mask"]
    assert torch.equal(kept.inputs().span_mask, inputs.span_mask)
    assert not torch.equal(CreditInputs.from_trajectories(kept.trajectories).span_mask, inputs.span_mask)
    assert_same(kept.recompute(), credit)
    other = kept.recompute(scale_rewards=not kept.options["scale_rewards"])
    assert not torch.equal(other.advantages, credit.advantages)


def test_the_block_of_the_page_runs(tmp_path, monkeypatch, capsys):
    play(tmp_path / "outputs" / "run", credit="agent_opsd", max_steps=1)
    page = (Path(__file__).parents[2] / "docs" / "rollouts.md").read_text(encoding="utf-8")
    block = re.findall(r"```python\n(.*?)```", page, re.S)[0].replace("step-000010", "step-000001")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "rollouts.md", "exec"), {"__name__": "rollouts"})
    assert "evidence" in capsys.readouterr().out


def test_files_come_every_so_many_updates_and_the_oldest_go(tmp_path):
    play(tmp_path, max_steps=5, save_rollouts=2, save_rollouts_limit=1)
    assert [path.name for path in (tmp_path / "rollouts").iterdir()] == ["step-000004"]
    names = [f"process-0.{ending}" for ending in ("json", "jsonl.gz", "safetensors")]
    assert sorted(path.name for path in (tmp_path / "rollouts" / "step-000004").iterdir()) == names


def test_nothing_is_kept_where_it_is_off(tmp_path):
    play(tmp_path, max_steps=1, save_rollouts=0)
    assert not (tmp_path / "rollouts").exists()


def test_a_full_disk_costs_the_files_only(tmp_path, caplog, monkeypatch):
    def full(*arguments):
        raise OSError("the disk is full")

    monkeypatch.setattr(rollout_files, "save_trajectories", full)
    with caplog.at_level(logging.WARNING):
        assert len(play(tmp_path, max_steps=1)) == 1
    assert "rollouts of update 1 could not be saved: the disk is full" in caplog.text


class OneBroken(ToySuite):
    def tasks(self, split):
        tasks = super().tasks(split)
        return [replace(task, id="red-broken") if split == "train" and place == 0 else task
                for place, task in enumerate(tasks)]  # fmt: skip


def test_failed_episodes_have_no_credit_and_stand_beside(tmp_path):
    play(tmp_path, suite=OneBroken(num_tasks=4), credit="agent_opsd", max_steps=1, log_completions=16)
    kept = load_rollouts(file_of(tmp_path, 1))
    assert len(kept.trajectories) == 12
    assert [line[:2] for line in kept.about["failed"]] == [["red-broken", index] for index in range(4)]
    assert "this task cannot be reset" in kept.about["failed"][0][2]
    kept.recompute()
    text = (tmp_path / "completions" / "step-000001.txt").read_text(encoding="utf-8")
    shown = [float(weight) for weight in re.findall(r"weight ([\d.]+)", text)]
    assert shown == pytest.approx(kept.credit.turn_weights.tolist(), abs=1e-3)
    means = kept.trained_advantages.sum(1) / kept.inputs().token_counts
    assert [float(value) for value in re.findall(r"advantage (\S+)", text)] == pytest.approx(means.tolist(), abs=1e-3)
    turns = [turn for trajectory in kept.trajectories for turn in trajectory.turns]
    assert re.findall(r"^action: (.*)$", text, re.M) == [turn.action for turn in turns]
    assert text.count("INVALID") == sum(not turn.valid for turn in turns)


@pytest.mark.slow
def test_each_of_two_processes_keeps_its_own(tmp_path):
    methods = {"align_opsd": ALIGN, "posterior": {}, "empg": {"bonus": 0.2}}
    pair = start(SCRIPT, str(tmp_path), json.dumps(methods), ACCELERATE_USE_CPU="true")
    for code, output in finish(pair, timeout=200):
        assert code == 0, output[-3000:]
    for name in methods:
        folder = tmp_path / name
        for process in (0, 1):
            seen = torch.load(folder / f"seen-{process}.pt")
            assert len(seen) == 2
            for update, (advantages, weights) in enumerate(seen, 1):
                kept = load_rollouts(file_of(folder, update, process))
                again = kept.recompute()
                assert torch.equal(again.advantages, advantages)
                assert torch.equal(again.turn_weights, weights)
                assert {t.group_id % 2 for t in kept.trajectories} == {process}
                assert (kept.about["process"], kept.about["processes"]) == (process, 2)
        with pytest.raises(ValueError, match="must be the file of one process, got 2"):
            load_rollouts(folder / "rollouts" / "step-000001")
