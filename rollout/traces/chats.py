"""Conversations: OpenAI's messages, ShareGPT's, those of LangGraph's states; and recorded prompts with responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .messages import is_chat
from .records import Step, Trace, text_message
from .registry import Record, register_trace_format

_CHATS = ("messages", "conversations", "conversation", "dialog", "chat")
_PROMPTS = ("prompt", "messages", "input", "query")
_RESPONSES = ("response", "completion", "output", "message")


def _chat(record: Record) -> Sequence[Any]:
    return next((record[name] for name in _CHATS if is_chat(record.get(name))), ())


@register_trace_format("chat", fits=lambda record: bool(_chat(record)))
def read_chat(record: Record) -> Trace:
    """``{"messages": [{"role", "content", "tool_calls"}]}`` or ``{"conversations": [{"from", "value"}]}``."""
    system = record.get("system")
    messages = list(_chat(record))
    if isinstance(system, str) and system.strip():  # ShareGPT keeps it beside the conversation
        messages.insert(0, text_message("system", system))
    return Trace(record, messages)


def _state(record: Record) -> Sequence[Any]:
    values = record.get("values")
    return (values if isinstance(values, Mapping) else record).get("messages") or ()


def _of_langchain(record: Record) -> bool:
    state = _state(record)
    return is_chat(state) and isinstance(state[0], Mapping) and "role" not in state[0] and "type" in state[0]


@register_trace_format("langgraph", fits=_of_langchain)
def read_langgraph(record: Record) -> Trace:
    """A state, ``{"messages": [{"type": "human" | "ai" | "tool", "content", "tool_calls": [{"name", "args"}]}]}``,
    alone or as the ``values`` of a snapshot."""
    values = record.get("values")
    source = {**values, **record} if isinstance(values, Mapping) else record
    return Trace(source, _state(record))


def as_prompt(value: Any) -> list[Any]:
    """A prompt as messages: they are, or its text is the user's."""
    return list(value) if is_chat(value) else [text_message("user", str(value))] if value not in (None, "") else []


def as_response(value: Any) -> Any:
    """A response as a message: it is one, a list of one, or its text is the assistant's."""
    if is_chat(value) and len(value) == 1:
        return value[0]
    if isinstance(value, Mapping) and "message" in value:
        return value["message"]
    return (
        value
        if isinstance(value, Mapping) and ("role" in value or "type" in value)
        else text_message("assistant", str(value or ""))
    )


def _given(step: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((step[name] for name in names if step.get(name) is not None), None)


def _has_steps(record: Record) -> bool:
    steps = record.get("steps")
    return bool(steps) and all(_given(s, _PROMPTS) is not None and _given(s, _RESPONSES) is not None for s in steps)


@register_trace_format("steps", fits=_has_steps)
def read_steps(record: Record) -> Trace:
    """``{"steps": [{"prompt", "response", "reward", "observation", "action", "valid"}], "reward"}``; the last four of a
    step may be missing."""
    steps = [
        Step(
            as_prompt(_given(step, _PROMPTS)),
            as_response(_given(step, _RESPONSES)),
            step.get("reward"),
            step.get("observation"),
            step.get("action"),
            step.get("valid") not in (False, 0),
        )
        for step in record["steps"]
    ]
    return Trace(record, steps=steps)
