"""Write docs/pictures: the pictures of docs/notebooks/credit_on_saved_trajectories.ipynb, from its own code.

python docs/make_pictures.py     # needs turncredit[viz]
"""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
NOTEBOOK = DOCS / "notebooks" / "credit_on_saved_trajectories.ipynb"
NAMES = ("trajectory", "tokens", "group", "methods")  # in the order of the notebook


def shown(notebook: Path) -> list[Any]:
    """What the cells of a notebook display: the value of each last line that is an expression."""
    space: dict[str, Any] = {"__name__": "pictures"}
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


def main() -> None:
    os.chdir(NOTEBOOK.parent)
    pictures = [value for value in shown(NOTEBOOK) if hasattr(value, "savefig") or hasattr(value, "save")]
    for name, picture in zip(NAMES, pictures, strict=True):
        if hasattr(picture, "savefig"):
            picture.savefig(DOCS / "pictures" / f"{name}.png", dpi=80)
        else:
            picture.save(DOCS / "pictures" / f"{name}.html")


if __name__ == "__main__":
    main()
