"""The environment of docs/adding_an_environment.md: its code is run as it stands there, by hand and in training."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from turncredit.envs import TaskSuite, VectorEnv

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding_an_environment.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.fixture
def safe(tmp_path, monkeypatch):
    """The page's module, saved where worker processes find it too; its scripts run beside it."""
    (tmp_path / "safe.py").write_text("\n".join(BLOCKS[:2]), encoding="utf-8")
    (tmp_path / "by_hand.py").write_text(BLOCKS[2], encoding="utf-8")
    (tmp_path / "train.py").write_text("\n".join(BLOCKS[2:]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "safe", raising=False)
    yield importlib.import_module("safe")
    sys.modules.pop("safe", None)


def test_it_is_short():
    assert len(BLOCKS) == 4
    assert len([line for block in BLOCKS for line in block.splitlines() if line.strip()]) < 100


def test_it_is_played_by_hand(safe, capsys):
    runpy.run_path("by_hand.py", run_name="__main__")
    told = capsys.readouterr().out
    assert "Task: Open the safe: name its secret colours in order, one each turn." in told
    assert "Admissible actions:\n- red\n- green" in told
    assert "The code of this safe is " in told


def test_it_keeps_to_what_the_page_says(safe):
    suite = safe.SafeSuite(limits={"eval": 6})
    assert isinstance(suite, TaskSuite)
    train, held_out = suite.tasks("train"), suite.tasks("eval")
    assert (len(train), len(held_out)) == (64, 6)
    assert not {task.id for task in train} & {task.id for task in held_out}
    assert [task.type for task in held_out].count("2 colours") == 3
    contexts = suite.contexts(train[0])
    assert set(contexts) == {"hint", "advice"}
    assert suite.privileged_context(train[0]) == contexts["hint"] == f"The code of this safe is {train[0].id}."
    both = safe.SafeSuite(privileged="advice+hint").privileged_context(train[0])
    assert both == f"{contexts['advice']}\n\n{contexts['hint']}"
    assert suite.parse("<think>a</think><action>red</action>").valid
    loose = suite.parse("not green but black")
    assert (loose.action, loose.valid, loose.action_span) == ("black", False, (14, 19))
    assert suite.parse("nothing").action == suite.parse("").action == ""
    with pytest.raises(ValueError, match=re.escape(_told("SafeSuite: privileged must be one of"))):
        safe.SafeSuite(privileged="hnt")


def _told(start: str) -> str:
    """A message that the page quotes, on one line."""
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    return text[(place := text.index(start)) : text.index("`", place)]


def test_workers_play_the_same_episodes(safe):
    suite = safe.SafeSuite()
    tasks = suite.tasks("eval")[:2]
    seen = []
    for workers in (0, 1):
        with VectorEnv(suite.make_env(), 2, num_workers=workers) as envs:
            start = envs.reset({slot: task.id for slot, task in enumerate(tasks)})
            turns = [envs.step(dict.fromkeys(start, word)) for word in ("", "red", "green")]
            seen.append((start, turns))
    assert seen[0] == seen[1]
    assert not seen[0][1][0][0].valid


def test_it_is_trained_on_for_two_updates(safe, monkeypatch, tmp_path):
    model = tiny_model()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda name: model)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda name: tiny_tokenizer())
    runpy.run_path("train.py", run_name="__main__")
    lines = [json.loads(line) for line in (tmp_path / "outputs/safe/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert all(line["teacher/rows"] > 0 for line in lines[1:]), "the hint is read"
    assert not any(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
