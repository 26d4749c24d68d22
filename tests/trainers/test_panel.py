"""A panel of runs: what is run again and what is not, what its records hold, its table by hand."""

import hashlib
import json
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from turncredit.trainers.launch import panel_report
from turncredit.trainers.launch.options import import_own
from turncredit.trainers.launch.panel import RESULTS, Arm, Job, Panel, jobs_of, newest, read_results, summary
from turncredit.trainers.launch.panel_report import area, by_method, panel_table, plot_panel
from turncredit.trainers.methods import registry

SCRIPT = """
    import argparse, json, sys, time
    from pathlib import Path

    parser = argparse.ArgumentParser()
    for name in ("--credit", "--output-dir", "--seed", "--good"):
        parser.add_argument(name)
    parser.add_argument("--credit-option", action="append")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--import")
    args = parser.parse_args()
    folder = Path(args.output_dir)
    with open(folder / "calls.txt", "a") as file:
        file.write(" ".join(sys.argv[1:]) + "\\n")
    if args.credit == "bad":
        sys.exit(3)
    if args.credit == "slow":
        time.sleep(60)
    good = float(args.good) + 0.1 * int(args.seed)
    judged = ("success", "reward", "turns", "invalid_turns", "episodes")
    lines = [{"step": 0, **{f"eval/{name}": 0.5 for name in judged}}]
    for step in (1, 2):
        line = {"step": step, "time/total_seconds": 1.5}
        good = None if good != good else good  # as JSON has no nan
        lines.append(line | {f"rollout/{name}": good for name in ("success", "reward", "turns", "invalid_turns")})
    lines[-1] |= {f"eval/{name}": 0.75 for name in judged}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
    (folder / "checkpoints" / "step-000002").mkdir(parents=True, exist_ok=True)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train_toy.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return str(path)


def jobs(script, *methods, seeds=(0, 1), good="0.2"):
    return list(jobs_of({"toy": script}, [Arm.parse(text) for text in methods], seeds, {"toy": ["--good", good]}))


def calls(folder: Path, method: str, seed: int) -> list[str]:
    [path] = folder.glob(f"runs/toy/{method}/seed{seed}-*/calls.txt")
    return path.read_text().splitlines()


def test_every_run_leaves_one_record_and_is_not_run_again(script, tmp_path):
    panel, said = Panel(tmp_path / "panel", {"commit": "abc"}), []
    (tmp_path / "panel").mkdir()
    wanted = jobs(script, "grpo", "faded=grpo:outcome_discount=0.95,eps=1")
    assert panel.run(wanted, said.append) == []
    records = read_results([panel.folder / RESULTS])
    assert {(record["method"], record["seed"]) for record in records} == {
        (method, seed) for method in ("grpo", "faded") for seed in (0, 1)
    }
    faded = next(record for record in records if record["method"] == "faded" and record["seed"] == 1)
    assert faded["options"] == ["outcome_discount=0.95", "eps=1"]
    assert (faded["success"], faded["after"]["success"], faded["before"]["reward"]) == ([0.3, 0.3], 0.75, 0.5)
    assert (faded["commit"], faded["train_seconds"], faded["updates"]) == ("abc", 3.0, 2)
    assert "--credit-option outcome_discount=0.95 --credit-option eps=1" in calls(panel.folder, "faded", 1)[0]
    assert not list(panel.folder.glob("runs/*/*/*/checkpoints"))
    assert panel.run(wanted, said.append) == []
    assert len(calls(panel.folder, "faded", 1)) == 1
    assert said[-1].startswith("4 of 4 runs are there")


def test_other_settings_are_other_runs(script, tmp_path):
    panel = Panel(tmp_path)
    panel.run(jobs(script, "grpo", seeds=[0]), lambda text: None)
    panel.run(jobs(script, "grpo", seeds=[0], good="0.3"), lambda text: None)
    panel.run(jobs(script, "grpo:eps=1", seeds=[0]), lambda text: None)
    records = read_results([tmp_path / RESULTS])
    assert len(records) == 3
    assert len(list(tmp_path.glob("runs/toy/*/seed0-*"))) == 3, "and other folders: no checkpoint of other settings"
    with pytest.raises(ValueError, match=r"by_method: records must agree in flags, got '--good 0.2' and '--good 0.3'"):
        by_method(records, "toy")
    same = [record for record in records if record["flags"] == ["--good", "0.2"]]
    assert list(by_method(same, "toy")) == ["grpo", "grpo:eps=1"]
    with pytest.raises(ValueError, match="by_method: records must agree in method a, got 'x' and 'y b=1'"):
        by_method(
            [{**same[0], "method": "a", "credit": c, "options": o} for c, o in (("x", []), ("y", ["b=1"]))], "toy"
        )


def test_a_run_that_fails_is_named_and_tried_again(script, tmp_path):
    panel = Panel(tmp_path)
    failed = panel.run(jobs(script, "bad", "grpo", seeds=[0]), lambda text: None)
    assert len(failed) == 1
    assert failed[0].startswith("toy bad seed 0: RuntimeError: it ended with 3; see ")
    assert [record["method"] for record in read_results([tmp_path / RESULTS])] == ["grpo"]
    panel.run(jobs(script, "bad", seeds=[0]), lambda text: None)
    assert len(calls(tmp_path, "bad", 0)) == 2


def test_a_killed_run_goes_on_from_its_checkpoint(script, tmp_path):
    first, _ = wanted = jobs(script, "grpo")
    (tmp_path / first.folder / "checkpoints/step-000001").mkdir(parents=True)
    Panel(tmp_path).run(wanted, lambda text: None)
    assert calls(tmp_path, "grpo", 0)[0].endswith("--resume")
    assert not calls(tmp_path, "grpo", 1)[0].endswith("--resume")
    assert {r["seed"]: r["resumed"] for r in read_results([tmp_path / RESULTS])} == {0: True, 1: False}


def test_an_interrupt_ends_the_runs_and_starts_no_other(script, tmp_path):
    panel = Panel(tmp_path)

    def interrupt(text):
        if "[1/" in text:
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        panel.run(jobs(script, "grpo", "slow", "gigpo", "rlsd", seeds=[0]), interrupt)
    assert time.monotonic() - began < 30
    assert not list(tmp_path.glob("runs/toy/rlsd"))
    assert [record["method"] for record in read_results([tmp_path / RESULTS])][:1] == ["grpo"]


def test_a_folder_has_one_panel_and_a_job_is_done_once(script, tmp_path):
    panel, said = Panel(tmp_path), []

    def second(text):
        said.append(text)
        with pytest.raises(RuntimeError, match="Panel: folder must belong to one panel at a time"):
            Panel(tmp_path).run(jobs(script, "grpo"), said.append)

    assert panel.run(jobs(script, "grpo", "grpo", seeds=[0]), second) == []
    assert said[0].startswith("0 of 1 runs are there")
    assert len(calls(tmp_path, "grpo", 0)) == 1


def test_a_run_with_strange_metrics_ends_no_other(script, tmp_path):
    [strange] = jobs(script, "grpo", seeds=[0], good="nan")
    failed = Panel(tmp_path).run([strange, *jobs(script, "gigpo", seeds=[0])], lambda text: None)
    assert len(failed) == 1
    assert "toy grpo seed 0: TypeError" in failed[0]


@pytest.mark.parametrize(
    ("method", "flags", "said"),
    [
        ("posteriour", (), "did you mean 'posterior'"),
        ("grpo:outcome_discont=0.9", (), "did you mean 'outcome_discount'"),
        ("grpo:outcome_discount=7", (), "outcome_discount"),
        ("grpo", ("--set", "learnin_rate=1"), "did you mean 'learning_rate'"),
    ],
)
def test_what_every_run_would_fail_by_is_found_before_any(method, flags, said):
    with pytest.raises(SystemExit, match=said):
        Job("toy", "s", Arm.parse(method), 0, ("--of-the-script", "3", *flags)).check()
    Job("toy", "s", Arm.parse("posterior:anchor=actions"), 0, ("--of-the-script", "3", "--max-steps", "1")).check()


def test_a_torn_line_costs_its_run_and_no_other(script, tmp_path):
    panel, wanted = Panel(tmp_path), jobs(script, "grpo")
    panel.run(wanted, lambda text: None)
    path = tmp_path / RESULTS
    path.write_bytes(path.read_bytes()[:-40])
    assert len(read_results([path])) == 1
    panel.run(wanted, lambda text: None)
    assert len(read_results([path])) == 2


@pytest.mark.parametrize("text", ["", "=grpo", "x=", ":eps=1"])
def test_an_arm_needs_a_name(text):
    with pytest.raises(ValueError, match="Arm: methods must be given as NAME"):
        Arm.parse(text)


def test_a_run_without_an_evaluation_at_its_end_is_no_result():
    line = {"step": 1, "rollout/success": 0.5}
    with pytest.raises(RuntimeError, match="no evaluation after its last update"):
        summary([{"step": 0, "eval/success": 0.5}, line])
    with pytest.raises(RuntimeError, match="no evaluation"):
        summary([])


def test_the_order_of_jobs_keeps_a_stopped_panel_paired():
    arms = [Arm.parse("a"), Arm.parse("b")]
    assert [(j.arm.label, j.seed) for j in jobs_of({"x": "s"}, arms, [5, 6], {})] == [
        ("a", 5), ("b", 5), ("a", 6), ("b", 6),
    ]  # fmt: skip


def record(method, seed, curve, held_out):
    after = {"success": held_out, "reward": held_out, "invalid_turns": 0.1}
    job = Job("toy", "s", Arm(method, method), seed)
    return {**job.key, "success": curve, "reward": curve, "after": after}


def test_the_table_by_hand():
    records = [
        record("grpo", 0, [0.2, 0.4], 0.5), record("grpo", 1, [0.3, 0.5], 0.6), record("grpo", 2, [0.1, 0.3], 0.4),
        record("good", 0, [0.3, 0.5], 0.5), record("good", 1, [0.41, 0.61], 0.7), record("good", 3, [1.0, 1.0], 1.0),
    ]  # fmt: skip
    runs = by_method(records, "toy")
    assert area(records[0]) == pytest.approx(0.3)
    lines = panel_table(runs)
    assert lines[0] == "| method | seeds | training area | minus grpo | held-out | minus grpo | invalid turns |"
    # grpo: areas 0.3, 0.4, 0.2: mean 0.3, s = 0.1, t = 4.3027, half 4.3027 * 0.1 / sqrt 3 = 0.248
    assert lines[2] == "| grpo | 3 | 0.300 ±0.248 |  | 0.500 ±0.248 |  | 0.10 |"
    # on seeds 0 and 1: +0.10 and +0.11, mean 0.105, s = 0.00707, t = 12.706, half 0.0635; held out 0 and +0.1
    assert lines[3].split(" | ")[3] == "+0.105 ±0.064*"
    assert lines[3].split(" | ")[5] == "+0.050 ±0.635"
    with pytest.raises(ValueError, match="baseline must be among grpo, good, got 'gigpo'"):
        panel_table(runs, "gigpo")


def test_the_picture_is_drawn(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    runs = by_method([record(m, s, [0.1 * s, 0.5], 0.5) for m in ("grpo", "a", "b$c") for s in (0, 1)], "toy")
    assert plot_panel(runs, tmp_path / "x.png", "toy")
    assert (tmp_path / "x.png").stat().st_size > 5000
    drawn = []
    monkeypatch.setattr(panel_report, "_band", lambda _, records, *rest: drawn.append([r["seed"] for r in records]))
    kept = {"grpo": runs["grpo"], "a": {1: runs["a"][1]}, "b": {7: runs["a"][0] | {"seed": 7}}}
    plot_panel(kept, tmp_path / "x.png", "toy")
    assert drawn == [[1], [1], [0, 1], [7]], "the seeds of both where there are any"
    with pytest.raises(ValueError, match="plot_panel: baseline"):
        plot_panel(runs, tmp_path / "x.png", "toy", baseline="nobody")


def test_results_are_plain_json_lines(script, tmp_path):
    Panel(tmp_path).run(jobs(script, "grpo", seeds=[0]), lambda text: None)
    [line] = (tmp_path / RESULTS).read_text().splitlines()
    assert str(tmp_path) not in line
    assert json.loads(line)["environment"] == "toy"


def test_a_method_of_ones_own_is_run_again_with_its_code_alone(script, tmp_path):
    panel, mine = Panel(tmp_path), Arm("mine", "mine")
    for source, runs in (("a", 1), ("a", 1), ("b", 2)):
        arms = [Arm.parse("grpo"), replace(mine, source=source)]
        panel.run(list(jobs_of({"toy": script}, arms, [0], {"toy": ["--good", "0.2"]}, ["mine.py"])), lambda text: None)
        kept = newest(read_results([tmp_path / RESULTS]))
        assert [record.get("source") for record in kept if record["method"] == "mine"] == [source]
        assert len(read_results([tmp_path / RESULTS])) == 1 + runs
    [line] = [text for path in tmp_path.glob("runs/toy/grpo/*/calls.txt") for text in path.read_text().splitlines()]
    assert line.startswith("--import mine.py --credit grpo")
    assert all("--import" not in record["flags"] for record in kept)


def test_what_imports_bring_is_known_by_its_code(tmp_path):
    path = tmp_path / "brings_a_method.py"
    code = "from turncredit.trainers import Method, register_method\n\n@register_method('brought')\n"
    path.write_text(code + "def brought():\n    return Method('grpo')\n")
    with mock.patch.dict(registry._METHODS), mock.patch.dict(sys.modules):
        own = import_own([str(path)])
    assert list(own) == ["brought"]
    assert own["brought"] == hashlib.sha256(path.read_bytes()).hexdigest()[:12]
