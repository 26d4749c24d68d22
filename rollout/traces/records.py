"""What a format makes of one foreign record: a `Trace`, not yet checked, with what the record says of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..types import Message

TASKS = ("task_id", "instance_id", "question_id", "problem_id", "prompt_id", "uid", "task")
REWARDS = ("reward", "score", "return", "total_reward", "final_reward", "outcome_reward", "rewards")
SUCCESSES = ("success", "is_success", "resolved", "solved", "passed", "correct", "is_correct")


class TraceError(ValueError):
    """What is wrong with one trace; importing names the trace in front, or counts it as skipped."""


@dataclass(frozen=True)
class Step:
    """One turn of a trace whose prompts were recorded.

    Args:
        messages: the prompt, as chat messages of any dialect.
        message: what the assistant said.
        reward: the turn's reward, or None.
        observation: what the action was chosen on; None is the last message that is not the assistant's.
        action: what was done; None is read out of the message.
        valid: whether the action was valid.
    """

    messages: Sequence[Any]
    message: Any
    reward: Any = None
    observation: str | None = None
    action: str | None = None
    valid: bool = True


@dataclass(frozen=True)
class Trace:
    """One foreign episode, as a conversation or as steps.

    Args:
        source: the record it was made of; options that are functions are asked about it.
        messages: a conversation of any dialect, whose assistant messages are the turns.
        context: how many of the first messages belong to the prompt, whoever speaks in them.
        steps: turns with a prompt each, instead of `messages`.
        task: name of the task, or None.
        group: what traces of one group have in common; None is the task, or else the first prompt.
        reward: the return, as found; None where the record has none. A list holds one reward per turn.
        success: success in [0, 1] or a bool, or None.
        version: the step of training that the record names.
        cut: whether the episode ran out of turns.
    """

    source: Mapping[str, Any]
    messages: Sequence[Any] = ()
    context: int = 0
    steps: Sequence[Step] = ()
    task: str | None = None
    group: Hashable = None
    reward: Any = None
    success: Any = None
    version: int = 0
    cut: bool = False


@dataclass(frozen=True)
class Skip:
    """A trace that was left out: its place among the records, and why."""

    place: int
    reason: str


@dataclass
class Broken:
    """A record that could not be read at all."""

    reason: str
    keys: tuple[str, ...] = field(default=())


def found(record: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The first of the names that the record, or its ``metadata``, gives a value; None where none does."""
    metadata = record.get("metadata")
    for name in names:
        for place in (record, metadata if isinstance(metadata, Mapping) else {}):
            if place.get(name) is not None:
                return place[name]
    return None


def filled(trace: Trace) -> Trace:
    """The trace with task, reward and success from the usual names where its format gave none."""
    task = found(trace.source, TASKS) if trace.task is None else trace.task
    reward = found(trace.source, REWARDS) if trace.reward is None else trace.reward
    success = found(trace.source, SUCCESSES) if trace.success is None else trace.success
    if isinstance(task, float) and task.is_integer():  # a column of numbers with gaps
        task = int(task)
    named = isinstance(task, str | int) and task != ""
    return replace(trace, task=str(task) if named else None, reward=reward, success=success)


def text_message(role: str, content: str) -> Message:
    """A chat message of text."""
    return {"role": role, "content": content}
