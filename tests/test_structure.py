"""The shape of the code: no import circles, few rooms, equations that ship."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("credit", "rollout", "trainers", "envs")
ALLOWED = {  # who may import whom, besides itself
    "credit": set(),
    "envs": set(),
    "rollout": {"envs"},
    "trainers": {"credit", "rollout", "envs"},
}
KNOWN_CIRCLES: set[frozenset[str]] = set()


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below ``turncredit``; a package is its ``__init__``."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements but those under TYPE_CHECKING; an import inside a function hides a circle, it does not cut it."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from statements(node.orelse)
        else:
            yield node
            for part in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of the package that this one needs.

    ``from .room import thing`` needs ``room`` and, where ``thing`` is a module, that; what the packages above the room
    export is needed too, but for those that the importing module lies in, whose import is under way already.
    """
    found = set()
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):
            targets = [alias.name.removeprefix("turncredit.") for alias in node.names if "turncredit." in alias.name]
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("turncredit.")):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module or "").removeprefix("turncredit.").split(".") if node.module else base
            targets = [".".join(base)] + [".".join([*base, alias.name]) for alias in node.names]
        else:
            continue
        for target in targets:
            parts = target.split(".")
            above = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
            found |= {room for room in above if room in known and not f"{name}.".startswith(f"{room}.")}
    return found


def circles(arrows: dict[str, set[str]]) -> set[frozenset[str]]:
    """Sets of modules that reach each other (strongly connected, more than one)."""
    reached = {name: set(targets) for name, targets in arrows.items()}
    for middle in arrows:
        for name in arrows:
            if middle in reached[name]:
                reached[name] |= reached[middle]
    return {
        frozenset(other for other in arrows if other in reached[name] and name in reached[other])
        for name in arrows
        if name in reached[name]
    }


def arrows() -> dict[str, set[str]]:
    known = modules()
    return {name: imports(name, path, known) for name, path in known.items()}


def test_no_module_needs_itself() -> None:
    assert circles(arrows()) == KNOWN_CIRCLES


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == {frozenset({"b", "c"})}


def test_dependencies_run_one_way() -> None:
    wrong = {
        (name, target)
        for name, targets in arrows().items()
        for target in targets
        if target.split(".")[0] not in ALLOWED[name.split(".")[0]] | {name.split(".")[0]}
    }
    assert wrong == set()


@pytest.mark.parametrize(("room", "most"), [("agent", 4), ("align", 7)])
def test_a_method_lives_in_few_rooms(room: str, most: int) -> None:
    inside = [path for path in (ROOT / "credit" / room).rglob("*.py") if path.name != "__init__.py"]
    assert 0 < len(inside) <= most


def test_nobody_reaches_past_the_door_of_a_method() -> None:
    """Packages of a method are entered by their ``__init__``, whoever comes."""
    for name, path in modules().items():
        for room in ("agent", "align"):
            if not name.startswith(f"credit.{room}"):
                assert not re.search(rf"^from \S*\b{room}\.\w+ import", path.read_text(encoding="utf-8"), re.M), name


def test_the_front_door_of_credit_is_small() -> None:
    from turncredit import credit

    assert len(credit.__all__) <= 16
    assert sorted(credit.__all__) == credit.__all__


def shipped_code() -> Iterator[tuple[str, str]]:
    """Every file of code that ships or is an example, by its name in the checkout."""
    for folder in (*FOLDERS, "examples", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """What a heading is called in a link to it, as GitHub has it."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_document_that_code_cites_ships_with_its_anchor() -> None:
    missing, cited = set(), 0
    for name, text in shipped_code():
        for page, anchor in re.findall(r"\b((?:docs/)[\w/]+\.md)(?:#([\w-]+))?", text):
            cited += 1
            if not (ROOT / page).is_file() or (anchor and anchor not in anchors(ROOT / page)):
                missing.add((name, page, anchor))
    assert missing == set()
    assert cited > 20


def test_every_anchor_of_the_equations_that_a_page_links_to_is_there() -> None:
    for page in sorted((ROOT / "docs").glob("*.md")):
        for target, anchor in re.findall(r"\]\((\w+\.md)?#([\w-]+)\)", page.read_text(encoding="utf-8")):
            assert anchor in anchors(ROOT / "docs" / target if target else page), (page.name, target, anchor)


def test_no_code_cites_a_page_that_does_not_ship() -> None:
    word = "METHODS"
    for name, text in shipped_code():
        if not name.startswith("benchmarks"):  # one names its list of methods so
            assert not re.search(rf"\b{word}(_MORE)?\b", text), name


def test_sources_of_credit_name_an_equation() -> None:
    for name, text in shipped_code():
        if name.startswith("credit/"):
            for source in re.findall(r"Source: ((?:.+\n?){1,3})", text):
                assert re.search(r"docs/equations\.md#[\w-]+|Eq\. \(?\d", source), (name, source)
