"""Fuzzy text matching of the reward: token sets compared by the standard library's sequence matcher.

The original's scores come from the pure-Python route of its fuzzy-matching package, which is `difflib`; libraries that
count edits instead give other values near the threshold, so they are not used here.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from functools import lru_cache

from .words import word_list

THRESHOLD = 85

COLOURS = word_list("colours")
"""The colour words of the original, in its order; the first one found inside a value stands for the value."""

_NOT_WORD = re.compile(r"\W")
_LATIN_1 = dict.fromkeys(range(128, 256))


@lru_cache(maxsize=1 << 16)
def normalize_colour(value: str) -> str:
    """The first colour word inside `value`, else `value` itself; words inside words count, as in the original.

    >>> normalize_colour("dark blue stripes"), normalize_colour("tangerine"), normalize_colour("x-large")
    ('blue', 'tan', 'x-large')
    """
    return next((colour for colour in COLOURS if colour in value), value)


@lru_cache(maxsize=1 << 16)
def token_set_ratio(first: str, second: str) -> int:
    """Likeness of two texts as sets of words, 0 to 100.

    The greatest of three ratios between: the common words, those plus the rest of `first`, those plus the rest of
    `second`; words sorted. Text that holds no letter or digit is like nothing.

    >>> token_set_ratio("blue and white", "white"), token_set_ratio("hair care", "hair repair")
    (100, 70)
    >>> token_set_ratio("!", "a")
    0
    """
    left, right = _words(first), _words(second)
    if not left or not right:
        return 0
    both = " ".join(sorted(left & right))
    one = f"{both} {' '.join(sorted(left - right))}".strip()
    two = f"{both} {' '.join(sorted(right - left))}".strip()
    return max(_ratio(both, one), _ratio(both, two), _ratio(one, two))


def alike(first: str, second: str) -> bool:
    """Whether the likeness of two texts is above 85."""
    return token_set_ratio(first, second) > THRESHOLD


def _words(text: str) -> frozenset[str]:
    return frozenset(_NOT_WORD.sub(" ", text.translate(_LATIN_1)).lower().split())


def _ratio(first: str, second: str) -> int:
    if not first or not second:
        return 0
    if first == second:
        return 100
    return round(100 * SequenceMatcher(None, first, second).ratio())
