"""From chat messages to prompt ids, for the student and for the teacher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .types import Message


def check_tokenizer(tokenizer: Any) -> None:
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


def render_prompt(tokenizer: Any, messages: Sequence[Message]) -> tuple[int, ...]:
    """Token ids of `messages` under the model's chat template, generation prompt included.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        messages: chat messages, oldest first.
    """
    encoded = tokenizer.apply_chat_template(list(messages), tokenize=True, add_generation_prompt=True, return_dict=True)
    return tuple(encoded["input_ids"])


def with_privileged_context(messages: Sequence[Message], privileged: str) -> list[Message]:
    """The teacher's messages: the same ones, with `privileged` ahead of the first user message's own text.

    Source: METHODS, h+ = (s, c+); released code puts it before the system prompt, where left truncation cuts it away.

    Raises:
        ValueError: there is no user message to put it in.
    """
    for index, message in enumerate(messages):
        if message["role"] == "user":
            changed = dict(message, content=f"{privileged}\n\n{message['content']}")
            return [*messages[:index], changed, *messages[index + 1 :]]
    roles = [message["role"] for message in messages]
    raise ValueError(
        f"with_privileged_context: messages must hold a user message, got roles {roles}; "
        "let the task suite's messages() start with a user turn"
    )
