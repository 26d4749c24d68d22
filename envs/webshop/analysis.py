"""Text analysis for search: the tokens that Lucene's standard English analyser would make.

Chain: word breaks of Unicode annex 29 plus one token per emoji, possessive ``'s`` off, lower case, the 33 English stop
words out, Porter stems. The stemmer is Porter's own later version (``bli`` -> ``ble`` and ``logi`` -> ``log``), which
the plain "porter" algorithm of the Snowball library leaves out.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from .words import word_list

STOP_WORDS = frozenset(word_list("stop_words"))

_HAN = "\u3005\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HIRAGANA = "\u3041-\u3096\u309d-\u309f"
_OTHER_NUMBERS = (
    "\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2079\u2080-\u2089\u2150-\u215f\u2189\u2460-\u249b\u24ea-\u24ff\u2776-\u2793"
    "\u3192-\u3195\u3220-\u3229\u3248-\u324f\u3251-\u325f\u3280-\u3289\u32b1-\u32bf"
)
_EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3"
    "\u23f8-\u23fa\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705"
    "\u2708-\u2712\u2714\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767"
    "\u2795-\u2797\u27a1\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171\U0001f17e\U0001f17f\U0001f18e"
    "\U0001f191-\U0001f19a\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a\U0001f22f\U0001f232-\U0001f23a"
    "\U0001f23c-\U0001f23f\U0001f249-\U0001f3fa\U0001f400-\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff"
    "\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff\U0001f80c-\U0001f80f\U0001f900-\U0001f93a\U0001f93c-\U0001f945"
    "\U0001f947-\U0001fffd"
)
_APOSTROPHES = "'\u2018\u2019\u2024\ufe52\uff07\uff0e."


def _word_pattern() -> re.Pattern[str]:
    marks = "[\u0300-\u036f\u00ad\u200c-\u200f\ufe00-\ufe0f\ufeff\u20d0-\u20ff]*"
    letter = f"(?:[^\\W\\d_{_OTHER_NUMBERS}{_HAN}{_HIRAGANA}]{marks})"
    digit = f"(?:\\d{marks})"
    either = f"(?:{letter}|{digit})"
    between_letters = f"(?<=[^\\W\\d_])[{_APOSTROPHES}:\u00b7\u2027\ufe13\ufe55\uff1a](?={letter})"
    between_digits = f"(?<=\\d)[{_APOSTROPHES},;\u2044\uff0c\uff1b](?={digit})"
    word = f"_*{either}(?:{either}|_+(?={either})|{between_letters}|{between_digits})*_*"
    emoji = f"[{_EMOJI}][\U0001f3fb-\U0001f3ff]?\ufe0f?(?:\u200d[{_EMOJI}]\ufe0f?)*|[\U0001f1e6-\U0001f1ff]{{2}}"
    return re.compile(f"{word}|[{_HAN}{_HIRAGANA}]{marks}|{emoji}")


_WORD = _word_pattern()


def analyze(text: str) -> list[str]:
    """Search terms of `text`, in order, repeats kept.

    >>> analyze("The Women's 2.5-inch Hair Extensions, easy assembly")
    ['women', '2.5', 'inch', 'hair', 'extens', 'easi', 'assembl']
    """
    return [term for term in map(_term, _WORD.findall(text)) if term]


@lru_cache(maxsize=1 << 17)
def _term(word: str) -> str:
    if word[-2:] in ("'s", "\u2019s", "\uff07s", "'S", "\u2019S", "\uff07S"):
        word = word[:-2]
    word = word.lower()
    return "" if word in STOP_WORDS else stem(word)


def stem(word: str) -> str:
    """Porter stem of a lower-case word.

    >>> stem("technologies"), stem("assembly"), stem("biology"), stem("us")
    ('technolog', 'assembl', 'biologi', 'us')
    """
    if len(word) <= 2:
        return word
    for ending in ("y", "ies", "i"):
        for old, new in (("bl", "ble"), ("log", "log")):
            if word.endswith(old + ending) and _measure(word[: -len(old + ending)]) > 0:
                word = word[: -len(old + ending)] + new
                return _stemmer().stemWord(word)
    return _stemmer().stemWord(word)


@lru_cache(maxsize=1)
def _stemmer() -> Any:
    try:
        import Stemmer
    except ImportError as error:
        raise ImportError(
            'WebShop search: PyStemmer must be installed, got none; run pip install "turncredit[webshop]"'
        ) from error
    return Stemmer.Stemmer("porter", 0)


def _measure(text: str) -> int:
    """Porter's measure: how many times a vowel run is followed by a consonant run."""
    kinds = ""
    for letter in text:
        vowel = letter in "aeiou" or (letter == "y" and kinds.endswith("c"))
        kinds += "v" if vowel else "c"
    return len(re.findall("v+c+", kinds))
