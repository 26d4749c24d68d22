"""Checks of scalar options, shared by the methods."""

from __future__ import annotations

from typing import Any


def check_choice(where: str, name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise ValueError unless ``value`` is one of ``choices``."""
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{where}: {name} must be one of {known}, got {value!r}; pick one of them")


def check_range(where: str, name: str, value: Any, low: float, high: float, open_ends: str = "") -> None:
    """Raise ValueError unless ``value`` is a number in [low, high]; ``open_ends`` may hold "(" and ")"."""
    bad = isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high
    bad = bad or (value == low and "(" in open_ends) or (value == high and ")" in open_ends)
    if bad:
        span = f"{'(' if '(' in open_ends else '['}{low}, {high}{')' if ')' in open_ends else ']'}"
        raise ValueError(f"{where}: {name} must be a number in {span}, got {value!r}; leave it out for the default")
