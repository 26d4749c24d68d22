"""Messages under chat templates as they are found: strings or parts, foreign text, an opened thinking block.

Nothing a message holds becomes a control token, is dropped, or is written as a Python object; see docs/templates.md.
"""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .control_tokens import CUT, OPENING, ControlTokens, continued, control_tokens, encode
from .templates import checked, render_text
from .types import Message

logger = logging.getLogger(__name__)


def _texts(value: Any, change: Any, key: str = "") -> Any:
    """`value` with `change` applied to every string in it but roles, types and names of keys."""
    if isinstance(value, str):
        return value if key in ("role", "type") else change(value)
    if isinstance(value, Mapping):
        return {name: _texts(item, change, name) for name, item in value.items()}
    return [_texts(item, change) for item in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class _Frame:
    """How a template takes messages of these roles: as strings or parts, and with how many control tokens around."""

    parts: tuple[bool, ...]
    controls: int


class _Template:
    """What was found out about one tokenizer's template."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = weakref.proxy(tokenizer)
        self._frames: dict[Any, _Frame] = {}
        try:
            frame = render_text(tokenizer, [{"role": "user", "content": "hello"}], {})
        except ValueError:
            frame = ""
        self.controls = ControlTokens(control_tokens(tokenizer, frame))

    def frame(self, messages: list[Message], kwargs: Mapping[str, Any]) -> _Frame:
        """How the template takes these messages; found out once per roles and kinds of content."""
        kinds = [0 if isinstance(m["content"], str) else max(len(m["content"]), 1) for m in messages]
        key = (*((m["role"], kind, *m) for m, kind in zip(messages, kinds, strict=True)), repr(kwargs))
        if key not in self._frames:
            self._frames[key] = self._find_frame(messages, kinds, kwargs)
        return self._frames[key]

    def _find_frame(self, messages: list[Message], kinds: list[int], kwargs: Mapping[str, Any]) -> _Frame:
        """Try the forms of content with marks in place of the texts; the first that shows every mark is right."""
        count = len(messages)
        forms = [tuple(kind > 0 for kind in kinds), (False,) * count, (True,) * count]
        refusal, dropped = None, None
        for parts in forms:  # grows below
            probe = [
                _marked(m, index, kind, parts[index])
                for index, (m, kind) in enumerate(zip(messages, kinds, strict=True))
            ]
            try:
                text = render_text(self._tokenizer, probe, kwargs)
            except ValueError as error:
                refusal = refusal or error
                continue
            missing = [index for index, kind in enumerate(kinds) if not _shown(text, _marks(index, kind))]
            if not missing:
                return _Frame(parts, self.controls.among(encode(self._tokenizer, text)))
            dropped = messages[missing[0]]["role"] if dropped is None else dropped
            turned = tuple(form != (index in missing) for index, form in enumerate(parts))
            forms += [turned] if turned not in forms else []
        if dropped is None and refusal is not None:
            raise refusal
        raise ValueError(
            "render_prompt: messages must reach the model, but the tokenizer's chat template drops the content of the "
            f"{dropped!r} message, as text and as parts; set another tokenizer.chat_template"
        )


def _marks(index: int, kind: int) -> list[str]:
    return [f"probe{index}part{number}end" for number in range(max(kind, 1))]


def _marked(message: Message, index: int, kind: int, parts: bool) -> Message:
    marks = [{"type": "text", "text": mark} for mark in _marks(index, kind)]
    return _as({**message, "content": marks}, parts)


def _shown(text: str, marks: Sequence[str]) -> bool:
    """Whether every mark stands in the text, and none of them as a value of a Python or JSON object."""
    text = text.casefold()
    return all(mark in text and not re.search(rf"""["']text["']: ["']{mark}""", text) for mark in marks)


def _as(message: Message, parts: bool) -> Message:
    """The message with its content as text parts or as one string."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": [{"type": "text", "text": content}]} if parts else message
    return message if parts else {**message, "content": "".join(part["text"] for part in content)}


_TEMPLATES: weakref.WeakKeyDictionary[Any, tuple[Any, _Template]] = weakref.WeakKeyDictionary()


def _known(tokenizer: Any) -> _Template:
    """What is known about the tokenizer, found out anew when its template or its tokens changed."""
    state = (tokenizer.chat_template, len(tokenizer), tokenizer.eos_token, tokenizer.pad_token)
    known = _TEMPLATES.get(tokenizer)
    if known is None or known[0] != state:
        known = _TEMPLATES[tokenizer] = (state, _Template(tokenizer))
    return known[1]


