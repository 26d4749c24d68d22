"""What is said of a wrong argument: one wording for every suite and prompt."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from numbers import Integral
from typing import Any


def similar(value: Any, known: Collection[str], fix: str = "choose one of them") -> str:
    """``did you mean 'x'?`` where a known name is close to `value`, else `fix`."""
    close = difflib.get_close_matches(str(value), list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else fix


def check_choice(
    owner: str, argument: str, value: Any, known: Collection[str], fix: str = "choose one of them"
) -> None:
    """Raise a ValueError unless `value` is one of `known`.

    >>> check_choice("tasks", "split", "trian", ["eval", "train"])
    Traceback (most recent call last):
    ValueError: tasks: split must be one of ['eval', 'train'], got 'trian'; did you mean 'train'?
    """
    if not isinstance(value, str) or value not in known:
        fix = similar(value, known, fix)
        raise ValueError(f"{owner}: {argument} must be one of {sorted(known)}, got {value!r}; {fix}")


def check_options(owner: str, given: Iterable[str], known: Collection[str], others: Iterable[str] = ()) -> None:
    """Raise a TypeError for an option that is not `known`; `others` are taken elsewhere, and named with the known."""
    for option in given:
        if option not in known:
            names = sorted({*known, *others} - {option})
            fix = similar(option, names, "leave it out")
            raise TypeError(f"{owner}: options must be among {names}, got {option!r}; {fix}")


def check_counts(owner: str, **counts: tuple[Any, int, int | str]) -> None:
    """Raise unless every number is whole and large enough; ``name=(value, least, default)``, or advice for a default.

    >>> check_counts("Suite", history_length=(2, 0, 2), topk=(0, 1, 3))
    Traceback (most recent call last):
    ValueError: Suite: history_length must be at least 0 and topk at least 1, got 2 and 0; the defaults are 2 and 3

    Raises:
        TypeError: one is not an int.
        ValueError: one is too small.
    """
    least: dict[int, list[str]] = {}
    for name, (value, low, default) in counts.items():
        if not isinstance(value, Integral) or isinstance(value, bool):
            fix = default if isinstance(default, str) else f"the default is {default}"
            raise TypeError(f"{owner}: {name} must be an int, got {value!r} ({type(value).__name__}); {fix}")
        least.setdefault(low, []).append(name)
    if any(value < low for value, low, _ in counts.values()):
        rules = " and ".join(f"{listed(names)} {{}}at least {low}" for low, names in least.items())
        rules = rules.replace("{}", "must be ", 1).replace("{}", "")
        values, defaults = ([str(count[part]) for count in counts.values()] for part in (0, 2))
        fix = f"the defaults are {listed(defaults)}" if len(counts) > 1 else defaults[0]
        raise ValueError(f"{owner}: {rules}, got {listed(values)}; {fix}")


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them.

    >>> listed("abc"), listed("a")
    ('a, b and c', 'a')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
