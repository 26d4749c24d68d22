"""What the agent reads and how its answer is taken apart: ``<think>..</think>`` then ``<action>..</action>``."""

from __future__ import annotations

from collections.abc import Sequence

from ..base import HistoryEntry, Message, Observation, ParsedResponse
from ..kit import TaggedParser, step_messages
from ..kit.checks import check_counts

_PARSER = TaggedParser(lower=True)
STOP_STRINGS = _PARSER.stop_strings


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
    check_counts("alfworld_messages", history_length=(history_length, 0, "2 is the usual value"))
    opening = "You control a robot in a household and carry out a task by typing commands."
    return step_messages(opening, task if history else "", history, observation, history_length=history_length)


def parse_response(response: str) -> ParsedResponse:
    """Thinking and action of a response, the action lower-cased; see `turncredit.envs.kit.TaggedParser`.

    >>> parse_response("<think>the mug</think><action>Go to shelf 1</action>").action
    'go to shelf 1'
    """
    return _PARSER(response)
