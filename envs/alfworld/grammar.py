# TextWorld has no type information
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
"""TextWorld's text grammar, derived without copies: the same words, with every pure piece remembered.

A game's grammar is a document that differs from the next game's only in one line, the goal. Parsing it, parsing its
snippets and parsing its queries are functions of text alone, so each text is parsed once per process. Deriving keeps
an immutable parse and a small binding of variables beside it where TextWorld deep-copies symbols and contexts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple, Protocol

from textworld.envs.pddl import logic as pddl_logic
from textworld.envs.pddl import textgen
from textworld.logic import Rule

_GOAL = re.compile(r'("rhs":\s*"Your task is to: )([^"\\#{}\[\]<>;|]*)(")')
_PLACEHOLDER = "UNKNOWN GOAL"


class Binding(NamedTuple):
    """What the names of a snippet stand for: ``variables`` for the words, ``mapping`` for the queries."""

    variables: Mapping[str, Any]
    mapping: Mapping[Any, Any]


class Facts(Protocol):
    """The part of a game state that the grammar asks: the assignments that make a conjunctive query true."""

    def matches(self, query: str, mapping: Mapping[Any, Any]) -> Iterable[Mapping[Any, Any]]: ...


@lru_cache(maxsize=4096)
def parse_snippet(text: str) -> tuple[textgen.Symbol, ...]:
    """The symbols of one grammar snippet; read-only, because they are shared."""
    return tuple(textgen._parse_and_convert(text, rule_name="symbols"))


@lru_cache(maxsize=4096)
def parse_query(text: str) -> Rule:
    """A conjunctive query as a rule without effects."""
    return Rule.parse_conjunctive_query(text)


@lru_cache(maxsize=4096)
def _compiled(expression: str) -> CodeType:
    return compile(expression.strip(), "<grammar>", "eval")


@lru_cache(maxsize=16)
def _parse_template(document: str) -> tuple[dict[str, Any], dict[str, list[textgen.ProductionRule]]]:
    actions, grammar = pddl_logic._parse_and_convert(document, rule_name="pddlStart")
    return actions, dict(grammar._rules)


def parse_document(document: str) -> tuple[dict[str, Any], dict[str, list[textgen.ProductionRule]]]:
    """Actions and production rules of a ``.twl2`` document.

    Documents that differ in the goal line alone share one parse. The goal is plain text by the pattern's character
    class, so it can be put back as one terminal snippet.
    """
    goals = _GOAL.findall(document)
    if len(goals) != 1:
        return _parse_template(document)
    goal = goals[0][1]
    actions, rules = _parse_template(_GOAL.sub(rf"\g<1>{_PLACEHOLDER}\g<3>", document))
    return actions, {name: [_with_goal(rule, goal) for rule in group] for name, group in rules.items()}


def _with_goal(rule: textgen.ProductionRule, goal: str) -> textgen.ProductionRule:
    text = "".join(str(symbol) for symbol in rule.rhs)
    if _PLACEHOLDER not in text:
        return rule
    return textgen.ProductionRule(
        rule.lhs, list(parse_snippet(text.replace(_PLACEHOLDER, goal))), rule.weight, rule.condition
    )


class Grammar:
    """Production rules that turn a snippet and a state into words.

    Args:
        rules: production rules by the symbol they replace.
    """

    def __init__(self, rules: Mapping[str, Sequence[textgen.ProductionRule]]) -> None:
        self._rules = rules

    def derive(self, snippet: str, facts: Facts, entities: Mapping[str, Any], binding: Binding) -> str:
        """The text of `snippet` in the state `facts`."""
        stack = [(symbol, binding) for symbol in reversed(parse_snippet(snippet))]
        words: list[str] = []
        while stack:
            symbol, bound = stack.pop()
            if isinstance(symbol, textgen.TerminalSymbol):
                words.append(str(symbol))
            elif isinstance(symbol, textgen.EvalSymbol):
                words.append(str(eval(_compiled(symbol.expression), {"__builtins__": {}}, dict(bound.variables))))
            elif isinstance(symbol, textgen.NonterminalSymbol):
                stack += [(part, bound) for part in reversed(self._replacement(symbol, facts, bound))]
            elif isinstance(symbol, textgen.ConditionalSymbol):
                stack += reversed(_expand(symbol, facts, entities, bound))
            elif isinstance(symbol, textgen.ListSymbol):
                stack += reversed(_enumerated(_expand(symbol.symbol, facts, entities, bound), bound))
            else:
                raise NotImplementedError(f"derive: snippet holds an unknown symbol {type(symbol).__name__}")
        return "".join(words)

    def _replacement(self, symbol: textgen.Symbol, facts: Facts, bound: Binding) -> Sequence[textgen.Symbol]:
        rules = self._rules.get(str(symbol))
        if not rules:
            raise textgen.CSGUnknownSymbolError(symbol)
        for rule in rules:
            if not rule.condition or any(True for _ in facts.matches(rule.condition, bound.mapping)):
                return rule.rhs
        raise IndexError(f"derive: no rule for #{symbol}# applies in this state")


def _expand(
    symbol: textgen.ConditionalSymbol, facts: Facts, entities: Mapping[str, Any], bound: Binding
) -> list[tuple[textgen.Symbol, Binding]]:
    if not symbol.given:
        return [(symbol.expression, bound)]
    return [
        (
            symbol.expression,
            Binding({**bound.variables, **{ph.name: entities[var.name] for ph, var in mapping.items()}}, mapping),
        )
        for mapping in facts.matches(symbol.given, bound.mapping)
    ]


_EMPTY, _SEPARATOR, _LAST = (
    textgen.NonterminalSymbol(name) for name in ("list_empty", "list_separator", "list_last_separator")
)


def _enumerated(items: list[tuple[textgen.Symbol, Binding]], bound: Binding) -> list[tuple[textgen.Symbol, Binding]]:
    if not items:
        return [(_EMPTY, bound)]
    parts = [items[0]]
    for position, item in enumerate(items[1:], start=2):
        parts += [(_LAST if position == len(items) else _SEPARATOR, bound), item]
    return parts
