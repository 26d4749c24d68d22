"""docs/methods.md has a row for every name that trains, and says which of them are no credit functions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.recorder import NAMES

from turncredit.credit import get_credit
from turncredit.trainers import list_methods

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "methods.md").read_text()
TABLE = PAGE.split("## Every name that trains\n")[1].split("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines() if line.startswith("| `")]


def test_every_name_that_trains_has_a_row_and_no_row_is_left_over():
    assert set(NAMES.split()) <= set(list_methods())  # tests register methods of their own
    assert sorted(name.strip("`") for name, *_ in ROWS) == sorted(NAMES.split())


def test_every_row_says_everything():
    for row in ROWS:
        assert len(row) == 7, row
        assert all(row), row


def test_loss_terms_are_not_credit_functions():
    said = re.search(r"(SDAR, OPSD.*?)are loss terms", PAGE, re.DOTALL)
    assert said is not None
    for name in ("sdar", "opsd", "grpo_opsd", "skill_sd", "align_distill"):
        assert "loss term" in next(row[1] for row in ROWS if row[0] == f"`{name}`").replace("*", "")
        with pytest.raises(ValueError, match=name):
            get_credit(name)
