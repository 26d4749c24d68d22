"""A game's PDDL translated once: what the planner library loads, and what its operators and types mean.

TextWorld translates the same problem four times for a load and a reset (a plain and an optimised version each); the
translation is a function of the two texts, so it is remembered, and the optimised version is made when a plan is asked.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import fast_downward
from textworld.logic import Proposition, Variable


@dataclass(frozen=True)
class Translation:
    """The translation of one problem.

    Args:
        sas: the planning task in the planner's own text format.
        parameters: per action, its parameters as (name, type).
        object_types: type of every object.
        types: (type, its supertypes), in the order of declaration.
        initial: propositions of the initial state as the problem file gives them.
        fluents: predicates that some action or axiom can change; all others stay as they are for the whole game.
    """

    sas: bytes
    parameters: dict[str, tuple[tuple[str, str], ...]]
    object_types: dict[str, str]
    types: tuple[tuple[str, tuple[str, ...]], ...]
    initial: tuple[Proposition, ...]
    fluents: frozenset[str]


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


@lru_cache(maxsize=64)
def translate(domain: str, problem: str) -> Translation:
    """Translate `problem` over `domain`; the result is shared and read-only."""
    with unchanged_process():
        task, sas = fast_downward.pddl2sas(domain, problem)
    object_types = {item.name: item.type_name for item in task.objects}
    effects = {effect.literal.predicate for action in task.actions for effect in action.effects}
    return Translation(
        sas=sas.encode("utf-8"),
        parameters={
            action.name: tuple((parameter.name.strip("?"), parameter.type_name) for parameter in action.parameters)
            for action in task.actions
        },
        object_types=object_types,
        types=tuple((kind.name, tuple(kind.supertype_names)) for kind in task.types),
        initial=tuple(filter(None, (_proposition(item, object_types) for item in task.init))),
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
