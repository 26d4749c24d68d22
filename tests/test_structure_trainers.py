"""The shape of the library that docs/architecture.md promises: who branches on names, how long signatures are, rooms.

What does not hold yet stands in a set that may only shrink: an entry that is no longer needed fails the test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from helpers.recorder import NAMES

import turncredit.trainers as trainers

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("credit", "envs", "rollout", "trainers")
SIGNALS = {
    "teacher_logprobs",
    "span_mask",
    "anchor_ids",
    "turn_rewards",
    "valid_actions",
    "correspondence",
    "entropies",
    "values",
    "progress",
    "answer_logprobs",
    "reward_model_logprobs",
    "ref_logprobs",
}
METHODS = set(NAMES.split())

KNOWN_BRANCHES: set[str] = set()
KNOWN_SIGNATURES: set[str] = set()
KNOWN_MISSING: set[str] = set()


def assert_only(found: set[str], known: set[str]) -> None:
    assert not found - known, f"new: {sorted(found - known)}"
    assert not known - found, f"no longer there, remove them from the set of known ones: {sorted(known - found)}"


def modules(*packages: str) -> Iterator[tuple[str, ast.Module]]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def compared(node: ast.AST) -> list[ast.expr]:
    """What a comparison or a case of a match is decided by."""
    if isinstance(node, ast.Compare) and all(isinstance(op, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)) for op in node.ops):
        return [node.left, *node.comparators]
    return [node.value] if isinstance(node, ast.MatchValue) else []


def branches(tree: ast.Module, names: set[str]) -> set[str]:
    """Comparisons with one of the names, alone or in a collection written out."""
    found = set()
    for node in ast.walk(tree):
        for side in compared(node):
            parts = side.elts if isinstance(side, (ast.Tuple, ast.List, ast.Set)) else [side]
            if any(isinstance(part, ast.Constant) and part.value in names for part in parts):
                found.add(ast.unparse(node))
    return found


def test_the_search_for_branches_finds_them():
    code = "if a == 'x' or b in ('y', 'z') or 'x' in c: pass\nmatch d:\n    case 'z': pass\nf = {'x': 1}['x'], a == 'q'"
    assert branches(ast.parse(code), {"x", "y", "z"}) == {"a == 'x'", "b in ('y', 'z')", "'x' in c", "'z'"}


def test_nothing_outside_of_the_methods_branches_on_the_name_of_a_method_or_signal():
    found = {
        f"{path}: {text}"
        for path, tree in modules("trainers")
        if not path.startswith("trainers/methods/")
        for text in branches(tree, METHODS | SIGNALS)
    }
    assert_only(found, KNOWN_BRANCHES)


def decorators(node: ast.ClassDef) -> dict[str, list[str]]:
    """Name of a decorator -> its keyword arguments that are True."""
    found = {}
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        name = ast.unparse(call.func if call else decorator).split(".")[-1]
        found[name] = [k.arg or "" for k in call.keywords if ast.unparse(k.value) == "True"] if call else []
    return found


def positional(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every function, constructor and class with behaviour, and how many arguments it takes by position."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
            yield node.name, len([name for name in names if name not in ("self", "cls")])
        if isinstance(node, ast.ClassDef) and "dataclass" in (kinds := decorators(node)):
            called = any(isinstance(part, ast.FunctionDef) and part.name == "__call__" for part in node.body)
            if called and "kw_only" not in kinds["dataclass"]:
                yield node.name, len([part for part in node.body if isinstance(part, ast.AnnAssign)])


def test_no_signature_is_longer_than_ten():
    """A dataclass that only holds values is a record and may be; one that is called is a function in disguise."""
    found = {
        f"{path}: {name} ({count})"
        for path, tree in modules(*PACKAGES)
        for name, count in positional(tree)
        if count > 10
    }
    assert_only(found, KNOWN_SIGNATURES)


def test_the_configuration_has_at_most_thirty_fields():
    assert len(fields(trainers.GRPOConfig)) <= 30
    for group in (*trainers.config.GROUPS.values(),):
        assert len(fields(group)) <= 10, group


def test_every_room_on_the_page_exists():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = set(re.findall(r"`((?:credit|envs|rollout|trainers|tests)/[\w/.]*)`", page))
    pages = {f"docs/{name}" for name in re.findall(r"\]\((\w+\.md)\)", page)}
    assert len(rooms) > 30
    assert_only({name for name in rooms | pages if not (ROOT / name).exists()}, KNOWN_MISSING)
