"""The prompt of a turn in one user message: what is to be done, the last turns, what is seen now, what can be done."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..base import HistoryEntry, Message, Observation

RULES = (
    "First reason step by step about what you know and what to do next, between <think> and </think> tags.\n"
    "Then give exactly one of the admissible actions, word for word, between <action> and </action> tags."
)
"""What a response must look like, as `TaggedParser` reads it."""


def history_text(
    history: Sequence[HistoryEntry], length: int, entry: Callable[[int, HistoryEntry], str] | None = None
) -> str:
    """The last `length` turns, oldest first, a newline between two; "" where there are none, or `length` is 0.

    Args:
        history: all past turns of the episode.
        length: how many are shown.
        entry: the words of a turn, from its number (the first of the episode is 1) and its record; if left out,
            ``[Step 1] Observation: ..`` and ``[Step 1] Action: ..``.

    >>> print(history_text([HistoryEntry("a door", "look"), HistoryEntry("a key", "")], 1))
    [Step 2] Observation: a key
    [Step 2] Action: (none)
    """
    first = max(len(history) - max(length, 0), 0)
    return "\n".join((entry or _step)(number, turn) for number, turn in enumerate(history[first:], start=first + 1))


def _step(number: int, turn: HistoryEntry) -> str:
    return f"[Step {number}] Observation: {turn.observation}\n[Step {number}] Action: {turn.action or '(none)'}"


def step_messages(
    opening: str,
    task: str,
    history: Sequence[HistoryEntry],
    observation: Observation,
    *,
    history_length: int,
    rules: str = RULES,
) -> list[Message]:
    """One user message; a part that would be empty is left out.

    Args:
        opening: where the agent is and how it acts.
        task: what must be done, in words.
        history: all past turns of the episode.
        observation: what the agent sees now.
        history_length: how many past turns are shown.
        rules: what the response must look like.
    """
    shown = history_text(history, history_length)
    taken = "1 step" if len(history) == 1 else f"{len(history)} steps"
    where = f"Step {len(history) + 1}. Current observation:" if history else "Current observation:"
    actions = "\n".join(f"- {action}" for action in observation.admissible_actions)
    parts = [
        opening,
        f"Task: {task}" if task else "",
        f"You have taken {taken} so far. The latest, oldest first:\n{shown}" if shown else "",
        f"{where}\n{observation.text}",
        f"Admissible actions:\n{actions}" if actions else "",
        rules,
    ]
    return [{"role": "user", "content": "\n\n".join(part for part in parts if part)}]
