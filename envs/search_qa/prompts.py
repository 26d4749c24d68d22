"""What the agent reads and how its answer is taken apart: ``<search>..</search>`` or ``<answer>..</answer>``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..base import HistoryEntry, Message, Observation, ParsedResponse

STOP_STRINGS = ("</search>", "</answer>")

_SEARCH = re.compile(r"<search>(.*?)</search>", re.DOTALL | re.IGNORECASE)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL | re.IGNORECASE)
_SEARCH_OPEN = re.compile(r"<search>", re.IGNORECASE)
_ANSWER_OPEN = re.compile(r"<answer>", re.IGNORECASE)
_ENDS = (re.compile(r"</search>", re.IGNORECASE), re.compile(r"</answer>", re.IGNORECASE))

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
    if history_length < 0:
        raise ValueError(
            f"search_messages: history_length must be at least 0, got {history_length}; 4 is the usual value"
        )
    turn = len(history) + 1
    parts = ["You answer a question with the help of a search engine.", f"Question: {question}"]
    brought = [entry.observation for entry in history[1:]] + [observation.text]
    shown = list(enumerate(zip(history, brought, strict=False), start=1))[max(0, len(history) - history_length) :]
    if shown and history_length > 0:
        lines = [
            f"[Turn {number}] {entry.action or '(no valid action)'}\n{text or '(nothing came back)'}"
            for number, (entry, text) in shown
        ]
        parts.append("Your turns so far, oldest first:\n" + "\n".join(lines))
    last = " It is your last: answer now, a search is not carried out any more." if turn >= max_turns else ""
    parts.append(f"This is turn {turn} of {max_turns}.{last}")
    parts.append(_RULES)
    return [{"role": "user", "content": "\n\n".join(parts)}]


def parse_response(response: str) -> ParsedResponse:
    """Thinking and action of a response; malformed text gives an invalid result and never an error.

    The response is cut behind the first ``</search>``, else behind the first ``</answer>``. The action is the first
    complete search block of what is left, else the first answer block, with lower-case tags and its content stripped.
    No block, both kinds of tag, or a repeated one is invalid; the action, if there is one, is still handed on. Tags
    count in any case. The thinking is the first think block in front of the action; it is not required.

    >>> parse_response("<think>when?</think><Search> fall of Rome </Search> 476").action
    '<search>fall of Rome</search>'
    """
    text = response if isinstance(response, str) else ""
    end = next((match.end() for match in (pattern.search(text) for pattern in _ENDS) if match), len(text))
    kind, block = "search", _SEARCH.search(text, 0, end)
    if block is None:
        kind, block = "answer", _ANSWER.search(text, 0, end)
    think = _THINK.search(text, 0, block.start() if block else len(text))
    searches, answers = len(_SEARCH_OPEN.findall(text)), len(_ANSWER_OPEN.findall(text))
    return ParsedResponse(
        thinking=think.group(1).strip() if think else "",
        action=f"<{kind}>{block.group(1).strip()}</{kind}>" if block else "",
        valid=block is not None and searches + answers == 1,
        thinking_span=think.span(1) if think else None,
        action_span=block.span(1) if block else None,
    )
