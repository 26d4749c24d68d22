"""The public names of the library, read from its sources; nothing of it is imported."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINKS = ROOT / ".typing"
PACKAGES = ("credit", "rollout", "trainers", "envs")


def public_names() -> dict[str, list[str]]:
    """What ``__all__`` lists, by package."""
    found = {}
    for name in PACKAGES:
        for init in sorted((ROOT / name).rglob("__init__.py")):
            package = ".".join(("turncredit", *init.parent.relative_to(ROOT).parts))
            found[package] = listed(init)
    return {"turncredit": listed(LINKS / "turncredit" / "__init__.py"), **{k: v for k, v in found.items() if v}}


def listed(init: Path) -> list[str]:
    """``__all__`` of one file; empty where it has none."""
    for statement in ast.parse(init.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return ast.literal_eval(statement.value)
    return []


def ten_lines() -> str:
    """The README's ten lines for a notebook."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.split("## Ten lines in a notebook", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
