"""Compact prompts and vocabulary of a policy of a million parameters: the task and a notebook kept from the episode.

Everything in a prompt follows from what the agent saw and did: nothing is read from the engine. The notebook replaces
a history of raw turns, which would cost ten times the tokens: places not yet looked into, places looked into, where
objects named in the task were last seen, what is carried, and the last actions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base import HistoryEntry, Message, Observation, Task
from .data import GAME_FILE, INNER_FOLDER
from .generator import generate_splits
from .hints import Hint
from .houses import ROOMS, wheel_facts
from .suite import AlfWorldSuite

LAST_ACTIONS = 2
"""How many past actions a prompt repeats."""

MAX_TURNS = 14
"""Turns of an episode: enough in a small house for a player that wastes none."""

BUDGETS = {"max_completion_length": 20, "max_prompt_length": 492}
"""Tokens of a turn and of its prompt, which fit into the 512 positions of the shipped policy."""

_WORDS = """
task left searched seen at holding last now start then nothing in
put a an some on the clean and it cool cold heat hot find two them look under examine with
hint for this house is both use take to more there already
go open close move from inventory help
you are arrive closed see pick up using turn off happens carrying not anything
middle of room looking quickly around facing next s special about normal
think search check place wander
"""

_TASK = re.compile(r"Your task is to: (.*?)\.?\s*$", re.MULTILINE)
_ROOM = re.compile(r"you see (.*?)\.\s*$", re.MULTILINE)
_NAME = re.compile(r"\b([a-z]+ \d+)\b")
_AT = re.compile(r"^You arrive at ([a-z]+ \d+)\.")
_CONTENT = re.compile(r"(?:On the ([a-z]+ \d+)|The ([a-z]+ \d+) is open\. In it), you see (.*)\.$")
_TAKEN = re.compile(r"^You pick up the ([a-z]+ \d+) from the ([a-z]+ \d+)\.")
_MOVED = re.compile(r"^You move the ([a-z]+ \d+) to the ([a-z]+ \d+)\.")
_CHANGED = re.compile(r"^You (clean|heat|cool) the ([a-z]+ \d+) using the ([a-z]+ \d+)\.")
_STATE = {"clean": "clean", "heat": "hot", "cool": "cool"}
_MOVE = re.compile(r"\bmove (it|both) to ([a-z]+ \d+)")
_NOISE = re.compile(r"\b(?:a|an|the|and|you)\b|[.,:]", re.IGNORECASE)


@dataclass
class Notebook:
    """What an agent that pays attention knows after some turns.

    Args:
        task: the task's sentence, without its full stop.
        places: receptacles of the room, in the order the room lists them.
        searched: receptacles whose content was seen, in order.
        seen: object -> receptacle where it was last seen; objects in hand are absent.
        at: where the agent stands, or None.
        holding: the object in hand, or None.
        states: object -> ``"clean"``, ``"hot"`` or ``"cool"``.
    """

    task: str
    places: tuple[str, ...]
    searched: list[str] = field(default_factory=list)
    seen: dict[str, str] = field(default_factory=dict)
    at: str | None = None
    holding: str | None = None
    states: dict[str, str] = field(default_factory=dict)

    @property
    def unsearched(self) -> list[str]:
        """Receptacles whose content was not seen yet."""
        return [place for place in self.places if place not in self.searched]

    @property
    def relevant(self) -> dict[str, str]:
        """The part of `seen` whose objects the task names."""
        words = set(self.task.split())
        return {thing: place for thing, place in self.seen.items() if thing.split()[0] in words}

    def read(self, observation: str) -> None:
        """Take in one observation."""
        text = observation.strip()
        if match := _AT.match(text):
            self.at = match[1]
        if match := _CONTENT.search(text):
            place = match[1] or match[2]
            if place not in self.searched:
                self.searched.append(place)
            listed = _NAME.findall(match[3])
            self.seen = {thing: where for thing, where in self.seen.items() if where != place}
            self.seen.update(dict.fromkeys(listed, place))
        elif match := _TAKEN.match(text):
            self.holding = match[1]
            self.seen.pop(match[1], None)
        elif match := _MOVED.match(text):
            self.holding = None
            self.seen[match[1]] = match[2]
        elif match := _CHANGED.match(text):
            self.states[match[2]] = _STATE[match[1]]


def read_task(observation: str) -> str:
    """The task's sentence in the first observation, lower-cased, without its full stop.

    Raises:
        ValueError: the observation states no task.
    """
    match = _TASK.search(observation)
    if match is None:
        raise ValueError(
            f"read_task: observation must hold 'Your task is to: ..', got {observation[:80]!r}; pass the first one"
        )
    return match[1].lower()


def keep_notes(first_observation: str, later_observations: Sequence[str]) -> Notebook:
    """The notebook after the first observation and all later ones, in order.

    Raises:
        ValueError: the first observation states no task.
    """
    task = read_task(first_observation)
    room = _ROOM.search(first_observation)
    notes = Notebook(task, tuple(_NAME.findall(room[1] if room else "")))
    for observation in later_observations:
        notes.read(observation)
    return notes


def compact_prompt(history: Sequence[HistoryEntry], observation: str) -> str:
    """The user message of the next turn, 30 to 60 tokens.

    Args:
        history: the whole episode so far, oldest first.
        observation: what the environment says now.

    Raises:
        ValueError: the episode's first observation states no task.
    """
    seen = [entry.observation for entry in history] + [observation]
    return render_notes(keep_notes(seen[0], seen[1:]), [entry.action for entry in history], observation)


def render_notes(notes: Notebook, actions: Sequence[str], observation: str) -> str:
    """A notebook, the last of all `actions` and the observation as the words of a prompt."""
    seen = " ".join(f"{thing} in {place}" for thing, place in notes.relevant.items())
    holding = " ".join(filter(None, [notes.states.get(notes.holding or ""), notes.holding or "nothing"]))
    now = " ".join(_NOISE.sub(" ", observation).split()) if actions else "start"
    parts = [
        ("task", notes.task),
        ("left", " ".join(notes.unsearched)),
        ("searched", " ".join(notes.searched)),
        ("seen", seen),
        ("at", notes.at or "nothing"),
        ("holding", holding),
        ("last", " then ".join(action or "nothing" for action in actions[-LAST_ACTIONS:])),
        ("now", now),
    ]
    return "\n".join(f"{name} {text}".strip() for name, text in parts).lower()


def compact_messages(task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
    """The chat messages of the next turn, for ``AlfWorldSuite(build_messages=compact_messages)``."""
    return [{"role": "user", "content": compact_prompt(history, observation.text)}]


def trained_hint(hint: Hint) -> str:
    """A hint in the words the shipped policy was trained on, for ``AlfWorldSuite(build_hint=trained_hint)``.

    >>> trained_hint(Hint((("apple 1", "fridge 1"),), destination="countertop 2"))
    'the apple 1 is in fridge 1; put it in/on countertop 2'
    """
    return _MOVE.sub(r"put \1 in/on \2", hint.text)


def compact_vocabulary() -> dict[str, Any]:
    """What a tokenizer of small houses must know: plain words, and kinds of things, lamps and furniture."""
    kinds: set[str] = set()
    for room in ROOMS.values():
        kinds.update(room.receptacles, room.objects, room.lamps)
    for things in wheel_facts().holds.values():
        kinds.update(thing for thing in things if not thing.endswith("Sliced"))
    return {"words": _WORDS.split(), "kinds": sorted(kind.lower() for kind in kinds)}


def compact_suite(
    data: str | os.PathLike[str], splits: Mapping[str, str] | Sequence[str], **options: Any
) -> AlfWorldSuite:
    """The suite of the embedded policy: compact prompts, and a teacher that reads the hint in the words it knows.

    Args:
        data: folder of games.
        splits, options: see `AlfWorldSuite`.
    """
    usual: dict[str, Any] = {"privileged": "hint", "max_turns": MAX_TURNS}
    usual |= {"build_messages": compact_messages, "build_hint": trained_hint}
    chosen: dict[str, Any] = usual | options
    return AlfWorldSuite(data, splits=splits, **chosen)


def generate_once(folder: str | os.PathLike[str], counts: Mapping[str, int]) -> dict[str, int]:
    """Generate the games of small houses that a folder does not hold yet.

    Args:
        folder: data root.
        counts: split -> number of games.

    Returns:
        The counts of splits that hold more: the limits of a suite, which are balanced over the task types.
    """
    generate_splits(folder, counts, house_size="small", num_workers=2)
    held = {split: len(list(Path(folder, INNER_FOLDER, split).glob(f"*/*/{GAME_FILE}"))) for split in counts}
    return {split: count for split, count in counts.items() if held[split] > count}