class Chat:
    """Messages under a tokenizer's chat template with a generation prompt.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        messages: chat messages, oldest first.
        kwargs: further variables of the template.

    Raises:
        TypeError, ValueError: see `turncredit.rollout.prompts.render_prompt`.
    """

    def __init__(self, tokenizer: Any, messages: Sequence[Message], kwargs: Mapping[str, Any]):
        self._tokenizer, self._kwargs = tokenizer, kwargs
        self._template = _known(tokenizer)
        plain_messages = checked(messages)
        self._frame = self._template.frame(plain_messages, kwargs)
        self._messages = [_as(m, parts) for m, parts in zip(plain_messages, self._frame.parts, strict=True)]
        self._refused = False
        try:
            self.text = self._render(self._messages)
        except ValueError:  # some templates refuse control tokens in a message
            self._refused = True
            self._messages = _texts(self._messages, self._template.controls.cut)
            self.text = self._render(self._messages)

    def _render(self, messages: Sequence[Message], generation: bool = True) -> str:
        return render_text(self._tokenizer, messages, self._kwargs, generation)

    def ids(self) -> tuple[int, ...]:
        """Token ids; text of a message never becomes a control token."""
        ids, controls = encode(self._tokenizer, self.text), self._template.controls
        as_ever = controls.among(ids) == self._frame.controls and not self._refused
        return tuple(ids if as_ever else self._defused(controls))

    def _defused(self, controls: ControlTokens) -> list[int]:
        """Ids of messages whose texts hold control tokens: those are cut in two and tokenised as plain text.

        Everything else is tokenised as ever, and the template's own control tokens stay.
        """
        pieces = self._render(_texts(self._messages, controls.cut)).split(CUT)
        ids = encode(self._tokenizer, pieces[0])
        for piece in pieces[1:]:
            ids += continued(self._tokenizer, piece)
        if controls.among(ids) == sum(map(controls.in_text, pieces)):
            return ids
        logger.warning("a message's text becomes control tokens even in pieces; its marks are replaced by blanks")
        return encode(self._tokenizer, self._render(_texts(self._messages, _words)))

    def opened(self) -> str:
        """What the generation prompt holds from an opened thinking block on, "" without one.

        The text that `add_generation_prompt` adds is searched; where a template always adds it, the text behind the
        last message. Tags inside messages never count.
        """
        if not re.search("think|thought|reason", str(self._tokenizer.chat_template), re.IGNORECASE):
            return ""
        without = self._render(self._messages, generation=False)
        tail = self.text[len(without) :]
        if not tail or not self.text.startswith(without):
            tail = self._behind_last_message() or self.text[_common(self.text, without) :]
        match = OPENING.search(tail)
        return tail[match.start() :] if match else ""

    def _behind_last_message(self) -> str:
        last = self._messages[-1]
        content = last["content"]
        content = content + CUT if isinstance(content, str) else [*content, {"type": "text", "text": CUT}]
        _, mark, tail = self._render([*self._messages[:-1], {**last, "content": content}]).rpartition(CUT)
        return tail if mark and self.text.endswith(tail) else ""


def _words(text: str) -> str:
    return re.sub(r"[^\w\s]", " ", text)


def _common(text: str, without: str) -> int:
    """Length of the common start, a tag that it cuts in two left out."""
    differs = (i for i, (one, other) in enumerate(zip(text, without, strict=False)) if one != other)
    common = text[: next(differs, min(len(text), len(without)))]
    bracket = max(common.rfind("<"), common.rfind("["))
    return bracket if bracket > max(common.rfind(">"), common.rfind("]")) else len(common)


def check_chat_template(tokenizer: Any, kwargs: Mapping[str, Any]) -> None:
    """Raise a ValueError where a chat template cannot serve, before anything is sampled.

    Raises:
        ValueError: a key of `kwargs` that the template does not mention (it would do nothing), a template that draws
            random numbers, or one that cannot show a user message.
    """
    source = str(tokenizer.chat_template)
    unknown = [name for name in kwargs if not re.search(rf"\b{re.escape(name)}\b", source)]
    if unknown:
        raise ValueError(
            f"check_chat_template: chat_template_kwargs must name variables of the chat template, got {unknown[0]!r}, "
            "which it does not mention; check the spelling or leave it out"
        )
    if re.search(r"\|\s*random\b", source):
        raise ValueError(
            "check_chat_template: tokenizer must have a chat template without the filter 'random', got one with it; "
            "student and teacher would read different texts, replace it in tokenizer.chat_template"
        )
    shortest_chat(tokenizer, "hello", kwargs)


def shortest_chat(tokenizer: Any, text: str, kwargs: Mapping[str, Any]) -> list[Message]:
    """A user's message, behind a system's where the template wants one.

    Raises:
        ValueError: the template cannot show it in either way.
    """
    messages: list[Message] = [{"role": "user", "content": text}]
    try:
        Chat(tokenizer, messages, kwargs)
    except ValueError as error:
        messages.insert(0, {"role": "system", "content": "hello"})
        try:
            Chat(tokenizer, messages, kwargs)
        except ValueError:
            raise error from None
    return messages
