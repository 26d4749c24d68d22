"""What a command line may name, read from the sources: options with their defaults, methods. Loads neither torch nor
the library, so that a typo is answered at once."""

from __future__ import annotations

import ast
import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_TRAINERS = Path(__file__).resolve().parents[1]
_CONFIG = _TRAINERS / "config.py"
_SAMPLING = _TRAINERS.parent / "rollout" / "sampling.py"


@dataclass(frozen=True)
class Option:
    """An option of `GRPOConfig`.

    Args:
        name: its own name.
        group: the field that it lies in; empty where it lies in none.
        kind: its annotation.
        default: its value where nobody says another.
        help: its line of the documentation.
    """

    name: str
    group: str
    kind: str
    default: Any
    help: str


@lru_cache
def known_options() -> tuple[Option, ...]:
    """Every option of `GRPOConfig` that is not a group, in the order of the sources."""
    trees = [_tree(_CONFIG), _tree(_SAMPLING)]
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    groups = _groups()
    found = [*_fields(classes["GRPOConfig"], "")]
    own = [option for option in found if option.name not in groups]
    return (*own, *(option for group, name in groups.items() for option in _fields(classes[name], group)))


@lru_cache
def other_names() -> frozenset[str]:
    """Names that `GRPOConfig` has something to say about, although they are no options: TRL's, and those that moved."""
    absent = ast.walk(_value(_TRAINERS / "trl.py", "_ABSENT"))
    tables = [node for node in absent if isinstance(node, ast.Dict)]
    keys = {str(ast.literal_eval(key)) for table in tables for key in table.keys if key is not None}
    return frozenset({*keys, *ast.literal_eval(_value(_CONFIG, "MOVED")), "scale_rewards", "method_options"})


def is_option(name: str) -> bool:
    """Whether `GRPOConfig` takes the name, or says itself what to do instead."""
    known = {option.name for option in known_options()} | set(_groups()) | other_names()
    return name in known or name.startswith("vllm_")


def flat(options: dict[str, Any]) -> dict[str, Any]:
    """Options by their own names, of a mapping with groups or without."""
    groups = {name: options[name] for name in _groups() if isinstance(options.get(name), dict)}
    own = {name: value for name, value in options.items() if name not in groups}
    return own | {name: value for group in groups.values() for name, value in group.items()}


def known_methods() -> list[str]:
    """`list_methods` where the library is loaded, with what was registered beside it; else the names in its sources."""
    loaded = sys.modules.get(f"{__name__.rpartition('.launch')[0]}.methods")
    return loaded.list_methods() if loaded is not None else sorted(_shipped_methods())


def advice(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """``did you mean 'x'?`` for a name that is like a known one, else `otherwise`, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, 5)
    close.sort(key=lambda other: sorted(other) != sorted(name))  # letters that only changed places come first
    return f"did you mean {close[0]!r}?" if close else otherwise or f"known are {', '.join(names)}"


@lru_cache
def _shipped_methods() -> frozenset[str]:
    files = [*(_TRAINERS.parent / "credit").rglob("*.py"), *(_TRAINERS / "methods").glob("*.py")]
    return frozenset(name for file in files for name in _registered(file))


def _registered(file: Path) -> Iterator[str]:
    """Names in a file's calls of ``register_credit`` and ``register_method``, and in the tables of presets."""
    text = file.read_text(encoding="utf-8")
    if not re.search(r"^@register_(credit|method)\(", text, re.M):
        return
    for node in ast.parse(text).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            yield from _rows(node)
        calls = getattr(node, "decorator_list", [node.value] if isinstance(node, ast.Expr) else [])
        for call in filter(_registers, calls):
            yield str(ast.literal_eval(call.args[0]))
            for keyword in call.keywords:
                yield from _rows(keyword)


def _registers(call: ast.expr) -> bool:
    """``register_credit("name", ..)`` and its like, or a call of a function of the file's own that does it."""
    if not (isinstance(call, ast.Call) and call.args and _is_text(call.args[0])):
        return False
    name = ast.unparse(call.func)
    return name in ("register_credit", "register_method") or name.startswith("_")


def _rows(node: ast.AST) -> Iterator[str]:
    for table in ast.walk(node):
        for key, value in zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(value, (ast.Dict, ast.Call)):
                yield str(key.value)


def _fields(node: ast.ClassDef, group: str) -> Iterator[Option]:
    said = _arguments(ast.get_docstring(node) or "")
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            name = part.target.id
            yield Option(name, group, ast.unparse(part.annotation), _default(part.value), said.get(name, ""))


def _default(value: ast.expr | None) -> Any:
    """Of ``option(default, rule)`` or of a plain default; a field that makes its own starts empty."""
    first = value.args[0] if isinstance(value, ast.Call) and value.args else value
    return {} if isinstance(first, ast.Call) or first is None else ast.literal_eval(first)


def _arguments(text: str) -> dict[str, str]:
    """Lines of a docstring's ``Args``; names that share a line share its text."""
    _, _, part = text.partition("Args:\n")
    found: dict[str, str] = {}
    for names, words in re.findall(r"^ {4}(\w[\w, ]*): ((?:.*)(?:\n {8}.*)*)", part.split("\n\n")[0], re.M):
        found |= dict.fromkeys(names.split(", "), re.sub(r"\s+", " ", words).replace("``", ""))
    return found


@lru_cache
def _groups() -> dict[str, str]:
    """Field of a group -> its class."""
    table = _value(_CONFIG, "GROUPS")
    assert isinstance(table, ast.Dict)
    pairs = zip(table.keys, table.values, strict=True)
    return {str(ast.literal_eval(key)): ast.unparse(value) for key, value in pairs if key is not None}


def _value(file: Path, name: str) -> ast.expr:
    for node in _tree(file).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node.value  # type: ignore[attr-defined]
    raise LookupError(f"{file.name} has no {name}")


@lru_cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _is_text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
