"""A saved tokenizer that AutoTokenizer reads as another one is said at the start, and costs nothing else."""

import logging
import time
from pathlib import Path

import pytest
from helpers.tiny import tiny_model, tiny_tokenizer
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from turncredit.trainers import readback
from turncredit.trainers.rehearsal import check_saveable

EMBEDDED = Path(__file__).parents[2] / "examples" / "assets" / "alfworld_tiny"


def test_a_tokenizer_that_reads_back_as_another_class_is_said(tmp_path, caplog):
    tokenizer = tiny_tokenizer()
    with caplog.at_level(logging.WARNING):
        check_saveable(tiny_model(), tokenizer, {})
    assert "AutoTokenizer does not read the saved tokenizer back" in caplog.text
    assert "PreTrainedTokenizerFast.from_pretrained(folder)" in caplog.text
    tiny_model().config.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    advised = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert advised("door red say")["input_ids"] == tokenizer("door red say")["input_ids"]


def test_a_tokenizer_that_reads_back_as_itself_is_not(caplog):
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    )
    with caplog.at_level(logging.WARNING):
        check_saveable(model, AutoTokenizer.from_pretrained(EMBEDDED), {})
    assert "read the saved tokenizer back" not in caplog.text, caplog.text


def test_it_is_quick_on_the_embedded_policy(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    tokenizer.save_pretrained(tmp_path)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        readback.warn_where_it_reads_back_otherwise(tokenizer, tmp_path)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.05


@pytest.mark.parametrize("at", ["load", "encode"])
def test_a_tokenizer_that_cannot_be_read_back_fails_no_run(tmp_path, caplog, monkeypatch, at):
    tokenizer = tiny_tokenizer()
    if at == "encode":
        tokenizer.save_pretrained(tmp_path)
        monkeypatch.setattr(readback, "_ids", lambda *_: 1 / 0)
    with caplog.at_level(logging.WARNING):
        assert readback.warn_where_it_reads_back_otherwise(tokenizer, tmp_path)
    assert "AutoTokenizer does not read the saved tokenizer back" in caplog.text
