# TextWorld has no type information
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
"""TextWorld's PDDL engine with its pure functions remembered: the same transcripts at ten times the speed and more.

`FastPddlEnv` is a `textworld.envs.PddlEnv`: the planner library, the rules and the words are TextWorld's. What differs
is that nothing is computed twice (see `grammar` and `translation`), and that an operator's command is remembered for
the game, because it depends on nothing that an action can change; commands whose text asks about changeable facts are
derived anew each time. TextWorld is not thread-safe, and every new instance keeps a copy of the planner library for the
rest of the process: use one instance for many games, and processes for parallel ones.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import fast_downward
import textworld
from textworld.core import EnvInfos, GameState
from textworld.envs import PddlEnv
from textworld.envs.pddl import logic as pddl_logic
from textworld.envs.pddl import textgen
from textworld.generator.game import EntityInfo
from textworld.logic import Placeholder, Proposition, Signature, Variable

from .grammar import Binding, Grammar, parse_document, parse_query, parse_snippet
from .names import entity_names
from .planner import load_planner
from .translation import TRANSLATION_FILE, Translation, translate, translate_for_planning

NOTHING_HAPPENS = "Nothing happens."


class FastState(pddl_logic.PddlState):
    """The facts of a running game, kept sorted by signature because every query walks them in that order."""

    def __init__(self, lib: Any, game: _Game) -> None:
        self.downward_lib = lib
        self.name2type = game.translation.object_types
        self._hierarchy, self._signatures = game.hierarchy, game.signatures
        self._facts = defaultdict(set)
        self._sorted: dict[Signature, list[Proposition]] = {}
        lib.load_sas(game.translation.sas)
        if not game.facts:
            self.add_facts(game.translation.initial)
            atoms = (pddl_logic.Atom * lib.get_state_size())()
            lib.get_state(atoms)
            facts = (atom.get_fact(self.name2type) for atom in atoms)
            self.add_facts(fact for fact in facts if not fact.is_negation)
            game.facts.update({signature: frozenset(facts) for signature, facts in self._facts.items()})
            game.entities.update(_entity_infos(self))
        self._facts.update({signature: set(facts) for signature, facts in game.facts.items()})

    def add_fact(self, prop: Proposition) -> None:
        self._facts[prop.signature].add(prop)
        self._sorted.pop(prop.signature, None)

    def remove_fact(self, prop: Proposition) -> None:
        self._facts[prop.signature].discard(prop)
        self._sorted.pop(prop.signature, None)

    def matches(self, query: str, mapping: Mapping[Any, Any]) -> Iterator[Mapping[Any, Any]]:
        """Every extension of `mapping` that makes the conjunctive query true, in TextWorld's order."""
        return self._match(parse_query(query).preconditions, 0, dict(mapping))

    def _match(self, conditions: Any, depth: int, mapping: dict[Any, Any]) -> Iterator[Mapping[Any, Any]]:
        if depth == len(conditions):
            yield dict(mapping)
            return
        condition = conditions[depth]
        taken = set(mapping.values())
        for signature in self._matching_signatures(condition):
            for fact in self._ordered(signature):
                extended = _unify(condition.parameters, fact.arguments, mapping, taken)
                if extended is not None:
                    yield from self._match(conditions, depth + 1, extended)

    def _ordered(self, signature: Signature) -> list[Proposition]:
        if signature not in self._sorted:
            facts = self._facts.get(signature, ())
            self._sorted[signature] = sorted(facts, key=_order)
        return self._sorted[signature]

    def _matching_signatures(self, condition: Any) -> list[Signature]:
        if condition not in self._signatures:
            types = [self._hierarchy.get(name) for name in condition.signature.types]
            self._signatures[condition] = [
                Signature(condition.signature.name, [kind.name for kind in kinds])
                for kinds in self._hierarchy.multi_subtypes(types)
            ]
        return self._signatures[condition]


def _order(fact: Any) -> list[tuple[str, str]]:
    return [(argument.name, argument.type) for argument in fact.arguments]


