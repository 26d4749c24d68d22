"""Calls of a task suite in the middle of a rollout: what it does wrong fails one episode and not the run."""

from __future__ import annotations

import dataclasses
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..envs import EnvFailure, HistoryEntry, Observation, ParsedResponse, Task, TaskSuite
from ..envs.results import as_number, shown
from .chat import Chat
from .prompts import parse_response, with_privileged_context
from .types import Message


def parsed_response(suite: TaskSuite, response: str, opened: str = "") -> ParsedResponse | EnvFailure:
    """``suite.parse`` of what the prompt opened and the response, its fields checked, or the failure
    ``"suite_error"`` (see `turncredit.rollout.prompts.parse_response`)."""

    def parse(text: str) -> ParsedResponse:
        return _parsed(suite.parse(text), text)

    return _asked("parse", lambda: parse_response(parse, response, opened), lambda answer: answer)


def parsed_or_empty(suite: TaskSuite, response: str, opened: str = "") -> ParsedResponse:
    """A response that is no turn of an episode (a teacher's, say); an invalid empty one where the suite is at fault."""
    answer = parsed_response(suite, response, opened)
    return ParsedResponse("", "", False) if isinstance(answer, EnvFailure) else answer


def turn_messages(
    suite: TaskSuite, task: Task, history: Sequence[HistoryEntry], observation: Observation
) -> list[Message] | EnvFailure:
    """``suite.messages(..)`` as a list of messages, or the failure ``"suite_error"``."""
    return _asked("messages", lambda: suite.messages(task, history, observation), _messages)


def turn_chat(
    tokenizer: Any, messages: Sequence[Message], context: str | None, kwargs: Mapping[str, Any]
) -> tuple[tuple[int, ...], str] | EnvFailure:
    """Prompt ids and the thinking block that the prompt opens, or ``"suite_error"`` where the template refuses."""

    def render() -> Chat:
        return Chat(tokenizer, messages if context is None else with_privileged_context(messages, context), kwargs)

    return _asked("messages", render, lambda chat: (chat.ids(), chat.opened()))


def privileged_text(suite: TaskSuite, task: Task) -> str | EnvFailure | None:
    """``suite.privileged_context(task)``, or the failure ``"suite_error"``."""
    return _asked("privileged_context", lambda: suite.privileged_context(task), _context)


def _asked(name: str, call: Callable[[], Any], check: Callable[[Any], Any]) -> Any:
    try:
        return check(call())
    except _Wrong as error:
        return EnvFailure("suite_error", f"{name}: {error}")
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(where.filename)}:{where.lineno}"
        return EnvFailure("suite_error", f"{name} raised {type(error).__name__} at {place}: {shown(error, plain=True)}")


class _Wrong(Exception):
    pass


def _parsed(answer: Any, response: str) -> ParsedResponse:
    _demand(isinstance(answer, ParsedResponse), "the result must be a ParsedResponse", answer)
    for name in ("thinking", "action"):
        value = getattr(answer, name)
        _demand(isinstance(value, str), f"{name} must be a str, empty where there is none", value)
    _demand(as_number(answer.valid) in (0.0, 1.0), "valid must be a bool", answer.valid)
    for name in ("thinking_span", "action_span"):
        span = getattr(answer, name)
        _demand(span is None or _is_span(span, len(response)), f"{name} must be a range inside the response", span)
    return answer if answer.valid is bool(answer.valid) else dataclasses.replace(answer, valid=bool(answer.valid))


def _is_span(span: Any, length: int) -> bool:
    start, end = span
    return 0 <= start <= end <= length


def _messages(answer: Any) -> list[Message]:
    _demand(
        isinstance(answer, Sequence) and not isinstance(answer, str | bytes) and len(answer) > 0,
        "the result must be a non-empty list of messages",
        answer,
    )
    return [_message(message) for message in answer]


def _message(message: Any) -> Message:
    _demand(isinstance(message, Mapping) and "role" in message, "a message must be a mapping with a role", message)
    content = message.get("content")
    # calls of tools go without text
    bare = content is None and "tool_calls" in message
    _demand(bare or isinstance(content, str | list), "content must be text", content)
    return dict(message)


def _context(answer: Any) -> str | None:
    _demand(answer is None or isinstance(answer, str), "the result must be a str or None", answer)
    return answer


def _demand(right: bool, rule: str, value: Any) -> None:
    if not right:
        raise _Wrong(f"{rule}, got {shown(value)} ({type(value).__name__})")
