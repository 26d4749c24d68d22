"""What a task suite may answer: one check per member, naming the member, the rule and what it got."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from ..envs import ParsedResponse
from ..envs.results import as_number, shown
from .types import Message


class WrongAnswer(TypeError):
    """A suite's answer that is not what `turncredit.envs.TaskSuite` says."""


def demand(right: bool, member: str, rule: str, value: Any) -> None:
    """Raise a `WrongAnswer` unless `right`."""
    if not right:
        raise WrongAnswer(f"{member}: {rule}, got {shown(value)} ({type(value).__name__})")


def parsed_answer(answer: Any, response: str) -> ParsedResponse:
    """An answer of ``parse`` to `response`, with a plain flag."""
    demand(isinstance(answer, ParsedResponse), "parse", "the result must be a ParsedResponse", answer)
    for name in ("thinking", "action"):
        value = getattr(answer, name)
        demand(isinstance(value, str), "parse", f"{name} must be a str, empty where there is none", value)
    demand(as_number(answer.valid) in (0.0, 1.0), "parse", "valid must be a bool", answer.valid)
    for name in ("thinking_span", "action_span"):
        span = getattr(answer, name)
        right = span is None or _is_span(span, len(response))
        demand(right, "parse", f"{name} must be a range inside the response", span)
    return answer if answer.valid is bool(answer.valid) else dataclasses.replace(answer, valid=bool(answer.valid))


def _is_span(span: Any, length: int) -> bool:
    pair = isinstance(span, Sequence) and len(span) == 2 and all(isinstance(end, numbers.Integral) for end in span)
    return pair and 0 <= span[0] <= span[1] <= length


def messages_answer(answer: Any, member: str = "messages") -> list[Message]:
    """An answer of ``messages`` or ``with_context`` as a list of dicts."""
    right = isinstance(answer, Sequence) and not isinstance(answer, str | bytes) and len(answer) > 0
    demand(right, member, "the result must be a non-empty list of messages", answer)
    return [_message(message, member) for message in answer]


def _message(message: Any, member: str) -> Message:
    right = isinstance(message, Mapping) and "role" in message
    demand(right, member, "a message must be a mapping with a role", message)
    content = message.get("content")
    # calls of tools go without text
    bare = content is None and "tool_calls" in message
    demand(bare or isinstance(content, str | list), member, "content must be text", content)
    return dict(message)


def context_answer(answer: Any, member: str = "privileged_context", name: str = "") -> str | None:
    """An answer of ``privileged_context``, or the text `name` of ``contexts``; None where it says nothing."""
    what = repr(name) if name else "the result"
    demand(answer is None or isinstance(answer, str), member, f"{what} must be a str or None", answer)
    return answer if answer and not answer.isspace() else None


def contexts_answer(answer: Any) -> Mapping[str, str | None]:
    """An answer of ``contexts``: names of texts. The texts are not read: making one may cost something."""
    demand(isinstance(answer, Mapping), "contexts", "the result must be a mapping from names to texts", answer)
    for name in answer:
        own = isinstance(name, str) and "+" not in name and name != "privileged"
        demand(own, "contexts", 'a name must be a str without "+", and not "privileged"', name)
    return answer
