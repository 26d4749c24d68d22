"""Write docs/pictures: those of docs/notebooks/credit_on_saved_trajectories.ipynb, from its own code, the same table at
one scale, and the curves of docs/lab/agents_webshop.jsonl.

python docs/make_pictures.py     # needs turncredit[viz]
"""

from __future__ import annotations

import ast
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from turncredit.credit.lab.viz import plot_methods
from turncredit.trainers.launch import plot_runs

DOCS = Path(__file__).resolve().parent
NOTEBOOK = DOCS / "notebooks" / "credit_on_saved_trajectories.ipynb"
NAMES = ("trajectory", "tokens", "group", "methods")  # in the order of the notebook
RUNS = DOCS / "lab" / "agents_webshop.jsonl"
METHODS = ("grpo", "agent_opsd", "posterior")


def shown(notebook: Path, space: dict[str, Any]) -> list[Any]:
    """What the cells of a notebook display: the value of each last line that is an expression; names go to `space`."""
    values = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, notebook.name, "exec"), space)
        if isinstance(last, ast.Expr):
            values.append(eval(compile(ast.Expression(last.value), notebook.name, "eval"), space))
    return values


def runs(folder: Path) -> Any:
    """Training success of some methods, seed by seed, from run folders as a trainer leaves them."""
    records = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
    for record in (record for record in records if record["method"] in METHODS):
        run = folder / record["method"] / f"seed_{record['seed']}"
        run.mkdir(parents=True)
        lines = [{"step": step, "rollout/success": value} for step, value in enumerate(record["success"], 1)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return plot_runs([folder / method for method in METHODS], title="Success of the training rollouts, WebShop")


def main() -> None:
    os.chdir(NOTEBOOK.parent)
    space: dict[str, Any] = {"__name__": "pictures"}
    pictures = [value for value in shown(NOTEBOOK, space) if hasattr(value, "savefig") or hasattr(value, "save")]
    found: dict[str, Any] = dict(zip(NAMES, pictures, strict=True))
    title = "The same episode at one scale"
    options: dict[str, Any] = {
        "labels": space["actions"],
        "exact_advantages": space["exact"],
        "title": title,
        "scale": "shared",
    }
    found["methods_shared"] = plot_methods(space["results"], space["inputs"], 1, **options)
    with tempfile.TemporaryDirectory() as folder:
        found["runs"] = runs(Path(folder))
    for name, picture in found.items():
        if hasattr(picture, "savefig"):
            picture.savefig(DOCS / "pictures" / f"{name}.png", dpi=80)
        else:
            picture.save(DOCS / "pictures" / f"{name}.html")


if __name__ == "__main__":
    main()
