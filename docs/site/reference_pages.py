"""Pages of the reference: the public names of every package, by their docstrings."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGES = ("credit", "rollout", "trainers", "envs")


def reference_pages(root: Path) -> dict[str, str]:
    """A page for every package that lists public names, and one for every module of `credit.lab`, by its dotted name.

    Args:
        root: the checkout.
    """
    pages = {}
    for package in PACKAGES:
        for init in sorted((root / package).rglob("__init__.py")):
            name = ".".join(("turncredit", *init.parent.relative_to(root).parts))
            names = _listed(init)
            if names:
                pages[name] = _page(name, names)
    return pages


def _page(name: str, names: list[str]) -> str:
    listed = "".join(f"\n        - {public}" for public in names)
    return f"# {name}\n\n::: {name}\n    options:\n      heading_level: 2\n      members:{listed}\n"


def _listed(init: Path) -> list[str]:
    """``__all__`` of a package; empty where it has none."""
    for statement in ast.parse(init.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return ast.literal_eval(statement.value)
    return []
