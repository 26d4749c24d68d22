"""Responses that were text only, as the token ids that a policy would have sampled behind its prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..chat import Chat
from ..control_tokens import CUT, continued, encode
from ..text import token_range
from ..types import Message, Turn
from .records import TraceError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def tokenized(turn: Turn, tokenizer: PreTrainedTokenizerBase, chat_template_kwargs: Mapping[str, Any]) -> Turn:
    """The turn with ids: those of the prompt, and of the response as the chat template writes the message behind it.

    What the template writes between the generation prompt and the end of the message is the response; the token that
    ends it belongs to the response, too. ``prompt_ids + response_ids`` are the ids of the template's own rendering;
    where its tokens reach over the border of the two, the response is tokenised by itself, as it is sampled, and its
    text is compared instead. Log-probs are 0 until they are scored.

    Raises:
        TraceError: the template writes something else than its generation prompt in front of the message, or the ids do
            not give its text.
    """
    if turn.tokenized or turn.message is None:
        return turn
    messages = [*turn.messages, turn.message]
    prompt, whole = (
        Chat(tokenizer, turn.messages, chat_template_kwargs),
        Chat(tokenizer, messages, chat_template_kwargs),
    )
    text, defused = whole.ending(), whole.ending(cut=True)
    if not text.startswith(prompt.text):
        raise TraceError(
            f"message must be written behind the generation prompt {prompt.text[-40:]!r}, but the chat template writes "
            f"{text[max(_common(text, prompt.text) - 20, 0) :][:60]!r}; set chat_template_kwargs (a thinking "
            "block that the prompt opens, perhaps) or another tokenizer.chat_template"
        )
    thinking = str(turn.message.get("reasoning_content") or "").strip()
    if thinking and thinking not in text[len(prompt.text) :]:
        raise TraceError(
            f"message must be written whole, but the chat template drops its reasoning_content, {thinking[:40]!r}; set "
            "another tokenizer.chat_template, or put the thinking into the content"
        )
    tail = _tail(tokenizer, turn.messages, chat_template_kwargs)
    if not text.endswith(tail):
        raise TraceError(
            f"message must end as the chat template ends one, {tail!r}, got {text[-40:]!r}; set another chat template"
        )
    end = encode(tokenizer, tail.lstrip())[:1] if whole.controls.among(encode(tokenizer, tail.lstrip())[:1]) else []
    blank = tail[: len(tail) - len(tail.lstrip())] if end else ""
    said = text[len(prompt.text) : len(text) - len(tail)] + blank
    pieces = defused[_cut_length(defused, len(prompt.text)) :]
    pieces = pieces[: len(pieces) - len(tail)] + blank
    prompt_ids = prompt.ids()
    body = _body(tokenizer, prompt_ids, text, said, pieces, whole)
    response_ids = (*body, *end)
    if not response_ids:
        raise TraceError("message must leave something to say in the chat template, got nothing; drop the trace")
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in body:
        raise TraceError(
            f"message must be of tokens that the tokenizer knows, got {tokenizer.unk_token!r} for a part of "
            f"{said.strip()[:60]!r}; take the tokenizer of a model that could have said it"
        )
    return _with_ids(turn, tokenizer, prompt_ids, response_ids, len(end))


def _body(tokenizer: Any, prompt: Sequence[int], text: str, said: str, pieces: str, whole: Chat) -> tuple[int, ...]:
    """Ids of what was said, behind the prompt.

    Raises:
        TraceError: they do not give its text.
    """
    if CUT not in pieces:
        rendered, alone = tuple(encode(tokenizer, text)), tuple(continued(tokenizer, said))
        if rendered[: len(prompt) + len(alone)] == (*prompt, *alone):
            return alone
    else:
        alone = tuple(token for piece in pieces.split(CUT) for token in continued(tokenizer, piece))
        if whole.controls.among(alone) > 0:
            raise TraceError("message must not hold a control token that stays one even in pieces; drop the trace")
    decoded = tokenizer.decode([*prompt[-1:], *alone], skip_special_tokens=False)
    first = tokenizer.decode(list(prompt[-1:]), skip_special_tokens=False)
    if _squeezed(decoded.removeprefix(first)) != _squeezed(said):
        raise TraceError(
            f"message must have ids that give its text, {said[:60]!r}, got {decoded.removeprefix(first)[:60]!r}; the "
            "tokenizer loses some of it"
        )
    return alone


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _common(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _cut_length(defused: str, length: int) -> int:
    """Where the first `length` characters end, those of `CUT` not counted."""
    place = 0
    while length > 0:
        length -= defused[place] != CUT
        place += 1
    return place


def _tail(tokenizer: Any, messages: Sequence[Message], kwargs: Mapping[str, Any]) -> str:
    """What the template writes behind an assistant's message."""
    text = Chat(tokenizer, [*messages, {"role": "assistant", "content": "x" + CUT}], kwargs).ending()
    _, mark, tail = text.rpartition(CUT)
    if not mark:
        raise TraceError("message must reach the model, but the chat template drops the assistant's; set another one")
    return tail


def _with_ids(turn: Turn, tokenizer: Any, prompt: Sequence[int], response: Sequence[int], closing: int) -> Turn:
    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=False)

    text = decode(response[: len(response) - closing] if closing else response)
    spans = (token_range(decode, response, text, span, closing) for span in _spans(turn, text))
    thinking, action = spans
    return replace(
        turn,
        prompt_ids=tuple(prompt),
        response_ids=tuple(response),
        logprobs=(0.0,) * len(response),
        response=text,
        thinking_tokens=thinking,
        action_tokens=action,
    )


def _spans(turn: Turn, text: str) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Where thinking and action stand in the response; calls of tools are all that stands behind the content."""
    start = text.find(turn.thinking) if turn.thinking else -1
    thinking = (start, start + len(turn.thinking)) if start >= 0 else None
    message = turn.message or {}
    behind = thinking[1] if thinking else 0
    if message.get("tool_calls"):
        content = str(message.get("content") or "").strip()
        found = text.find(content, behind) if content else behind
        begin = found + len(content) if found >= 0 else behind
        return thinking, (begin, len(text)) if begin < len(text) else None
    place = text.rfind(turn.action) if turn.action else -1
    return thinking, (place, place + len(turn.action)) if place >= behind else None
