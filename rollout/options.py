"""Rules of options as a table: what kind each must be, in which range, and the message that names it when it is not."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Rule:
    """What one option must be.

    Args:
        kind: ``"int"``, ``"float"``, ``"bool"`` or ``"str"``.
        low: least value; `open_low` leaves it out itself.
        high: largest value.
        choices: the values, for a ``"str"``.
        none: what None means, or an empty string where None is not allowed.
        fix: one sentence of advice.
    """

    kind: str
    low: float | None = None
    high: float | None = None
    open_low: bool = False
    choices: Sequence[str] = ()
    none: str = ""
    fix: str = ""

    def describe(self) -> str:
        """The rule in words, to follow "must"."""
        words = {"int": "be a whole number", "float": "be a number", "bool": "be True or False", "str": "be text"}
        text = f"be one of {tuple(self.choices)}" if self.choices else words[self.kind]
        if self.low is not None:
            text += f" {'above' if self.open_low else 'of at least'} {self.low:g}"
        if self.high is not None:
            text += f" and at most {self.high:g}"
        return f"{text}{f', or None {self.none}' if self.none else ''}"


def count(low: int, *, none: str = "", fix: str = "") -> Rule:
    """A whole number."""
    return Rule("int", low=low, none=none, fix=fix)


def number(low: float = 0.0, high: float | None = None, *, above: bool = False, none: str = "", fix: str = "") -> Rule:
    """A finite number; `above` leaves `low` itself out."""
    return Rule("float", low=low, high=high, open_low=above, none=none, fix=fix)


def flag(*, none: str = "") -> Rule:
    """True or False."""
    return Rule("bool", none=none)


def text(*choices: str) -> Rule:
    """A string that is not empty, or one of the choices."""
    return Rule("str", choices=choices)


def check_options(owner: str, values: Mapping[str, Any], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """The values as plain Python numbers, if every one obeys its rule.

    Args:
        owner: the class that takes the options, for the message.
        values: option -> value; one without a rule is not read.
        rules: option -> rule.

    Raises:
        TypeError: a value is of another kind: text where a number is needed, True where a count is, None.
        ValueError: a value is out of range, NaN or infinite.
    """
    return {name: _checked(owner, name, values[name], rule) for name, rule in rules.items()}


def _checked(owner: str, name: str, value: Any, rule: Rule) -> Any:
    def refuse(error: Callable[[str], Exception], fix: str) -> Exception:
        advice = rule.fix or fix
        return error(f"{owner}: {name} must {rule.describe()}, got {value!r}{f'; {advice}' if advice else ''}")

    if value is None:
        if not rule.none:
            raise refuse(TypeError, "leave it out for the default")
        return None
    if isinstance(value, np.bool_):
        value = bool(value)
    if rule.kind in ("bool", "str"):
        if not isinstance(value, bool if rule.kind == "bool" else str):
            raise refuse(TypeError, "write true or false without quotes" if rule.kind == "bool" else "put it in quotes")
        if rule.kind == "str" and (not value or (rule.choices and value not in rule.choices)):
            raise refuse(ValueError, "")
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise refuse(TypeError, _number_fix(value))
    if rule.kind == "int" and not isinstance(value, numbers.Integral):
        raise refuse(TypeError, "write it without a decimal point")
    if not math.isfinite(value) or _outside(float(value), rule):
        raise refuse(ValueError, "")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _number_fix(value: Any) -> str:
    if isinstance(value, str):
        return "write it without quotes (YAML reads 1e-6 as text and 1.0e-6 as a number)"
    return "give a plain number"


def _outside(value: float, rule: Rule) -> bool:
    below = rule.low is not None and (value <= rule.low if rule.open_low else value < rule.low)
    return below or (rule.high is not None and value > rule.high)
