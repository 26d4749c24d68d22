"""What the agent reads and how its answer is taken apart: ``<think>..</think>`` then ``<action>..</action>``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..base import HistoryEntry, Message, Observation, ParsedResponse
from .pages import SEPARATOR

STOP_STRINGS = ("</action>",)

_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL | re.IGNORECASE)
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)

_RULES = (
    "First reason step by step about what you know and what to do next, between <think> and </think> tags.\n"
    "Then give exactly one admissible action between <action> and </action> tags: a click word for word, or a search "
    "with your own words in the brackets."
)


def page_text(observation: str, task: str, limit: int = 0) -> str:
    """An observation without the wish, which the prompt names once, cut to `limit` characters (0: not cut).

    >>> page_text("Instruction: [SEP] a red cap [SEP] Back to Search [SEP] < Prev", "a red cap")
    'Back to Search [SEP] < Prev'
    """
    _, found, rest = observation.partition(f"Instruction:{SEPARATOR}{task}{SEPARATOR}")
    text = rest if found else observation
    return text if limit <= 0 or len(text) <= limit else f"{text[:limit]} [cut]"


def webshop_messages(
    task: str,
    history: Sequence[HistoryEntry],
    observation: Observation,
    *,
    history_length: int = 2,
    page_limit: int = 6000,
) -> list[Message]:
    """One user message: the wish, the last turns, the current page and the admissible actions.

    Args:
        task: what must be bought, in words.
        history: all past turns of the episode.
        observation: what the agent sees now.
        history_length: how many past turns are shown; 0 shows none.
        page_limit: characters of a page that are shown, past or current; 0 shows all. Descriptions can be very long.

    Raises:
        ValueError: a number is negative.
    """
    if history_length < 0 or page_limit < 0:
        raise ValueError(
            f"webshop_messages: history_length and page_limit must be at least 0, got {history_length} "
            f"and {page_limit}; 2 and 6000 are the usual values"
        )
    shown = history[max(len(history) - history_length, 0) :] if history_length else ()
    parts = ["You are shopping in a web shop and act by typing commands.", f"Task: {task}"]
    if shown:
        first = len(history) - len(shown) + 1
        lines = [
            f"[Step {number}] Observation: {page_text(entry.observation, task, page_limit)}\n"
            f"[Step {number}] Action: {entry.action or '(none)'}"
            for number, entry in enumerate(shown, start=first)
        ]
        taken = "1 step" if len(history) == 1 else f"{len(history)} steps"
        parts.append(f"You have taken {taken} so far. The latest, oldest first:\n" + "\n".join(lines))
    where = f"Step {len(history) + 1}. Current observation:" if history else "Current observation:"
    parts.append(f"{where}\n{page_text(observation.text, task, page_limit)}")
    parts.append("Admissible actions:\n" + "\n".join(f"- {action}" for action in observation.admissible_actions))
    parts.append(_RULES)
    return [{"role": "user", "content": "\n\n".join(parts)}]


def parse_response(response: str) -> ParsedResponse:
    """Thinking and action of a response; malformed text gives an invalid result and never an error.

    The action is the stripped text between the first pair of action tags, its case kept; the thinking is the text of
    the first think block in front of it. Without an action, or without a think block, the response is invalid: the
    action, if there is one, is still handed on, and the turn counts as malformed.

    >>> parse_response("<think>jeans first</think><action>search[men's jeans]</action>").action
    "search[men's jeans]"
    """
    text = response if isinstance(response, str) else ""
    act = _ACTION.search(text)
    think = _THINK.search(text, 0, act.start() if act else len(text))
    action = act.group(1).strip() if act else ""
    return ParsedResponse(
        thinking=think.group(1).strip() if think else "",
        action=action,
        valid=bool(action) and think is not None,
        thinking_span=think.span(1) if think else None,
        action_span=act.span(1) if act else None,
    )
