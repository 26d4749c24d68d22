"""Rendering a chat template: its own variables, a clock that stands still, messages checked before."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError

from .text import plain
from .tools import checked_calls
from .types import Message

DATE = "2025-01-01"
"""What a template's clock shows unless ``chat_template_kwargs={"strftime_now": "2026-03-01"}`` says otherwise."""

_CLOCK = re.compile(r"\bstrftime_now\s*\(\s*(?P<quote>['\"])(?P<format>(?:(?!(?P=quote))[^\\])*)(?P=quote)\s*\)")
_MENTIONS = re.compile(r"\bstrftime_now\s+is\s+(not\s+)?defined\b|\bnot\s+strftime_now\b|\{#.*?#\}", re.DOTALL)
_RESERVED = frozenset(
    (
        *("messages", "conversation", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize"),
        *("padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
        *("tokenizer_kwargs", "sanitize_control_tokens"),
    )
)


def check_template_kwargs(kwargs: Any, where: str) -> dict[str, Any]:
    """`kwargs` as a dict, if a template can be given them and a checkpoint can hold them.

    Raises:
        TypeError: not a mapping from names to JSON values.
        ValueError: a name that the library sets itself, or a moment that is no ISO date.
    """
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise TypeError(f"{where}: chat_template_kwargs must map names to values, got {kwargs!r}; pass a dict")
    reserved = sorted(_RESERVED & kwargs.keys())
    if reserved:
        raise ValueError(
            f"{where}: chat_template_kwargs must hold the template's own variables, got {reserved[0]!r}; leave it out, "
            "the library sets it"
        )
    try:
        json.dumps(dict(kwargs), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{where}: chat_template_kwargs must be JSON values, got {dict(kwargs)!r} ({error}); "
            "a checkpoint records them"
        ) from None
    try:
        datetime.fromisoformat(kwargs.get("strftime_now", DATE))
    except (TypeError, ValueError):
        raise ValueError(
            f"{where}: chat_template_kwargs must give strftime_now as an ISO date, got {kwargs['strftime_now']!r}; "
            f"write it like {DATE!r}"
        ) from None
    return dict(kwargs)


@functools.lru_cache(maxsize=64)
def _with_stopped_clock(template: str, date: str) -> str:
    """The template with the texts that its clock would show at `date` written out."""
    if re.search(r"\bmacro\s+strftime_now\b", template):  # the template's own
        return template
    moment = datetime.fromisoformat(date)
    stopped = _CLOCK.sub(lambda call: json.dumps(moment.strftime(call["format"]), ensure_ascii=False), template)
    if "strftime_now" in _MENTIONS.sub("", stopped):
        raise ValueError(
            "render_prompt: tokenizer must have a chat template that asks strftime_now for a format in quotes, got "
            "another use; set a fixed date in tokenizer.chat_template"
        )
    return stopped


def render_text(tokenizer: Any, messages: Sequence[Message], kwargs: Mapping[str, Any], generation: bool = True) -> str:
    """The text of `messages` under the chat template, with a clock that stands still.

    Raises:
        ValueError: the template refuses these messages, or asks its clock in another way than by a written format.
    """
    arguments = dict(kwargs)
    if "strftime_now" in str(tokenizer.chat_template):
        date = arguments.pop("strftime_now", DATE)
        arguments["chat_template"] = _with_stopped_clock(
            tokenizer.get_chat_template(tools=arguments.get("tools")), date
        )
    try:
        return tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=generation, **arguments
        )
    except (TemplateError, TypeError) as error:
        roles = [message["role"] for message in messages]
        fix = (
            "put the system text into the first user message" if "system" in roles else "change the suite's messages()"
        )
        raise ValueError(
            f"render_prompt: messages must suit the tokenizer's chat template, got roles {roles}: {error}; {fix}, "
            "or set tokenizer.chat_template"
        ) from error


def checked(messages: Sequence[Message]) -> list[Message]:
    """The messages with unencodable text replaced.

    Raises:
        TypeError: a message without role, or whose content is neither text nor a list of text parts; one with tool
            calls may have no content.
        ValueError: there is no message.
    """
    if not messages:
        raise ValueError("render_prompt: messages must not be empty; check the suite's messages()")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise TypeError(f"render_prompt: messages must be dicts with a role, got {message!r}; check messages()")
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                check_part(part, message["role"])
        elif not isinstance(content, str) and not (content is None and message.get("tool_calls")):
            raise TypeError(
                f"render_prompt: messages must have text as content, got {type(content).__name__} in the "
                f"{message['role']!r} message; pass a string or a list of text parts"
            )
    return [plain(checked_calls(dict(message))) for message in messages]


def check_part(part: Any, role: str) -> None:
    """Raise a TypeError unless `part` is ``{"type": "text", "text": str}``."""
    if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise TypeError(
            f"render_prompt: messages must hold text parts only, got one of type {kind!r} in the {role!r} message; "
            'write {"type": "text", "text": ..}, images are not supported'
        )
