"""The notebook on foreign traces runs, shows its pictures, and holds nothing of the machine that ran it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from turncredit.rollout import load_traces

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
NOTEBOOK = FOLDER / "bring_your_traces.ipynb"


@pytest.mark.slow
def test_the_notebook_of_traces_runs():
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    for needed in ("ipykernel", "matplotlib", "pandas"):
        pytest.importorskip(needed)
    notebook = nbformat.read(NOTEBOOK, 4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert kinds.count("image/png") == 1
    assert kinds.count("text/html") == 3
    said = "".join(output.get("text", "") for output in outputs)
    assert """[['look({"at": "door"})', 'open red'], ['look({"at": "door"})', 'open blue']] [1.0, 0.0]""" in said
    assert "left out: [(2, 'reward must be known" in said


def test_five_lines_lead_from_the_file_to_the_picture():
    cells = ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]]
    lines = next(cell for cell in cells if cell.startswith("traces = load_traces")).splitlines()
    assert len(lines) == 5
    assert lines[-1].startswith("plot_group(")


def test_the_notebook_of_traces_was_run_and_has_no_machine_in_it():
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|tmp|work|Users)/|Warning|stderr", text)
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))


def test_its_file_holds_mixed_groups():
    traces = load_traces(FOLDER / "houses.jsonl")
    tasks = sorted({trace.task_id for trace in traces})
    assert [sum(t.task_id == task for t in traces) for task in tasks] == [6, 6, 6]
    assert all({t.success for t in traces if t.task_id == task} == {0.0, 1.0} for task in tasks)
