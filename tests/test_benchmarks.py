"""The benchmarks of speed at toy size: they run, and count what can be counted by hand."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
SMALL = ["--hidden", "64", "--layers", "1", "--vocabulary", "200", "--threads", str(torch.get_num_threads())]


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_separate_rows_are_computed_one_by_one_and_shared_ones_once(benchmark, tmp_path):
    asked = ["--observation", "50", "--response", "3", "3", "--turns", "2", "4", "--old-limit", "2", "--rounds", "1"]
    parts = ["--parts", "training", "scoring", "prefill", "--slots", "2", "--out", str(tmp_path / "found.json")]
    found = benchmark("append_only").main([*SMALL, *asked, *parts])
    for part in ("training", "scoring"):
        tokens = {k: {mode: c["tokens"] for mode, c in cells.items()} for k, cells in found[part].items()}
        assert tokens == {"2": {"old": 2 * 106, "new": 106}, "4": {"new": 212}}
    prefilled = {k: {mode: c["tokens"] for mode, c in cells.items()} for k, cells in found["prefill"].items()}
    # two episodes; a user's turn adds a mark before and behind it, a response an end
    assert prefilled["2"]["old"] == 2 * (52 + 52 + 3 + 1 + 52)
    assert 2 * 52 < prefilled["2"]["new"] <= 2 * (52 + 1 + 1 + 52)


def test_a_rollout_of_scripted_lengths_takes_the_steps_that_counting_says(benchmark):
    asked = ["--episodes", "6", "--slots", "3", "--turns", "1", "3", "--median", "4", "--longest", "12"]
    found = benchmark("decoding").main([*SMALL, *asked, "--parts", "counted", "whole", "windowed"])
    together, apart = found["counted"][3]
    for history in ("whole", "windowed"):
        old, new = (found[history][mode][0] for mode in ("old", "new"))
        assert old == together
        assert apart <= new < old


def test_steps_of_both_engines_by_hand(benchmark):
    decoding = benchmark("decoding")
    episodes = [[3, 5], [4, 2], [2]]
    assert decoding.steps_together(episodes, 2) == 3 + 4 + 1
    assert decoding.steps_apart(episodes, 2) == 2 + 4
