"""docs/lab.md says what docs/lab/ holds: every table of agents comes out of the data again."""

import json
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from turncredit.credit import registry
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


def differences(name):
    """Method -> its differences from GRPO in training area and held-out success, as the tables print them."""
    runs = by_method(read_results([DOCS / "lab" / f"agents_{name}.jsonl"]), name)
    rows = [[cell.strip() for cell in line.split("|")] for line in panel_table(runs)[2:]]
    return {row[1]: (row[4], row[6]) for row in rows}


@pytest.mark.parametrize(
    ("name", "label"), [("alfworld", "ALFWorld"), ("webshop", "WebShop"), ("search_qa", "Search-QA")]
)
def test_the_methods_page_repeats_the_panels(name, label):
    def short(cell):
        return cell.split(" ±")[0] + (cell[-1:] if cell.endswith(("*", "!")) else "")

    known = {method: f"{label} {' / '.join(map(short, cells))}" for method, cells in differences(name).items()}
    page = (DOCS / "methods.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in page if "| trained, " in line or "; trained, " in line]
    said = {line.split("`")[1]: line for line in rows if label in line.split("trained, ")[1]}
    assert said
    assert all(known[method] in line for method, line in said.items())


def test_the_readme_repeats_the_panel():
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    found = differences("alfworld")
    for method in ("agent_opsd", "align_opsd_turn"):
        row = next(line for line in readme.splitlines() if line.startswith(f"| `{method}` |"))
        assert all(cell.rstrip("*!") in row for cell in found[method])


@pytest.mark.parametrize("environment", ["alfworld", "webshop", "search_qa"])
def test_the_measured_tables_come_out_of_their_data(environment):
    with mock.patch.dict(registry._REGISTRY):  # what an example registers is not there for other tests
        from compare_credit import over_seeds
        from compare_real import CEILING, table

    lines = [json.loads(line) for line in (DOCS / "lab" / "real" / f"{environment}.jsonl").read_text().splitlines()]
    lines.sort(key=lambda line: line["seed"])
    rows = table(lines, [name for name in lines[0]["scores"] if name != CEILING], over_seeds)
    page = (DOCS / "lab" / "real" / f"{environment}.md").read_text(encoding="utf-8")
    assert all(row in page for row in rows)
    beside = (DOCS / "fidelity.md").read_text(encoding="utf-8").split("## Against measured")[1]
    place = {"alfworld": 4, "webshop": 6, "search_qa": 8}[environment]
    cells = {row.split(" | ")[0].strip("| "): row.strip("| ").split(" | ")[1:3] for row in rows[2:]}
    shown = [line.strip("|").split("|") for line in beside.splitlines() if line.startswith("| ")][1:]
    assert len(shown) > 20
    for row in shown[1:]:
        assert [row[place - 1].strip(), row[place].strip()] == cells[row[0].strip()], row[0]


@pytest.mark.slow
def test_credit_is_compared_with_measured_advantages_and_goes_on_where_it_was(tmp_path):
    command = [sys.executable, str(DOCS.parent / "examples" / "compare_credit.py"), "--real", "search_qa"]
    command += ["--methods", "gigpo", "agent_opsd", "tree_grpo", "--groups", "3", "--continuations", "2"]
    command += ["--workers", "1", "--output", str(tmp_path), "--seeds"]
    for seeds in ("1", "2"):
        done = subprocess.run([*command, seeds], capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert f"seed {int(seeds) - 1}:" in done.stdout
    assert "seed 0:" not in done.stdout.split("search_qa: seeds")[0]
    page = (tmp_path / "search_qa.md").read_text()
    assert all(f"| {name} |" in page for name in ("grpo", "gigpo", "agent_opsd", "half of the continuations"))
    assert "Left out: tree_grpo: it plays rollouts of its own" in page
    assert len((tmp_path / "search_qa.jsonl").read_text().splitlines()) == 2
