"""Which ids end a response: those the tokenizer and the model name, and the one by which the template ends a turn."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .types import Message

logger = logging.getLogger(__name__)

_MARK = "vqz 4711 zqv"


@dataclass(frozen=True)
class EndOfTurn:
    """How a chat template closes an assistant's message.

    Args:
        ids: the special tokens that follow the message at once, blanks aside; empty where plain text follows.
        text: what follows the message, as text.
    """

    ids: tuple[int, ...]
    text: str


def named_stop_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """End-of-sequence ids of the tokenizer and of the model's generation config."""
    configured: Any = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    configured = configured.tolist() if hasattr(configured, "tolist") else configured  # a tensor or numpy's
    listed = configured if isinstance(configured, list | tuple) else [configured]
    return tuple(sorted({i for i in [*listed, tokenizer.eos_token_id] if i is not None}))


def end_of_turn(tokenizer: Any) -> EndOfTurn | None:
    """How the chat template ends an assistant's message, or None where it renders no such message.

    Read off a conversation that ends with the message and one that goes on behind it: what both have in common is the
    turn's end; the rest is the conversation's (Phi-3 writes the end of the text there) or the next turn's start.
    """
    system, user = ({"role": role, "content": "hello"} for role in ("system", "user"))
    conversation = [user, {"role": "assistant", "content": _MARK}]
    # as strings, as parts, and behind a system's message: whatever the template takes
    for change in (list, _in_parts, lambda messages: [system, *messages]):
        found = [_closing(tokenizer, change([*conversation, *more])) for more in ([], [user])]
        ends = [end for end in found if end is not None]
        if ends:
            special = [end for end in ends if end.ids] or ends
            alike = itertools.takewhile(lambda ids: len(set(ids)) == 1, zip(*(end.ids for end in special)))  # noqa: B905
            return EndOfTurn(tuple(ids[0] for ids in alike) or special[0].ids, special[0].text)
    return None


def _in_parts(messages: Sequence[Message]) -> list[Message]:
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]


def _closing(tokenizer: Any, messages: Sequence[Message]) -> EndOfTurn | None:
    """What follows the mark, or None where it is not shown."""
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    except Exception:  # templates raise what they like: roles, missing arguments, undefined names
        return None
    if _MARK not in text:
        return None
    closing = text[text.rindex(_MARK) + len(_MARK) :]
    return EndOfTurn(_leading_special(tokenizer, closing.lstrip()), closing)


def _leading_special(tokenizer: Any, text: str) -> tuple[int, ...]:
    special = {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", {})} - {tokenizer.unk_token_id}
    leading = []
    for token in tokenizer(text, add_special_tokens=False)["input_ids"]:
        # decoders of old vocabularies put a mark for a blank in front of what follows it
        if token not in special and (leading or tokenizer.decode([token]).strip()):
            break
        if token in special:
            leading.append(token)
    return tuple(leading)


def stop_token_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end a response: the named ones, and the template's own end of turn where none of those is part of it.

    A model that goes on after its turn's end writes the user's next turn, and that text would be trained and acted on.
    """
    named = named_stop_ids(model, tokenizer)
    closing = end_of_turn(tokenizer)
    if closing is None or not closing.ids or set(closing.ids) & set(named):
        return named
    token = closing.ids[0]
    logger.info("the chat template ends a turn with %r: a stop id from now on", tokenizer.decode([token]))
    return tuple(sorted({*named, token}))
