"""A scripted player of the generated world that knows the way and has bad habits: the source of the warm start.

It follows a question's chain from name to name, reading the passages in its notebook. Without privileged facts it
often searches for the wrong part of the question first, repeats the search it has just made, answers with the name it
has instead of searching on, or takes the answer from the wrong place. With the facts it does so rarely. A policy that
imitates both loses questions on its own and not with the facts; which turns were worthless is left to be learned from
reward. The player reads the question and retrieved passages only.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..base import HistoryEntry, Observation
from ..scripted import Habits
from .compact import Notebook, keep_notes

_PLANS = (
    (r"In which town was the founder of the (.+) born\?", ("founder", "town")),
    (r"What was the trade of the founder of the (.+)\?", ("founder", "trade")),
    (r"In which region was the founder of the (.+) born\?", ("founder", "town", "region")),
    (r"In which region is the hall of the (.+)\?", ("hall", "region")),
    (r"In which town is the hall of the (.+)\?", ("hall",)),
    (r"Who founded the (.+)\?", ("founder",)),
    (r"What was the trade of (.+)\?", ("trade",)),
    (r"In which town was (.+) born\?", ("town",)),
    (r"In which region was (.+) born\?", ("town", "region")),
    (r"On which river was (.+) born\?", ("town", "river")),
    (r"In which region is (.+)\?", ("region",)),
    (r"On which river does (.+) stand\?", ("river",)),
)
_COMPARISON = re.compile(r"(?:Who was born|Which was founded) earlier, (?:the )?(.+?) or (?:the )?(.+)\?")
_FACTS = (
    re.compile(r"was an? (?P<trade>\w+), born in (?P<town>\w+) in (?P<year>\d+)\."),
    re.compile(r"was founded by (?P<founder>\w+) in (?P<year>\d+)\. its hall is in (?P<hall>\w+)\."),
    re.compile(r"is a town in the region of (?P<region>\w+)\. \w+ stands on the river (?P<river>\w+)\."),
)
_VAGUE = {"founder": "guild founded", "hall": "guild hall", "year": "earlier", "town": "town born"}


@dataclass(frozen=True)
class Plan:
    """A question taken apart. Args: where to start (two names: a comparison), relations to follow from there."""

    names: tuple[str, ...]
    relations: tuple[str, ...]


@dataclass(frozen=True)
class SearchHabits(Habits):
    """Chances of a bad turn, by what has just happened."""

    hurry: float = 0.06
    look_around: float = 0.5
    look_again: float = 0.45
    guess_at_once: float = 0.08
    guess_midway: float = 0.4
    misread: float = 0.3


@dataclass(frozen=True)
class Move:
    """What the player thinks, in two words, and what it does: ``"search"`` or ``"answer"`` with some text."""

    thought: str
    verb: str
    text: str

    @property
    def response(self) -> str:
        """The move in the policy's format."""
        return f"<think> {self.thought} </think> <{self.verb}> {self.text} </{self.verb}>"


def read_question(question: str) -> Plan:
    """Take a question of the generated world apart; names are lower-cased.

    >>> read_question("Who founded the Blue Otter Guild?")
    Plan(names=('blue otter guild',), relations=('founder',))

    Raises:
        ValueError: it is no question of the generated world.
    """
    if match := _COMPARISON.fullmatch(question):
        return Plan((match[1].lower(), match[2].lower()), ("year",))
    for pattern, relations in _PLANS:
        if match := re.fullmatch(pattern, question):
            return Plan((match[1].lower(),), relations)
    raise ValueError(
        f"read_question: question must be one of the generated world, got {question!r}; take it from generate_world"
    )


def read_passage(text: str) -> dict[str, str]:
    """Relation -> value of a passage of the generated world, lower-cased; empty for any other text."""
    for pattern in _FACTS:
        if match := pattern.search(text.lower()):
            return match.groupdict()
    return {}


def respond(history: Sequence[HistoryEntry], observation: Observation, context: str | None, rng: random.Random) -> str:
    """The player's response with its usual habits. Args: history, oldest first; context: the facts, or None."""
    return next_move(keep_notes(history, observation.text), context is not None, rng, SearchHabits()).response


def next_move(notes: Notebook, informed: bool, rng: random.Random, habits: SearchHabits) -> Move:
    """The player's next move.

    Args:
        notes: what was seen so far (see `compact.keep_notes`).
        informed: whether the privileged facts stand in the prompt.
        rng: source of every chance.
        habits: how often turns are bad.
    """
    plan = read_question(notes.question)
    known = {title: read_passage(text) for title, text in notes.known.items()}
    move, at_hand = _good_move(plan, known)

    def tempted(chance: float) -> bool:
        return habits.tempt(chance, informed, rng)

    if not notes.asked:
        if tempted(habits.look_around):
            return Move("look around", "search", _VAGUE.get(plan.relations[-1], plan.relations[-1]))
        if tempted(habits.guess_at_once):
            return Move("guess name", "answer", rng.choice(plan.names))
    elif tempted(habits.look_again):
        return Move("look again", "search", notes.asked[-1])
    if move.verb == "search" and at_hand and tempted(habits.guess_midway):
        return Move("guess name", "answer", at_hand)
    if move.verb == "answer" and tempted(habits.misread):
        return Move("guess name", "answer", _wrong_answer(move.text, plan, known, rng))
    return move


def _good_move(plan: Plan, known: dict[str, dict[str, str]]) -> tuple[Move, str]:
    """The move that leads on, and the name it would be tempting to answer with ("" before anything was found)."""
    if len(plan.names) == 2:
        missing = [name for name in plan.names if name not in known]
        if missing:
            return Move("need year", "search", missing[0]), plan.names[0] if len(missing) == 1 else ""
        earlier = min(plan.names, key=lambda name: int(known[name]["year"]))
        return Move("have year", "answer", earlier), earlier
    name, found = plan.names[0], ""
    for relation in plan.relations:
        if name not in known:
            return Move(f"need {relation}", "search", name), found
        name = found = known[name][relation]
    return Move(f"have {plan.relations[-1]}", "answer", name), found


def _wrong_answer(right: str, plan: Plan, known: dict[str, dict[str, str]], rng: random.Random) -> str:
    """A value of the notebook that is not the answer, of the same sort where there is one."""
    if len(plan.names) == 2:
        return next(name for name in plan.names if name != right)
    values = [(relation, value) for facts in known.values() for relation, value in facts.items() if value != right]
    same = [value for relation, value in values if relation == plan.relations[-1]]
    return rng.choice(same or [value for _, value in values] or [plan.names[0]])
