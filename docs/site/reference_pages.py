"""Pages of the reference: the public names of every package, by their docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

PACKAGES = ("credit", "rollout", "trainers", "envs")


def reference_pages(root: Path) -> dict[str, str]:
    """A page for every package that lists public names, and for every module that the pages import from, by its name.

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
    texts = "".join(page.read_text(encoding="utf-8") for page in (root / "docs").glob("*.md"))
    for name in set(re.findall(r"^from (turncredit\.[\w.]+) import", texts, re.M)) - pages.keys():
        pages[name] = f"# {name}\n\n::: {name}\n    options:\n      heading_level: 2\n"
    return dict(sorted(pages.items()))


def _page(name: str, names: list[str]) -> str:
    places = _by_themselves(name, names)
    listed = "".join(f"\n        - {public}" for public in names if public not in places)
    page = f"# {name}\n\n::: {name}\n    options:\n      heading_level: 2\n      members:{listed or ' false'}\n"
    return page + "".join(
        f"\n::: {place}\n    options:\n      heading_level: 2\n      show_root_heading: true\n"
        f"      show_root_toc_entry: true\n      show_root_full_path: false\n"
        for place in places.values()
    )


def _by_themselves(package: str, names: list[str]) -> dict[str, str]:
    """Where public modules lie, and things that have their module's name: read from source, the module hides those."""
    values = {name: getattr(importlib.import_module(package), name) for name in names}
    modules = {name: value.__name__ for name, value in values.items() if inspect.ismodule(value)}
    homes = {name: getattr(value, "__module__", None) or "" for name, value in values.items()}
    return modules | {name: f"{home}.{name}" for name, home in homes.items() if home.endswith(f".{name}")}


def _listed(init: Path) -> list[str]:
    """``__all__`` of a package; empty where it has none."""
    for statement in ast.parse(init.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return ast.literal_eval(statement.value)
    return []
