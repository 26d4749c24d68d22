"""Calls of tools in messages, and schemas of tools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..envs.results import shown
from .types import Message

_PYTHON_OR_ESCAPED = r"""'probe'\s*:\s*'{mark}|\\"{mark}"""


def checked_tools(tools: Any, owner: str) -> list[dict[str, Any]]:
    """JSON schemas of tools as a list.

    Raises:
        TypeError: something else than a list of mappings of JSON values.
    """
    right = isinstance(tools, Sequence) and not isinstance(tools, str) and all(isinstance(t, Mapping) for t in tools)
    if right:
        try:
            return json.loads(json.dumps([dict(tool) for tool in cast("Sequence[Any]", tools)], allow_nan=False))
        except (TypeError, ValueError):
            pass
    raise TypeError(
        f"{owner}: tools must be a list of JSON schemas, got {shown(tools)}; transformers.utils.get_json_schema makes "
        "one of a function"
    )


def checked_calls(message: Message) -> Message:
    """The message with the arguments of its tool calls as objects, where it has calls.

    Raises:
        TypeError: calls of another form than ``{"function": {"name": str, "arguments": {..}}}``.
    """
    calls = message.get("tool_calls")
    if not calls:
        return message
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise _wrong_call(message, calls)
    return {**message, "tool_calls": [_checked_call(message, call) for call in calls]}


def _checked_call(message: Message, call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _wrong_call(message, call)
    arguments = function.get("arguments", {})
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except json.JSONDecodeError:
        raise _wrong_call(message, call) from None
    if not isinstance(arguments, Mapping):
        raise _wrong_call(message, call)
    changed = {**function, "arguments": dict(arguments)}
    return {**call, "function": changed} if "function" in call else changed


def _wrong_call(message: Message, got: Any) -> TypeError:
    return TypeError(
        f"render_prompt: messages must hold tool calls as names and arguments, got {shown(got)} in the "
        f'{message["role"]!r} message; write {{"type": "function", "function": {{"name": .., "arguments": {{..}}}}}}'
    )


def with_arguments(message: Message, change: Any) -> Message:
    """The message with ``change(arguments, number)`` in place of the arguments of each of its tool calls."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for number, call in enumerate(message["tool_calls"]):
        function = call.get("function", call)
        changed = {**function, "arguments": change(function["arguments"], number)}
        calls.append({**call, "function": changed} if "function" in call else changed)
    return {**message, "tool_calls": calls}


def as_text(arguments: Mapping[str, Any], number: int = 0) -> str:
    """Arguments as one JSON text, for the templates that want them so."""
    return json.dumps(arguments, ensure_ascii=False)


def call_marks(index: int, message: Message) -> list[str]:
    """One mark for the arguments of each tool call of message `index`."""
    return [f"probe{index}call{number}end" for number in range(len(message.get("tool_calls") or ()))]


def shows_calls(text: str, marks: Sequence[str]) -> bool:
    """Whether every mark stands in the text, none as a value of a Python object or of JSON inside JSON."""
    text = text.casefold()
    return all(mark in text and not re.search(_PYTHON_OR_ESCAPED.format(mark=mark), text) for mark in marks)
