"""What the agent reads and how its answer is taken apart: ``<think>..</think>`` then ``<action>..</action>``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..base import HistoryEntry, Message, Observation, ParsedResponse
from ..kit import RULES, TaggedParser, step_messages
from ..kit.checks import check_counts
from .pages import SEPARATOR

_PARSER = TaggedParser()
STOP_STRINGS = _PARSER.stop_strings

_RULES = (
    f"{RULES.splitlines()[0]}\n"
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
    check_counts("webshop_messages", history_length=(history_length, 0, 2), page_limit=(page_limit, 0, 6000))
    opening = "You are shopping in a web shop and act by typing commands."
    pages = [replace(turn, observation=page_text(turn.observation, task, page_limit)) for turn in history]
    page = replace(observation, text=page_text(observation.text, task, page_limit))
    return step_messages(opening, task, pages, page, history_length=history_length, rules=_RULES)


def parse_response(response: str) -> ParsedResponse:
    """Thinking and action of a response, the action's case kept; see `turncredit.envs.kit.TaggedParser`.

    >>> parse_response("<think>jeans first</think><action>search[men's jeans]</action>").action
    "search[men's jeans]"
    """
    return _PARSER(response)
