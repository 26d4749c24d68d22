"""A scripted player of ALFWorld games that knows what to do and dawdles: the source of the warm start.

Without a hint it explores: it walks to a place it has not looked into yet, drawn at random, and it has habits that
cost turns and tell it nothing (looking around first, examining what it has just seen, checking its hands after picking
something up, walking somewhere for no reason). With a hint it walks straight to the thing and rarely dawdles. A policy
that imitates both runs out of turns on its own and not with the hint; which turns were worthless is left to be learned
from reward. The player reads observations and the hint only, never the engine.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..base import HistoryEntry, Observation
from ..scripted import Habits, Move
from .compact import Notebook, keep_notes

OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
STATIONS = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_STATE = {"clean": "clean", "heat": "hot", "cool": "cool"}
_VERBS = {"clean": "clean", "hot": "heat", "heat": "heat", "cool": "cool", "cold": "cool"}
_FUNCTION_WORDS = "a an and at examine find in it look on put some the them two under with"
_GRAMMAR = {*_FUNCTION_WORDS.split(), *_VERBS}
_HINTED_THING = re.compile(r"the ([a-z]+ \d+) is (?:in|on) ([a-z]+ \d+)")
_HINTED_LAMP = re.compile(r"take it to ([a-z]+ \d+) and use ([a-z]+ \d+)")


@dataclass(frozen=True)
class Goal:
    """A task's sentence taken apart.

    Args:
        thing: kind of thing to bring or to look at.
        target: kind of furniture where it must go, or kind of lamp when `light`.
        verb: ``"clean"``, ``"heat"``, ``"cool"`` or None.
        light: whether the thing must be looked at under a lamp.
        count: how many are wanted.
    """

    thing: str
    target: str
    verb: str | None
    light: bool
    count: int


@dataclass(frozen=True)
class AlfWorldHabits(Habits):
    """Chances of wasting a turn, by what has just happened, and of not believing the hint (`disbelieve`)."""

    hurry: float = 0.12
    look_first: float = 0.7
    examine_place: float = 0.65
    examine_inside: float = 0.6
    check_hands: float = 0.5
    idle: float = 0.04
    wander: float = 0.07
    disbelieve: float = 0.08


DILIGENT = AlfWorldHabits(
    hurry=0.0,
    look_first=0.0,
    examine_place=0.0,
    examine_inside=0.0,
    check_hands=0.0,
    idle=0.0,
    wander=0.0,
    disbelieve=0.0,
)
"""The habits of a player that wastes no turn: what a stronger teacher imitates."""


def read_goal(task: str) -> Goal:
    """Take a task's sentence apart.

    >>> read_goal("put a hot mug in cabinet")
    Goal(thing='mug', target='cabinet', verb='heat', light=False, count=1)

    Raises:
        ValueError: the sentence names no thing or no place.
    """
    words = task.lower().split()
    kinds = [word for word in words if word not in _GRAMMAR]
    if len(kinds) < 2:
        raise ValueError(f"read_goal: task must name a thing and a place, got {task!r}; pass a sentence of ALFWorld")
    verb = next((_VERBS[word] for word in words if word in _VERBS), None)
    return Goal(kinds[0], kinds[-1], verb, kinds[-1].endswith("lamp"), 2 if "two" in words else 1)


def read_hint(hint: str) -> dict[str, str]:
    """Thing or lamp -> where it is, as the sentence of `Hint` has it."""
    text = hint.lower()
    return dict(_HINTED_THING.findall(text)) | {lamp: place for place, lamp in _HINTED_LAMP.findall(text)}


def respond(
    history: Sequence[HistoryEntry],
    observation: Observation,
    context: str | None,
    rng: random.Random,
    habits: AlfWorldHabits | None = None,
) -> str:
    """The player's response. Args: history, oldest first; context: the hint, or None; habits: None for the usual."""
    seen = [*(entry.observation for entry in history), observation.text]
    actions = [entry.action for entry in history]
    return next_move(keep_notes(seen[0], seen[1:]), actions, context, rng, habits or AlfWorldHabits()).response