def _unify(parameters: Any, arguments: Any, mapping: dict[Any, Any], taken: set[Any]) -> dict[Any, Any] | None:
    """`mapping` plus this fact's arguments, or None; distinct placeholders never share an entity."""
    new: dict[Any, Any] = {}
    for placeholder, variable in zip(parameters, arguments, strict=True):
        bound = mapping.get(placeholder) or new.get(placeholder)
        if bound is None:
            if variable in taken or variable in new.values():
                return None
            new[placeholder] = variable
        elif bound != variable:
            return None
    return {**mapping, **new}


@dataclass(frozen=True)
class _Operator:
    template: str
    feedback: str
    binding: Binding
    command: str | None


@dataclass(frozen=True)
class _Game:
    """What every engine that plays one game has in common; what depends on nothing that an action changes.

    Args:
        actions, grammar: of its document.
        translation: of its problem.
        hierarchy: of its types.
        facts, entities: by signature and by name, at its start; the first state fills them in.
        signatures: that a condition of a query matches, as far as they were asked for.
        operators: by name, as far as one was applicable.
    """

    actions: Mapping[str, Any]
    grammar: Grammar
    translation: Translation
    hierarchy: textworld.logic.TypeHierarchy
    facts: dict[Signature, frozenset[Proposition]] = field(default_factory=dict)
    entities: dict[str, EntityInfo] = field(default_factory=dict)
    signatures: dict[Any, list[Signature]] = field(default_factory=dict)
    operators: dict[str, _Operator] = field(default_factory=dict)


@lru_cache(maxsize=16)  # siblings play one game at a time
def _game(domain: str, problem: str, grammar: str, saved: str | None) -> _Game:
    actions, rules = parse_document(grammar)
    translation = translate(domain, problem, saved)
    hierarchy = textworld.logic.TypeHierarchy()
    for name, supertypes in translation.types:
        try:
            hierarchy.add(textworld.logic.Type(name, list(supertypes)))
        except ValueError:
            continue
    return _Game(actions, Grammar(rules), translation, hierarchy)


