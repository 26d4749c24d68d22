"""What the agent reads and how its answer is taken apart: ``<search>..</search>`` or ``<answer>..</answer>``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..base import HistoryEntry, Message, Observation, ParsedResponse
from ..kit import TaggedParser, history_text
from ..kit.checks import check_counts

_PARSER = TaggedParser(("search", "answer"), require_think=False, keep_tags=True, once=True)
STOP_STRINGS = _PARSER.stop_strings
ANSWER_OPENING = "<think>I can answer now.</think><answer>"
"""The text of a response in front of a gold answer whose probability is asked."""

_RULES = (
    "First reason about what you know and what is still missing, between <think> and </think> tags.\n"
    "Then do exactly one of two things: send a query to the search engine as <search>query</search>, or give your "
    "final answer as <answer>answer</answer>, as short as possible and without explanation."
)


def search_messages(
    question: str,
    history: Sequence[HistoryEntry],
    observation: Observation,
    *,
    history_length: int = 4,
    max_turns: int = 4,
) -> list[Message]:
    """One user message: the question, the last turns with what each brought, and the rules of an answer.

    A turn is shown as its action and then the observation it led to; the first observation is the question itself.

    Args:
        question: the question, in words.
        history: all past turns of the episode.
        observation: what the last action brought.
        history_length: how many past turns are shown; 0 shows none.
        max_turns: the episode's turn limit, which the prompt names.

    Raises:
        ValueError: `history_length` is negative.
    """
    check_counts("search_messages", history_length=(history_length, 0, "4 is the usual value"))
    turn = len(history) + 1
    brought = [*(entry.observation for entry in history[1:]), observation.text]
    led_to = [replace(entry, observation=text) for entry, text in zip(history, brought, strict=False)]
    shown = history_text(led_to, history_length, _turn)
    last = " It is your last: answer now, a search is not carried out any more." if turn >= max_turns else ""
    parts = [
        "You answer a question with the help of a search engine.",
        f"Question: {question}",
        *([f"Your turns so far, oldest first:\n{shown}"] if shown else []),
        f"This is turn {turn} of {max_turns}.{last}",
        _RULES,
    ]
    return [{"role": "user", "content": "\n\n".join(parts)}]


def _turn(number: int, entry: HistoryEntry) -> str:
    return f"[Turn {number}] {entry.action or '(no valid action)'}\n{entry.observation or '(nothing came back)'}"


def parse_response(response: str) -> ParsedResponse:
    """Thinking and action of a response; malformed text gives an invalid result and never an error.

    The response is cut behind the first ``</search>``, else behind the first ``</answer>``. The action is the first
    complete search block of what is left, else the first answer block, with lower-case tags and its content stripped.
    No block, both kinds of tag, or a repeated one is invalid; the action, if there is one, is still handed on. Tags
    count in any case. The thinking is the first think block in front of the action; it is not required.

    >>> parse_response("<think>when?</think><Search> fall of Rome </Search> 476").action
    '<search>fall of Rome</search>'
    """
    return _PARSER(response)