def next_move(
    notes: Notebook, actions: Sequence[str], hint: str | None, rng: random.Random, habits: AlfWorldHabits
) -> Move:
    """The player's next move.

    Args:
        notes: what was seen so far (see `compact.keep_notes`).
        actions: all commands so far, oldest first.
        hint: the privileged context, or None.
        rng: source of every chance.
        habits: how often turns are wasted.
    """
    chance, waste = _temptation(notes, actions, habits)
    if habits.tempt(chance, hint is not None, rng):
        return Move("check", waste)
    others = [place for place in notes.places if place != notes.at]
    if hint is None and notes.searched and others and rng.random() < habits.wander:
        return Move("wander", f"go to {rng.choice(others)}")
    told = None if hint is None or rng.random() < habits.disbelieve else read_hint(hint)
    return _useful_move(notes, read_goal(notes.task), told or {}, rng)


def _temptation(notes: Notebook, actions: Sequence[str], habits: AlfWorldHabits) -> tuple[float, str]:
    """The chance of wasting this turn, and the command that would waste it."""
    last = actions[-1].split(" ")[0] if actions else ""
    if not actions:
        return habits.look_first, "look"
    if last == "go":
        return habits.examine_place, f"examine {notes.at}"
    if last == "open":
        return habits.examine_inside, f"examine {notes.at}"
    if last == "take":
        return habits.check_hands, "inventory"
    if last in STATIONS and notes.holding:
        return habits.check_hands, f"examine {notes.holding}"
    return habits.idle, "look"


def _useful_move(notes: Notebook, goal: Goal, told: dict[str, str], rng: random.Random) -> Move:
    if notes.holding is None:
        known = [
            (thing, place)
            for thing, place in notes.seen.items()
            if _kind(thing) == goal.thing and (goal.light or _kind(place) != goal.target)
        ]
        if not known:
            return _search(notes, goal.thing, told, rng)
        thing, place = next((pair for pair in known if pair[1] == notes.at), known[0])
        return Move("take it", f"take {thing} from {place}" if place == notes.at else f"go to {place}")
    if goal.light:
        lamps = [(thing, place) for thing, place in notes.seen.items() if _kind(thing) == goal.target]
        if not lamps:
            return _search(notes, goal.target, told, rng)
        lamp, place = lamps[0]
        return Move("use it", f"use {lamp}" if place == notes.at else f"go to {place}")
    if goal.verb and notes.states.get(notes.holding) != _STATE[goal.verb]:
        place = _choose(notes, STATIONS[goal.verb], rng)
        command = f"{goal.verb} {notes.holding} with {place}" if place == notes.at else f"go to {place}"
        return Move(f"{goal.verb} it", command)
    used = [place for thing, place in notes.seen.items() if _kind(thing) == goal.thing and _kind(place) == goal.target]
    place = used[0] if goal.count == 2 and used else _choose(notes, goal.target, rng)
    if place != notes.at:
        return Move("place it", f"go to {place}")
    return Move("place it", f"open {place}" if _closed(notes, place) else f"move {notes.holding} to {place}")


def _search(notes: Notebook, kind: str, told: dict[str, str], rng: random.Random) -> Move:
    if notes.at in notes.unsearched and _closed(notes, notes.at):
        return Move("search", f"open {notes.at}")
    left = [place for place in notes.unsearched if place != notes.at]
    hinted = [place for thing, place in told.items() if _kind(thing) == kind and place in left]
    options = hinted[:1] or left or [place for place in notes.places if place != notes.at]
    return Move("search", f"go to {rng.choice(options)}" if options else "look")


def _choose(notes: Notebook, kind: str, rng: random.Random) -> str:
    """A place of that kind: this one if it is one, else any."""
    places = [place for place in notes.places if _kind(place) == kind]
    if notes.at in places or not places:
        return notes.at or notes.places[0]
    return rng.choice(places)


def _closed(notes: Notebook, place: str | None) -> bool:
    """Whether the place still has to be opened; the player never closes anything."""
    return place is not None and _kind(place) in OPENABLE and place in notes.unsearched


def _kind(name: str) -> str:
    return name.split()[0]
