"""Messages under chat templates as they are found: strings or parts, foreign text, an opened thinking block.

Nothing a message holds becomes a control token, is dropped, or is written as a Python object; see docs/templates.md.
"""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .control_tokens import CUT, OPENING, ControlTokens, continued, encode
from .forms import Template
from .template_options import mentions
from .templates import checked, render_text
from .types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


def _texts(value: Any, change: Any, key: str = "") -> Any:
    """`value` with `change` applied to every string in it but roles, types and names of keys; arguments of tool calls
    are foreign throughout."""
    foreign = key == "arguments"
    if isinstance(value, str):
        return value if key in ("role", "type") else change(value)
    if isinstance(value, Mapping):
        return {
            change(name) if foreign else name: _texts(item, change, "arguments" if foreign else name)
            for name, item in value.items()
        }
    return (
        [_texts(item, change, key if foreign else "") for item in value] if isinstance(value, list | tuple) else value
    )


_TEMPLATES: weakref.WeakKeyDictionary[Any, tuple[Any, Template]] = weakref.WeakKeyDictionary()


def _known(tokenizer: PreTrainedTokenizerBase) -> Template:
    """What is known about the tokenizer, found out anew when its template or its tokens changed."""
    state = (tokenizer.chat_template, len(tokenizer), tokenizer.eos_token, tokenizer.pad_token)
    known = _TEMPLATES.get(tokenizer)
    if known is None or known[0] != state:
        known = _TEMPLATES[tokenizer] = (state, Template(tokenizer))
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

    def __init__(self, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], kwargs: Mapping[str, Any]):
        self._tokenizer, self._kwargs = tokenizer, kwargs
        self._template = _known(tokenizer)
        plain_messages = checked(messages)
        self._frame = self._template.frame(plain_messages, kwargs)
        self._messages = self._frame.form.of(plain_messages)
        self._refused = False
        try:
            self.text = self._render(self._messages)
        except ValueError:  # some templates refuse control tokens in a message
            self._refused = True
            self._messages = _texts(self._messages, self._template.controls.cut)
            self.text = self._render(self._messages)

    def _render(self, messages: Sequence[Message], generation: bool = True) -> str:
        return render_text(self._tokenizer, messages, self._kwargs, generation)

    @property
    def controls(self) -> ControlTokens:
        """The template's control tokens."""
        return self._template.controls

    def ending(self, cut: bool = False) -> str:
        """The text without a generation prompt; with `cut`, control tokens that messages spell are parted by `CUT`."""
        messages = _texts(self._messages, self.controls.cut) if cut else self._messages
        return self._render(messages, generation=False)

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
        content = last.get("content")
        if content is None:
            return ""
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


def check_chat_template(tokenizer: PreTrainedTokenizerBase, kwargs: Mapping[str, Any]) -> None:
    """Raise a ValueError where a chat template cannot serve, before anything is sampled.

    Raises:
        ValueError: a key of `kwargs` that the template does not mention (it would do nothing), a template that draws
            random numbers, or one that cannot show a user message.
    """
    source = str(tokenizer.chat_template)
    unknown = [name for name in kwargs if not mentions(source, name)]
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


def shortest_chat(tokenizer: PreTrainedTokenizerBase, text: str, kwargs: Mapping[str, Any]) -> list[Message]:
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
