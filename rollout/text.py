"""Text that any tokenizer and any file can hold, and which tokens of a response hold which of its characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Decode = Callable[[Sequence[int]], str]

_SURROGATE = re.compile("[\ud800-\udfff]")


def plain_text(text: str) -> str:
    """`text` with every lone surrogate replaced by U+FFFD: a page half decoded must not end a run.

    >>> plain_text("caf\\udce9")
    'caf�'
    """
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def plain(value: Any) -> Any:
    """`plain_text` of every string in lists, tuples and dicts; anything else as it is."""
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else value
    return value


def token_range(
    decode: Decode, ids: Sequence[int], text: str, span: tuple[int, int] | None, closing: int = 0
) -> tuple[int, int] | None:
    """Half-open token range that holds every token of the characters ``text[span]``, outer blanks left out.

    A character may take several tokens (emoji, CJK, byte fallback): all of them belong to the range.

    Args:
        decode: text of ids, special tokens included.
        ids: the response ids.
        text: what `decode` makes of ``ids`` without the last `closing` of them.
        span: half-open character range in `text`, or None.
        closing: ids at the end whose text is not in `text` (the end-of-sequence id).
    """
    if span is None:
        return None
    inside = text[slice(*span)]
    start = span[0] + len(inside) - len(inside.lstrip())
    end = start + len(inside.strip())
    if start >= end:
        return None
    ids = ids[: len(ids) - closing] if closing else ids
    if text.isascii():
        return _bisected(decode, ids, start, end)
    return _scanned(decode, ids, start, end) or _bisected(decode, ids, start, end)


def _bisected(decode: Decode, ids: Sequence[int], start: int, end: int) -> tuple[int, int]:
    """By bisection over decoded prefixes: right where no character is cut by a prefix."""

    def first_reaching(characters: int) -> int:
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if len(decode(ids[:middle])) >= characters:
                high = middle
            else:
                low = middle + 1
        return low

    return max(first_reaching(start + 1) - 1, 0), first_reaching(end)


def _scanned(decode: Decode, ids: Sequence[int], start: int, end: int) -> tuple[int, int] | None:
    """By decoding token after token: tokens that only together make whole characters go together.

    A prefix that ends inside a character decodes to U+FFFD, and under byte fallback so does the whole run of bytes, so
    nothing counts before its last character is whole. None where the pieces do not reach the span's end.
    """
    first, context, known, position = None, 0, 0, 0
    before = ""
    for last in range(1, len(ids) + 1):
        now = decode(ids[context:last])
        if (now.endswith("�") and last < len(ids)) or len(now) <= len(before):
            continue
        position += len(now) - len(before)
        if first is None and position > start:
            first = known
        if position >= end:
            return (first or 0, last)
        context, known = known, last
        before = decode(ids[context:last])
    return None
