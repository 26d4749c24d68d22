"""Answers as text: how they are normalised, when one counts as right, and where one stands in a text."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)


def normalize_answer(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces.

    Source: SQuAD's evaluation, as Search-R1 uses it. Punctuation goes first, so ``"the-the"`` becomes one word.

    >>> normalize_answer("The  U.S.A.!")
    'usa'
    """
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str, golds: Sequence[str], *, strict_original: bool = False) -> bool:
    """Whether the prediction equals some gold answer after normalisation.

    Args:
        prediction: the given answer.
        golds: accepted answers; without any nothing matches.
        strict_original: let a gold that normalises to nothing ("a", "!") match a prediction that does too, as the
            published code does. By default such a gold never matches, because an empty answer would earn reward.

    >>> exact_match("Beatles, The", ["the beatles"])
    True
    """
    given = normalize_answer(prediction)
    return any(given == gold and (strict_original or gold != "") for gold in map(normalize_answer, golds))


def sub_exact_match(prediction: str, golds: Sequence[str], *, strict_original: bool = False) -> bool:
    """Whether some gold answer stands inside the prediction after normalisation; arguments as in `exact_match`.

    >>> sub_exact_match("in 1999", ["1999"])
    True
    """
    given = normalize_answer(prediction)
    return any(gold in given and (strict_original or gold != "") for gold in map(normalize_answer, golds))


def extract_answer(text: str) -> str | None:
    """The content of the last complete answer block, stripped; None where there is none.

    Pass text of the model only: a retrieved passage may hold answer tags of its own.

    >>> extract_answer("<answer>a</answer><answer> b </answer>")
    'b'
    """
    found = _ANSWER.findall(text)
    return found[-1].strip() if found else None