class FastPddlEnv(PddlEnv):
    """A drop-in for `textworld.envs.PddlEnv` plus ALFWorld's entity names.

    States carry ``feedback``, ``admissible_commands``, ``won``, ``lost``, ``score`` and ``done``; ``policy_commands``
    and ``moves`` where the `infos` ask for them. Text that is no admissible command leaves the game as it is.
    """

    def __init__(self, infos: EnvInfos | None = None) -> None:
        textworld.Environment.__init__(self, infos or EnvInfos(won=True, admissible_commands=True))
        self.downward_lib = load_planner()
        self._source: tuple[str, str, str] | None = None

    def load(self, filename_or_data: Any) -> None:
        """Load a ``game.tw-pddl`` file, or its content as a mapping."""
        saved = None
        if isinstance(filename_or_data, Mapping):
            data = filename_or_data
        else:
            saved = os.path.join(os.path.dirname(filename_or_data), TRANSLATION_FILE)
            with open(filename_or_data, encoding="utf-8") as stream:
                data = json.load(stream)
        source = (data["pddl_domain"], data["pddl_problem"], data["grammar"])
        self.walkthrough = data.get("walkthrough")
        if source == self._source:
            return
        self._source = None
        self._game = _game(*source, saved)
        self._pddl_state = FastState(self.downward_lib, self._game)
        self._untouched = True
        self._entity_infos = self._game.entities
        self._source = source

    def reset(self) -> GameState:
        """Start the loaded game."""
        if self._source is None:
            raise ValueError("reset: game must be loaded, got none; call load(path) first")
        if not self._untouched:
            self._pddl_state = FastState(self.downward_lib, self._game)
        self._untouched = True
        self._planner_loaded = False
        self._moves = 0
        self.prev_state = None
        self.state = GameState()
        self.state.feedback = self._derive("#intro#", Binding({}, {}))
        self._gather_infos()
        self.state["score"], self.state["done"] = 0, False
        if "walkthrough" in self.request_infos.extras:
            self.state["extra.walkthrough"] = self.walkthrough or self._plan()
        return self.state

    def step(self, command: str) -> tuple[GameState, int, bool]:
        """Play one command."""
        command = command.strip()
        self.prev_state, self.state = self.state, GameState()
        self.state.last_command = command
        self.state.feedback = NOTHING_HAPPENS
        if command in self._available:
            identifier, effects, operator = self._available[command]
            self._untouched = False
            self._apply(identifier, effects)
            self.state.feedback = self._derive(operator.feedback, operator.binding)
            self._moves += 1
        self._gather_infos()
        if "walkthrough" in self.request_infos.extras:
            self.state["extra.walkthrough"] = self.prev_state["extra.walkthrough"]
        self.state["score"] = 1 if self.state["won"] else 0
        self.state["done"] = self.state["won"] or self.state["lost"]
        return self.state, self.state["score"], self.state["done"]

    def close(self) -> None:
        """Forget the game; the planner library stays loaded until the process ends."""
        self._source = None

    def _apply(self, identifier: int, effects: int) -> None:
        atoms = (pddl_logic.Atom * effects)()
        self.downward_lib.apply_operator(identifier, atoms)
        for atom in atoms:
            fact = atom.get_fact(self._pddl_state.name2type)
            self._pddl_state.remove_fact(fact.negate())
            self._pddl_state.add_fact(fact)

    def _gather_infos(self) -> None:
        self.state.raw = self.state.feedback
        self.state["won"] = self._pddl_state.check_goal()
        self.state["lost"] = False
        self._available: dict[str, tuple[int, int, _Operator]] = {}
        operators = (fast_downward.Operator * self.downward_lib.get_applicable_operators_count())()
        self.downward_lib.get_applicable_operators(operators)
        for item in operators:
            operator = self._operator(item.name)
            command = operator.command or self._derive(operator.template, operator.binding)
            self._available.setdefault(command, (item.id, item.nb_effect_atoms, operator))
        self.state["admissible_commands"] = sorted(self._available)
        if self.request_infos.moves:
            self.state["moves"] = self._moves
        if self.request_infos.policy_commands:
            self.state["policy_commands"] = self._plan()

    def _operator(self, name: str) -> _Operator:
        if name not in self._game.operators:
            action, *arguments = name.split()
            logic, parameters = self._game.actions[action], self._game.translation.parameters[action]
            mapping = {
                Placeholder(parameter, kind): Variable(argument, kind)
                for (parameter, kind), argument in zip(parameters, arguments, strict=False)
            }
            binding = Binding({ph.name: self._entity_infos[var.name] for ph, var in mapping.items()}, mapping)
            command = self._derive(logic.template, binding) if self._is_fixed(logic.template) else None
            self._game.operators[name] = _Operator(logic.template, logic.feedback_rule, binding, command)
        return self._game.operators[name]

    def _is_fixed(self, template: str) -> bool:
        """Whether the command's text can never change during the game: it asks about unchangeable facts at most."""
        for symbol in parse_snippet(template):
            inner = symbol.symbol if isinstance(symbol, textgen.ListSymbol) else symbol
            if isinstance(inner, textgen.ConditionalSymbol):
                asked = (
                    {condition.name for condition in parse_query(inner.given).preconditions} if inner.given else set()
                )
                if asked & self._game.translation.fluents or not isinstance(inner.expression, textgen.EvalSymbol):
                    return False
            elif not isinstance(inner, textgen.TerminalSymbol):
                return False
        return True

    def _derive(self, snippet: str, binding: Binding) -> str:
        return self._game.grammar.derive(snippet, self._pddl_state, self._entity_infos, binding)

    def _plan(self) -> list[str]:
        if not self._planner_loaded:
            self.downward_lib.load_sas_replan(translate_for_planning(*(self._source or ("", ""))[:2]))
            self._planner_loaded = True
        if not self.downward_lib.replan(ctypes.c_bool(False)):
            return []
        steps = (fast_downward.Operator * self.downward_lib.get_last_plan_length())()
        self.downward_lib.get_last_plan(steps)
        return [self._plan_step(step.name) for step in steps]

    def _plan_step(self, name: str) -> str:
        operator = self._operator(name)
        return operator.command or self._derive(operator.template, operator.binding)


def _entity_infos(state: FastState) -> dict[str, EntityInfo]:
    infos = {
        variable.name: EntityInfo(variable.name, variable.type) for fact in state.facts for variable in fact.arguments
    }
    for name, shown in entity_names(infos).items():
        infos[name].name, infos[name].definite, infos[name].indefinite = shown, "the", "a"
    return infos
