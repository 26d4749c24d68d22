"""Compact prompts, vocabulary and worlds of a policy of a million parameters: the question and a notebook of passages.

Everything in a prompt follows from what the agent saw and did: nothing is read from the environment. The notebook
replaces the history of raw turns: what was searched for, the passages whose titles were searched for earlier, and all
passages of the last search.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..base import HistoryEntry, Message, Observation, Task
from .bm25 import Bm25Retriever
from .data import Question
from .generator import REGIONS, RIVERS, TRADES, generate_world, world_names
from .retrieval import Document, read_information
from .suite import SearchQASuite

MAX_TURNS = 4

BUDGETS = {"max_completion_length": 12, "max_prompt_length": 500}
"""Tokens of a turn and of its prompt, which fit into the 512 positions of the shipped policy."""

PEOPLE = 20
"""People in every world here; their years, and those of the guilds, follow from it."""

PARTS = 16
TRAIN, EVAL = 0, 1
"""Parts of all names: of worlds to train on and to evaluate on. The other parts are not used."""

_WORDS = """
question turn asked kept now nothing then
in which town was the founder of born what trade region is hall who founded on river does stand earlier or
a an and by its stands year guild name did
passages that hold answer
think look around again guess need have search
"""
_PASSAGE = re.compile(r'Doc \d+: "(.+?)"\n(.*)')
_BLOCK = re.compile(r"<(search|answer)>(.*)</\1>", re.DOTALL)
_NOISE = re.compile(r"\b(?:a|an|the|and|was|were|is|its|of|in|by|on|did|does|to|has)\b|[.,:;?]", re.IGNORECASE)


@dataclass
class Notebook:
    """What an agent that pays attention knows after some turns.

    Args:
        question: the question, as the environment words it.
        asked: queries so far, lower-cased, oldest first; "" for a turn without one.
        kept: title -> text of passages whose titles were searched for before the last turn, lower-cased.
        now: title -> text of the passages that the last turn brought, best first, lower-cased.
    """

    question: str
    asked: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    now: dict[str, str] = field(default_factory=dict)

    @property
    def known(self) -> dict[str, str]:
        """All passages of the notebook by title."""
        return self.kept | self.now

    def read(self, action: str, observation: str) -> None:
        """Take in one turn: an action and what it brought."""
        self.kept.update({title: text for title, text in self.now.items() if title in self.asked})
        block = _BLOCK.search(action)
        self.asked.append(" ".join(block[2].lower().split()) if block else "")
        found = _PASSAGE.findall(read_information(observation))
        self.now = {title.lower(): text.lower() for title, text in found}


def keep_notes(history: Sequence[HistoryEntry], observation: str) -> Notebook:
    """The notebook at the current turn; the episode's first observation is the question.

    Args:
        history: the whole episode so far, oldest first.
        observation: what the environment says now.
    """
    seen = [entry.observation for entry in history] + [observation]
    notes = Notebook(seen[0])
    for entry, brought in zip(history, seen[1:], strict=True):
        notes.read(entry.action, brought)
    return notes


def render_notes(notes: Notebook) -> str:
    """A notebook as the words of a prompt, function words left out: 15 to 100 tokens."""
    kept = [text for title, text in notes.kept.items() if title not in notes.now]
    parts = [
        ("question", _plain(notes.question)),
        ("turn", str(min(len(notes.asked) + 1, 9))),
        ("asked", " then ".join(query or "nothing" for query in notes.asked) or "nothing"),
        ("kept", " . ".join(map(_plain, kept)) or "nothing"),
        ("now", " . ".join(map(_plain, notes.now.values())) or "nothing"),
    ]
    return "\n".join(f"{name} {text}" for name, text in parts).lower()


def compact_prompt(history: Sequence[HistoryEntry], observation: str) -> str:
    """The user message of the next turn."""
    return render_notes(keep_notes(history, observation))


def compact_messages(task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
    """The chat messages of the next turn, for ``SearchQASuite(build_messages=compact_messages)``."""
    return [{"role": "user", "content": compact_prompt(history, observation.text)}]


def compact_vocabulary() -> dict[str, Any]:
    """What a tokenizer must know of every world of `PEOPLE` people with names of the two parts; a name is one token."""
    names = [world_names(part, PARTS) for part in (TRAIN, EVAL)]
    years = [*range(1700, 1700 + 2 * PEOPLE), *range(1800, 1800 + PEOPLE)]
    known = [name for part in names for kind in ("people", "towns") for name in part[kind]]
    return {
        "words": [*_WORDS.split(), *TRADES, *REGIONS, *RIVERS, *known, *map(str, years)],
        "tags": ("<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>"),
        "phrases": [name for part in names for name in part["guilds"]],
        "punctuation": ".,:;?!'()/-\"",
        "max_length": 512,
    }


def compact_suite(
    *, train_seed: int = 1000, held_out_seed: int = 1001, num_eval: int = 64, **options: Any
) -> SearchQASuite:
    """The suite of the embedded policy: questions of one world to train on, and of one that shares no name with it.

    Args:
        train_seed, held_out_seed: seeds of the two worlds; one corpus holds the passages of both.
        num_eval: size of the panel, dealt from the kinds of question in turn.
        options: other arguments of `SearchQASuite`.
    """
    train = generate_world(train_seed, people=PEOPLE, part=TRAIN, parts=PARTS)
    other = generate_world(held_out_seed, people=PEOPLE, part=EVAL, parts=PARTS)
    passages = [
        Document(f"{number}", document.contents) for number, document in enumerate((*train.documents, *other.documents))
    ]
    questions = {"train": train.questions, "eval": other.questions}
    return _suite(questions, passages, limits={"eval": num_eval}, **options)


def demonstration_suite(seed: int) -> SearchQASuite:
    """One world to demonstrate: names of one part, which the seed chooses, with facts of its own."""
    world = generate_world(seed, people=PEOPLE, part=(TRAIN, EVAL)[seed % 2], parts=PARTS)
    return _suite({"demonstrations": world.questions}, world.documents)


def _suite(questions: Mapping[str, Sequence[Question]], passages: Sequence[Document], **options: Any) -> SearchQASuite:
    defaults = {"privileged": "facts", "max_turns": MAX_TURNS, "build_messages": compact_messages}
    return SearchQASuite(questions, retriever=partial(Bm25Retriever, passages), **{**defaults, **options})


def _plain(text: str) -> str:
    return " ".join(_NOISE.sub(" ", text).split())
