"""docs/lab.md says what docs/lab/ holds: every table of agents comes out of the data again."""

import json
from pathlib import Path

import pytest

from turncredit.trainers.launch.panel import read_results
from turncredit.trainers.launch.panel_report import by_method, panel_table

DOCS = Path(__file__).resolve().parents[1] / "docs"
PANELS = sorted(path.stem for path in (DOCS / "lab").glob("agents_*.jsonl"))


@pytest.mark.parametrize("name", PANELS)
def test_the_page_holds_the_tables_of_the_data(name):
    environment = name.removeprefix("agents_")
    runs = by_method(read_results([DOCS / "lab" / f"{name}.jsonl"]), environment)
    page = (DOCS / "lab.md").read_text(encoding="utf-8")
    missing = [line for line in panel_table(runs) if line not in page]
    assert not missing


@pytest.mark.parametrize("name", PANELS)
def test_every_run_says_what_made_it(name):
    text = (DOCS / "lab" / f"{name}.jsonl").read_text(encoding="utf-8")
    assert "/home" not in text
    assert "/work" not in text
    for line in text.splitlines():
        record = json.loads(line)
        assert len(record["success"]) == record["updates"]
        assert record["after"]["episodes"] >= 200
        assert len(record["commit"].rstrip("+")) == 10
