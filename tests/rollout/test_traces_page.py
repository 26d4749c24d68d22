"""The code of docs/traces.md runs, on a file of chats and a tiny model; its table names every format."""

from __future__ import annotations

import re
from pathlib import Path

import datasets
import pytest
import transformers
from helpers import trace_files as files
from helpers.text_tokenizers import byte_level_tokenizer
from helpers.tiny import tiny_model

from turncredit.rollout import list_trace_formats
from turncredit.rollout.traces import registry

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
CALLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_every_block_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_FORMATS", dict(registry._FORMATS))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    model = tiny_model(vocab_size=512, eos_token_id=None)
    for kind, made in (("AutoModelForCausalLM", model), ("AutoTokenizer", byte_level_tokenizer(CALLS))):
        monkeypatch.setattr(getattr(transformers, kind), "from_pretrained", lambda name, made=made: made)
    files.json_lines(files.OPENAI, tmp_path / "runs.jsonl")
    scope = {"__name__": "traces"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(block, "traces.md", "exec"), scope)
    said = capsys.readouterr().out
    assert re.search(r"door +0 +look\(", said)
    assert said.endswith("2 []\n")


def test_the_table_names_every_format():
    named = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
    assert sorted(named) == sorted([*list_trace_formats(), "turncredit"])
    with pytest.raises(ValueError, match="format must be one of"):
        registry.get_trace_format("turncredit")
