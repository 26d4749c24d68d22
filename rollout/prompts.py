"""From chat messages to prompt ids, for the student and for the teacher, and from a response to what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..envs import ParsedResponse
from .chat import Chat
from .control_tokens import OPENING
from .templates import check_part
from .types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ValueError that names the fix when a tokenizer lacks a chat template or a padding token."""
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "check_tokenizer: tokenizer must have a chat template, got none; use an instruct model, "
            "or set tokenizer.chat_template"
        )
    if tokenizer.pad_token_id is None:
        raise ValueError(
            "check_tokenizer: tokenizer must have a pad token, got none; set tokenizer.pad_token "
            "(tokenizer.eos_token will do: padding is masked everywhere)"
        )


def render_prompt(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> tuple[int, ...]:
    """Token ids of `messages` under the model's chat template, generation prompt included.

    Control tokens come from the template alone: where a message's text spells one, it is tokenised as plain text. Lone
    surrogates become U+FFFD, the template's clock shows 2025-01-01.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        messages: chat messages, oldest first; contents are strings or lists of text parts.
        chat_template_kwargs: further variables of the template, such as ``{"enable_thinking": False}``.

    Raises:
        TypeError: a content that is neither text nor a list of text parts.
        ValueError: the template refuses the messages, or drops the content of one.
    """
    return Chat(tokenizer, messages, chat_template_kwargs or {}).ids()


def opened_block(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """The thinking block that the generation prompt opens, as text up to its end: ``"<think>\\n"``; "" without one."""
    return Chat(tokenizer, messages, chat_template_kwargs or {}).opened()


def parse_response(parse: Callable[[str], ParsedResponse], response: str, opened: str = "") -> ParsedResponse:
    """`response` taken apart by a suite's `parse`, with what the prompt opened as its start.

    A response that opens a block itself is taken alone, and so is one that is valid alone where the prompt closed its
    block. Spans are those inside the response; one that lies in the prompt is None.

    Args:
        parse: the suite's.
        response: decoded response text.
        opened: see `opened_block`.
    """
    tag = OPENING.match(opened)
    if tag is None or response.lstrip().lower().startswith(tag[0].lower()):
        return parse(response)
    if f"{tag[0][0]}/{tag[0][1:]}".lower() in opened.lower():
        alone = parse(response)
        if alone.valid:
            return alone
    parsed, shift = parse(opened + response), len(opened)
    return replace(
        parsed,
        thinking_span=_behind(parsed.thinking_span, shift),
        action_span=_behind(parsed.action_span, shift),
    )


def _behind(span: tuple[int, int] | None, shift: int) -> tuple[int, int] | None:
    """The part of a span behind its first `shift` characters, counted from there."""
    return None if span is None or span[1] <= shift else (max(span[0] - shift, 0), span[1] - shift)


def with_privileged_context(messages: Sequence[Message], privileged: str) -> list[Message]:
    """The teacher's messages: the same ones, with `privileged` ahead of the first user message's own text.

    In a content of parts it goes into the first text part, so that a template shows the same text either way.

    Source: docs/equations.md#shared-definitions, h+; released code puts it first, where left truncation cuts it away.

    Raises:
        TypeError: `privileged` or the first user message's content is not text.
        ValueError: there is no user message to put it in.
    """
    if not isinstance(privileged, str):
        raise TypeError(
            f"with_privileged_context: privileged must be text, got {type(privileged).__name__}; "
            'join the parts, "\\n".join(..), in the suite\'s privileged_context()'
        )
    for index, message in enumerate(messages):
        if message["role"] == "user":
            changed = dict(message, content=_with_text_ahead(message.get("content"), privileged))
            return [*messages[:index], changed, *messages[index + 1 :]]
    roles = [message["role"] for message in messages]
    raise ValueError(
        f"with_privileged_context: messages must hold a user message, got roles {roles}; "
        "let the task suite's messages() start with a user turn"
    )


def _with_text_ahead(content: Any, text: str) -> Any:
    if isinstance(content, str):
        return f"{text}\n\n{content}"
    if not isinstance(content, list):
        raise TypeError(
            f"with_privileged_context: messages must have text as content, got {type(content).__name__} in the 'user' "
            "message; pass a string or a list of text parts"
        )
    for part in content:
        check_part(part, "user")
    if not content:
        return [{"type": "text", "text": text}]
    return [{**content[0], "text": f"{text}\n\n{content[0]['text']}"}, *content[1:]]
