"""Chat messages of several dialects as the one that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..types import Message
from .records import TraceError

_ROLES = {
    "system": ("system", "developer", "systemmessage"),
    "user": ("user", "human", "humanmessage"),
    "assistant": ("assistant", "gpt", "ai", "model", "bot", "function_call", "tool_call", "aimessage"),
    "tool": ("tool", "function", "observation", "environment", "ipython", "tool_response", "toolmessage"),
}
ROLES: dict[str, str] = {name: role for role, names in _ROLES.items() for name in names}
_KEPT = ("tool_call_id", "name")


def dialect_role(message: Any) -> str | None:
    """``"system"``, ``"user"``, ``"assistant"`` or ``"tool"``; None for what is no message of a known dialect."""
    message = _opened(message)
    if not isinstance(message, Mapping):
        return None
    name = message.get("role") or message.get("from") or message.get("type")
    return ROLES.get(name.lower().removesuffix("chunk")) if isinstance(name, str) else None


def is_chat(value: Any) -> bool:
    """Whether it is a list of messages."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and dialect_role(value[0]) is not None
    )


def is_example(message: Any) -> bool:
    """Whether an assistant message is marked as one that nobody sampled: a demonstration, or without weight."""
    message = _opened(message)
    marked = message.get("is_demo") is True or any(
        message.get(name) in (0, False) for name in ("weight", "train", "loss") if message.get(name) is not None
    )
    return marked or str(message.get("name") or "").startswith("example")


def plain_message(message: Any, place: int) -> Message:
    """The message with a role that templates know, text as content, and tool calls as OpenAI writes them.

    Raises:
        TraceError: an unknown role, or a content that is no text.
    """
    role = dialect_role(message)
    if role is None:
        got = sorted(message) if isinstance(message, Mapping) else type(message).__name__
        raise TraceError(
            f"messages must hold dicts with a role of {sorted(_ROLES)}, got {_named(message) or got!r} at {place}; "
            "rename the role, or register a format of your own"
        )
    message = _opened(message)
    text, thinking, calls = _content(message.get("content", message.get("value")), role, place)
    plain: Message = {"role": role, "content": text}
    thinking = message.get("reasoning_content") or message.get("reasoning") or thinking
    if role == "assistant" and isinstance(thinking, str) and thinking:
        plain["reasoning_content"] = thinking
    calls = _calls(message) or calls
    if role == "assistant" and calls:
        plain["tool_calls"] = calls
    plain |= {name: message[name] for name in _KEPT if isinstance(message.get(name), str)}
    return plain


def _opened(message: Any) -> Any:
    """The inside of a message that was serialised as an object: ``{"type", "data"}``, or a constructor's arguments."""
    if not isinstance(message, Mapping):
        return message
    if isinstance(message.get("data"), Mapping) and "content" in message["data"]:
        return {"type": message.get("type"), **message["data"]}
    if message.get("type") == "constructor" and isinstance(message.get("kwargs"), Mapping):
        return {**message["kwargs"], "type": str((message.get("id") or [""])[-1])}
    return message


def _named(message: Any) -> Any:
    message = _opened(message)
    return message.get("role") or message.get("from") or message.get("type") if isinstance(message, Mapping) else None


def _content(content: Any, role: str, place: int) -> tuple[str, str, list[dict[str, Any]]]:
    """Text, thinking and tool calls of a content of text or parts."""
    if content is None or isinstance(content, str):
        return content or "", "", []
    if not isinstance(content, Sequence):
        return json.dumps(content, ensure_ascii=False), "", []
    texts, thoughts, calls = [], [], []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind in ("text", "input_text", "output_text"):
            texts.append(part["text"])
        elif kind in ("thinking", "reasoning"):
            thoughts.append(part.get(kind) or part.get("text") or "")
        elif kind == "tool_use":
            calls.append(_call(part["name"], part.get("input", {}), part.get("id")))
        elif kind == "tool_result":
            texts.append(_content(part.get("content"), role, place)[0])
        else:
            raise TraceError(
                f"messages must hold text, got a part of type {kind!r} in the {role!r} message at {place}; "
                "images and sounds are not supported"
            )
    return "\n".join(texts), "\n".join(thoughts), calls


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls") or ()
    legacy = message.get("function_call")
    if isinstance(legacy, Mapping):
        calls = [*calls, legacy]
    made = []
    for call in calls:
        inner = call.get("function", call) if isinstance(call, Mapping) else None
        inner = inner if isinstance(inner, Mapping) else call
        if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
            raise TraceError(f"tool_calls must hold a name and arguments each, got {call!r}; write them as OpenAI does")
        made.append(_call(inner["name"], inner.get("arguments", inner.get("args", {})), call.get("id")))
    return made


def _call(name: str, arguments: Any, identity: Any) -> dict[str, Any]:
    """A call with its arguments as an object, by which a template writes it in its own way."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except json.JSONDecodeError:
            raise TraceError(
                f"tool_calls must have arguments in JSON, got {arguments!r} for {name!r}; the call was cut or malformed"
            ) from None
    if not isinstance(arguments, Mapping):
        arguments = {} if arguments is None else {"input": arguments}
    call = {"type": "function", "function": {"name": name, "arguments": dict(arguments)}}
    return {"id": identity, **call} if isinstance(identity, str) else call
