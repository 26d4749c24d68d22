# TextWorld has no type information
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
"""A game's PDDL translated once: what the planner library loads, and what its operators and types mean.

TextWorld translates the same problem four times for a load and a reset (a plain and an optimised version each); the
translation is a function of the two texts, so it is remembered, and the optimised version is made when a plan is asked.
"""

from __future__ import annotations

import gc
import gzip
import hashlib
import json
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import fast_downward
from textworld.logic import Proposition, Variable

TRANSLATION_FILE = "translation.json.gz"
_FORMAT = "turncredit-translation-1"


@dataclass(frozen=True)
class Translation:
    """The translation of one problem.

    Args:
        compressed: the planning task in the planner's own text format, compressed.
        parameters: per action, its parameters as (name, type).
        object_types: type of every object.
        types: (type, its supertypes), in the order of declaration.
        initial: propositions of the initial state as the problem file gives them, sorted.
        fluents: predicates that some action or axiom can change; all others stay as they are for the whole game.
    """

    compressed: bytes
    parameters: dict[str, tuple[tuple[str, str], ...]]
    object_types: dict[str, str]
    types: tuple[tuple[str, tuple[str, ...]], ...]
    initial: tuple[Proposition, ...]
    fluents: frozenset[str]

    @property
    def sas(self) -> bytes:
        """The planning task as the planner library reads it."""
        return zlib.decompress(self.compressed)


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Give ``sys.argv`` and ``sys.stdout`` back as they were; no garbage collection in a burst of small objects."""
    argv, stdout, collecting = sys.argv, sys.stdout, gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        sys.argv, sys.stdout = argv, stdout
        if collecting:
            gc.enable()


def translate(domain: str, problem: str, saved: str | os.PathLike[str] | None = None) -> Translation:
    """The translation of `problem` over `domain`: remembered, else read from `saved`, else computed.

    Args:
        domain, problem: PDDL texts.
        saved: a file that `save_translation` wrote; one that is absent, damaged or of other texts is not used.

    Returns:
        A shared, read-only translation.
    """
    key = _digest(domain, problem)
    known = _KNOWN.get(key)
    if known is None:
        known = _read(saved, key) if saved is not None else None
        known = known or _compute(domain, problem)
        while len(_KNOWN) >= _REMEMBERED:
            del _KNOWN[next(iter(_KNOWN))]
    else:
        del _KNOWN[key]
    _KNOWN[key] = known
    return known


_KNOWN: dict[str, Translation] = {}
_REMEMBERED = 512


def save_translation(path: str | os.PathLike[str], domain: str, problem: str) -> None:
    """Write the translation beside its game, so that other processes load the game some ten times faster."""
    known = translate(domain, problem)
    content = {
        "format": _FORMAT,
        "key": _digest(domain, problem),
        "sas": known.sas.decode("utf-8"),
        "parameters": known.parameters,
        "object_types": known.object_types,
        "types": known.types,
        "initial": [[fact.name, *fact.names] for fact in known.initial],
        "fluents": sorted(known.fluents),
    }
    with open(path, "wb") as stream:
        stream.write(gzip.compress(json.dumps(content).encode("utf-8"), compresslevel=6, mtime=0))


def _read(path: str | os.PathLike[str], key: str) -> Translation | None:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            content = json.load(stream)
    except (OSError, EOFError, ValueError, zlib.error):
        return None
    if not isinstance(content, dict) or content.get("format") != _FORMAT or content.get("key") != key:
        return None
    types = content["object_types"]
    return Translation(
        compressed=zlib.compress(content["sas"].encode("utf-8"), 1),
        parameters={
            name: tuple((parameter, kind) for parameter, kind in items) for name, items in content["parameters"].items()
        },
        object_types=types,
        types=tuple((name, tuple(supertypes)) for name, supertypes in content["types"]),
        initial=tuple(
            Proposition(name, [Variable(entity, types[entity]) for entity in entities])
            for name, *entities in content["initial"]
        ),
        fluents=frozenset(content["fluents"]),
    )


def _digest(domain: str, problem: str) -> str:
    return hashlib.sha256(f"{len(domain)}\n{domain}{problem}".encode()).hexdigest()


def _compute(domain: str, problem: str) -> Translation:
    with unchanged_process():
        task, sas = fast_downward.pddl2sas(domain, problem)
    object_types = {item.name: item.type_name for item in task.objects}
    initial = filter(None, (_proposition(item, object_types) for item in task.init))
    effects = {effect.literal.predicate for action in task.actions for effect in action.effects}
    return Translation(
        compressed=zlib.compress(sas.encode("utf-8"), 1),
        parameters={
            action.name: tuple((parameter.name.strip("?"), parameter.type_name) for parameter in action.parameters)
            for action in task.actions
        },
        object_types=object_types,
        types=tuple((kind.name, tuple(kind.supertype_names)) for kind in task.types),
        initial=tuple(sorted(initial, key=lambda fact: (fact.name, fact.names))),
        fluents=frozenset(effects | {axiom.name for axiom in task.axioms}),
    )


def translate_for_planning(domain: str, problem: str) -> bytes:
    """The pruned translation that the planner searches in."""
    with unchanged_process():
        return fast_downward.pddl2sas(domain, problem, optimize=True)[1].encode("utf-8")


def _proposition(item: Any, object_types: dict[str, str]) -> Proposition | None:
    conditions, expressions = fast_downward.translate.pddl.conditions, fast_downward.translate.pddl.f_expression
    if isinstance(item, conditions.Atom) and item.predicate != "=":
        return Proposition(item.predicate, [Variable(name, object_types[name]) for name in item.args])
    if isinstance(item, expressions.Assign) and item.fluent.symbol != "total-cost":
        name = str(item.expression.value)
        if not name.isdigit():
            return Proposition(name, [Variable(arg, object_types[arg]) for arg in item.fluent.args])
    return None
