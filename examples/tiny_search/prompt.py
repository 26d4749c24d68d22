"""Compact prompts for a policy of a million parameters: the question and a notebook of passages.

Everything in a prompt follows from what the agent saw and did: nothing is read from the environment. The notebook
replaces the history of raw turns: what was searched for, the passages whose titles were searched for earlier, and all
passages of the last search.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from turncredit.envs import HistoryEntry, Message, Observation, Task
from turncredit.envs.search_qa import read_information

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


def _plain(text: str) -> str:
    return " ".join(_NOISE.sub(" ", text).split())
