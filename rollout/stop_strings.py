"""Stop strings: which tokens may complete one, found once in the decoded vocabulary."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def check_stop_strings(stop_strings: Any, where: str) -> tuple[str, ...]:
    """`stop_strings` as a tuple; a plain string is one of them, as in Hugging Face ``generate``.

    Raises:
        TypeError: something that is no text.
        ValueError: an empty string, which every response would end with.
    """
    strings = (stop_strings,) if isinstance(stop_strings, str) else stop_strings
    if not isinstance(strings, Sequence) or not all(isinstance(stop, str) for stop in strings):
        raise TypeError(f"{where}: stop_strings must be a tuple of strings, got {stop_strings!r}; use () for none")
    if "" in strings:
        raise ValueError(f"{where}: stop_strings must not be empty, got {stop_strings!r}; leave the empty string out")
    return tuple(strings)


def tokens_ending(tokenizer: Any, stop_strings: Sequence[str], size: int) -> Tensor:
    """``[size]`` bool: the tokens that may complete one of `stop_strings`, a superset found without context.

    A token may end a stop string if its text holds the string's last character, or, where that character can be made of
    several tokens, if its text is part of a character.
    """
    flags = torch.zeros(size, dtype=torch.bool)
    last = {stop[-1] for stop in stop_strings}
    if not last:
        return flags
    wanted = tuple(last | ({"�"} if any(not character.isascii() for character in last) else set()))
    texts = vocabulary_texts(tokenizer)
    found = [index for index, text in texts.items() if any(character in text for character in wanted)]
    flags[[index for index in found if index < size]] = True
    return flags


_TEXTS: weakref.WeakKeyDictionary[Any, dict[int, str]] = weakref.WeakKeyDictionary()


def vocabulary_texts(tokenizer: Any) -> dict[int, str]:
    """What every token adds to text in front of it, by id; part of a character is U+FFFD.

    Every token is decoded behind another one, since some decoders strip the blank that a text starts with; raw entries
    would not do, as byte-level ones write a blank as another character and byte fallback a newline as ``<0x0A>``.
    """
    known = _TEXTS.get(tokenizer)
    if known is None or len(known) != len(tokenizer):
        ids = sorted(tokenizer.get_vocab().values())
        lead = _lead(tokenizer, ids)
        front = _decode(tokenizer, [[lead]])[0]
        pairs = _decode(tokenizer, [[lead, index] for index in ids])
        known = _TEXTS[tokenizer] = {
            index: text[len(front) :] if text.startswith(front) else text
            for index, text in zip(ids, pairs, strict=True)
        }
    return known


def _lead(tokenizer: Any, ids: Sequence[int]) -> int:
    """A token that stands for itself: plain text, and no part of a character."""
    for text in ("a", "the", "."):
        encoded = tokenizer.encode(text, add_special_tokens=False)
        if encoded and _decode(tokenizer, [[encoded[-1]]])[0].strip() == text:
            return encoded[-1]
    return ids[-1]


def _decode(tokenizer: Any, rows: list[list[int]]) -> list[str]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # in parallel, and without a Python call per token
        return backend.decode_batch(rows, skip_special_tokens=False)
    return [
        tokenizer.decode(row, skip_special_tokens=False, clean_up_tokenization_spaces=False)  # as the sampler does
        for row in rows
    ]
