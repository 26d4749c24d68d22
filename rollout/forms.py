"""In which form a chat template takes messages: contents as strings or parts, arguments of calls as objects or text."""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .control_tokens import ControlTokens, control_tokens, encode
from .templates import render_text
from .tools import as_text, call_marks, shows_calls, with_arguments
from .types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Form:
    """How messages are handed to a template.

    Args:
        parts: whether each content is given as parts.
        arguments_as_text: whether arguments of tool calls are one JSON text each.
        blank: whether a message without content gets an empty one.
    """

    parts: tuple[bool, ...]
    arguments_as_text: bool = False
    blank: bool = False

    def of(self, messages: Sequence[Message]) -> list[Message]:
        """The messages in this form."""
        formed = [_as(message, parts) for message, parts in zip(messages, self.parts, strict=True)]
        if self.arguments_as_text:
            formed = [with_arguments(message, as_text) for message in formed]
        return [{**m, "content": ""} if m.get("content") is None else m for m in formed] if self.blank else formed


@dataclass(frozen=True)
class Frame:
    """How a template takes messages of these roles: in which form, and with how many control tokens around."""

    form: Form
    controls: int


class Template:
    """What was found out about one tokenizer's template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = weakref.proxy(tokenizer)
        self._frames: dict[Any, Frame] = {}
        try:
            frame = render_text(tokenizer, [{"role": "user", "content": "hello"}], {})
        except ValueError:
            frame = ""
        self.controls = ControlTokens(control_tokens(tokenizer, frame))

    def frame(self, messages: list[Message], kwargs: Mapping[str, Any]) -> Frame:
        """How the template takes these messages; found out once per roles and kinds of content."""
        shapes = [(m["role"], _kind(m), len(m.get("tool_calls") or ()), *m) for m in messages]
        key = (*shapes, repr(kwargs))
        if key not in self._frames:
            self._frames[key] = self._find_frame(messages, kwargs)
        return self._frames[key]

    def _find_frame(self, messages: list[Message], kwargs: Mapping[str, Any]) -> Frame:
        """Try the forms of messages with marks in place of their texts; the first that shows every mark is right."""
        probes = [_marked(message, index) for index, message in enumerate(messages)]
        called = any(message.get("tool_calls") for message in messages)
        refusal: ValueError | None = None
        for arguments_as_text in (False, True) if called else (False,):
            try:
                form, text = self._find_form(probes, kwargs, arguments_as_text)
                return Frame(form, self.controls.among(encode(self._tokenizer, text)))
            except ValueError as error:
                refusal = refusal or error
        assert refusal is not None
        raise refusal

    def _find_form(self, probes: list[Message], kwargs: Mapping[str, Any], arguments_as_text: bool) -> tuple[Form, str]:
        count = len(probes)
        forms = [tuple(_kind(probe) > 0 for probe in probes), (False,) * count, (True,) * count]
        refusal, dropped = None, None
        for parts in forms:  # grows below
            form = Form(parts, arguments_as_text)
            try:
                text = render_text(self._tokenizer, form.of(probes), kwargs)
            except ValueError as error:
                refusal = refusal or error
                continue
            missing = [index for index, probe in enumerate(probes) if not _shown(text, _marks(index, _kind(probe)))]
            uncalled = [index for index, probe in enumerate(probes) if not shows_calls(text, call_marks(index, probe))]
            if not missing and not uncalled:
                return self._without_none(form, probes, kwargs, text)
            if dropped is None:
                what, index = ("content", missing[0]) if missing else ("tool calls", uncalled[0])
                dropped = f"the {what} of the {probes[index]['role']!r} message"
            turned = tuple(form != (index in missing) for index, form in enumerate(parts))
            forms += [turned] if turned not in forms else []
        if dropped is None and refusal is not None:
            raise refusal
        raise ValueError(
            "render_prompt: messages must reach the model, but the tokenizer's chat template drops "
            f"{dropped}, as text and as parts; set another tokenizer.chat_template"
        )

    def _without_none(
        self, form: Form, probes: list[Message], kwargs: Mapping[str, Any], text: str
    ) -> tuple[Form, str]:
        """The form with empty contents instead of none where the template would write None out."""
        if all(probe.get("content") is not None for probe in probes):
            return form, text
        filled = replace(form, blank=True)
        try:
            other = render_text(self._tokenizer, filled.of(probes), kwargs)
        except ValueError:
            return form, text
        return (filled, other) if other.count("None") < text.count("None") else (form, text)


def _kind(message: Message) -> int:
    """-1 without content, 0 for text, else the number of parts."""
    content = message.get("content")
    return -1 if content is None else 0 if isinstance(content, str) else max(len(content), 1)


def _marks(index: int, kind: int) -> list[str]:
    return [f"probe{index}part{number}end" for number in range(max(kind, 1))] if kind >= 0 else []


def _marked(message: Message, index: int) -> Message:
    """The message with marks in place of its texts, and of the arguments of its tool calls."""
    kind, calls = _kind(message), call_marks(index, message)
    if kind >= 0:
        marks = [{"type": "text", "text": mark} for mark in _marks(index, kind)]
        message = {**message, "content": marks if kind > 0 else marks[0]["text"]}
    return with_arguments(message, lambda arguments, number: {"probe": calls[number]})


def _shown(text: str, marks: Sequence[str]) -> bool:
    """Whether every mark stands in the text, and none of them as a value of a Python or JSON object."""
    text = text.casefold()
    return all(mark in text and not re.search(rf"""["']text["']: ["']{mark}""", text) for mark in marks)


def _as(message: Message, parts: bool) -> Message:
    """The message with its content as text parts or as one string."""
    content = message.get("content")
    if content is None:
        return message
    if isinstance(content, str):
        return {**message, "content": [{"type": "text", "text": content}]} if parts else message
    return message if parts else {**message, "content": "".join(part["text"] for part in content)}
