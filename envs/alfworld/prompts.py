"""What the agent reads and how its answer is taken apart: ``<think>..</think>`` then ``<action>..</action>``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..base import HistoryEntry, Message, Observation, ParsedResponse

STOP_STRINGS = ("</action>",)

_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL | re.IGNORECASE)
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)

_RULES = (
    "First reason step by step about what you know and what to do next, between <think> and </think> tags.\n"
    "Then give exactly one of the admissible actions, word for word, between <action> and </action> tags."
)


def alfworld_messages(
    task: str, history: Sequence[HistoryEntry], observation: Observation, *, history_length: int = 2
) -> list[Message]:
    """One user message: the task, the last turns, the current observation and the admissible actions.

    The first turn's observation holds the task itself, so it is shown alone. Later turns name the task, count the
    steps taken and show the last `history_length` of them as observation and action.

    Args:
        task: what must be done, in words.
        history: all past turns of the episode.
        observation: what the agent sees now.
        history_length: how many past turns are shown; 0 shows none.

    Raises:
        ValueError: `history_length` is negative.
    """
    if history_length < 0:
        raise ValueError(
            f"alfworld_messages: history_length must be at least 0, got {history_length}; 2 is the usual value"
        )
    parts = ["You control a robot in a household and carry out a task by typing commands."]
    shown = history[len(history) - history_length :] if 0 < history_length < len(history) else history
    if history:
        parts.append(f"Task: {task}")
    if history and history_length > 0:
        first = len(history) - len(shown) + 1
        lines = [
            f"[Step {number}] Observation: {entry.observation}\n[Step {number}] Action: {entry.action or '(none)'}"
            for number, entry in enumerate(shown, start=first)
        ]
        taken = "1 step" if len(history) == 1 else f"{len(history)} steps"
        parts.append(f"You have taken {taken} so far. The latest, oldest first:\n" + "\n".join(lines))
    where = f"Step {len(history) + 1}. Current observation:" if history else "Current observation:"
    parts.append(f"{where}\n{observation.text}")
    parts.append("Admissible actions:\n" + "\n".join(f"- {action}" for action in observation.admissible_actions))
    parts.append(_RULES)
    return [{"role": "user", "content": "\n\n".join(parts)}]


def parse_response(response: str) -> ParsedResponse:
    """Thinking and action of a response; malformed text gives an invalid result and never an error.

    The action is the lower-cased, stripped text between the first pair of action tags; the thinking is the text of
    the first think block in front of it. Without an action, or without a think block, the response is invalid: the
    action, if there is one, is still handed on, and the turn counts as malformed.

    >>> parse_response("<think>the mug</think><action>Go to shelf 1</action>").action
    'go to shelf 1'
    """
    text = response if isinstance(response, str) else ""
    act = _ACTION.search(text)
    think = _THINK.search(text, 0, act.start() if act else len(text))
    action = act.group(1).strip().lower() if act else ""
    return ParsedResponse(
        thinking=think.group(1).strip() if think else "",
        action=action,
        valid=bool(action) and think is not None,
        thinking_span=think.span(1) if think else None,
        action_span=act.span(1) if act else None,
    )
