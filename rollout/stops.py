"""Which ids end a response: those the tokenizer and the model name, and the one by which the template ends a turn."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

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
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = configured if isinstance(configured, list | tuple) else [configured]
    return tuple(sorted({i for i in [*listed, tokenizer.eos_token_id] if i is not None}))


def end_of_turn(tokenizer: Any) -> EndOfTurn | None:
    """How the chat template ends an assistant's message, or None where it renders no such message.

    Read off a rendered conversation: first as its last message, then in the middle of it.
    """
    conversation = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": _MARK}]
    found = None
    for messages in (conversation, [*conversation, {"role": "user", "content": "hello"}]):
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
        except Exception:  # templates raise what they like: roles, missing arguments, undefined names
            continue
        if _MARK not in text:
            continue
        closing = text[text.rindex(_MARK) + len(_MARK) :]
        found = EndOfTurn(_leading_special(tokenizer, closing.lstrip()), closing)
        if found.ids:
            return found
    return found


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
