"""The boundary that every answer of an environment crosses: numbers of any kind become plain, the rest is refused."""

from __future__ import annotations

import copy
import math
import numbers
import pickle
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from typing import Any, NoReturn

from .base import EnvFailure, Observation, StepResult

LARGEST_REWARD = 1e15
"""Beyond this the squares that a group's deviation sums leave float32."""


class BadResult(Exception):
    """An answer that is not what the protocol says; the text names the field, what it got and a fix."""


def as_number(value: Any) -> float | None:
    """A number of any numeric type as a float, or None where `value` is none.

    Taken are bools, ints, floats, fractions, decimals, NumPy scalars, and arrays or tensors without dimensions. Text is
    no number, however it reads, and neither is an array with dimensions.
    """
    try:
        if getattr(value, "shape", None) == () and hasattr(value, "item"):
            inner = value.item()
            if not isinstance(inner, numbers.Real | Decimal):
                return None
        elif not isinstance(value, numbers.Real | Decimal):
            return None
        return float(value)
    except Exception:  # an int beyond every float, a signalling NaN, a tensor without storage
        return None


def numeric_info(info: Mapping[Any, Any]) -> dict[str, float]:
    """The finite numbers of an info mapping by name."""
    found = {str(name): as_number(value) for name, value in info.items()}
    return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}


def checked_answer(kind: str, answer: Any) -> Any:
    """An environment's answer to ``"reset"`` or ``"step"`` with plain fields, or the failure that it is instead.

    An answer that needs no change is returned itself, and so is an `EnvFailure`; subclasses stay what they are.
    """
    try:
        if isinstance(answer, EnvFailure):
            return answer
        plain = _observation(answer, "reset") if kind == "reset" else _step_result(answer)
        _check_picklable(plain)
        return plain
    except BadResult as error:
        return EnvFailure("bad_result", str(error))


def _step_result(answer: Any) -> StepResult:
    if not isinstance(answer, StepResult):
        hint = "write StepResult(observation, reward, done, success=..)"
        _refuse("step", "the result", "be a StepResult", answer, hint)
    return _changed(
        answer,
        {
            "observation": _observation(answer.observation, "StepResult"),
            "reward": _reward(answer.reward),
            "done": _flag("done", answer.done),
            "success": _success(answer.success),
            "valid": _flag("valid", answer.valid),
            "info": _info("StepResult", answer.info),
        },
    )


def _observation(answer: Any, where: str) -> Observation:
    if not isinstance(answer, Observation):
        name = "observation" if where == "StepResult" else "the result"
        _refuse(where, name, "be an Observation", answer, "write Observation(text)")
    anchor = "" if answer.anchor is None else answer.anchor
    for name, value in (("text", answer.text), ("anchor", anchor)):
        if not isinstance(value, str):
            _refuse("Observation", name, "be a str", value, "write it out as text")
    return _changed(
        answer,
        {
            "text": _plain(answer.text),
            "anchor": _plain(anchor),
            "admissible_actions": _actions(answer.admissible_actions),
            "info": _info("Observation", answer.info),
        },
    )


def _actions(value: Any) -> tuple[str, ...]:
    name = "admissible_actions"
    if value is None:
        return ()
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        _refuse("Observation", name, "be a tuple of str", value, "put a single action into a tuple")
    items = list(value)
    for item in items:
        if not isinstance(item, str):
            _refuse("Observation", name, "hold str alone", item, "write every action as text")
    if isinstance(value, AbstractSet):
        items.sort()  # the order of a set differs from process to process
    return value if type(value) is tuple and all(type(i) is str for i in items) else tuple(map(_plain, items))


def _reward(value: Any) -> float:
    number = as_number(value)
    if number is None or not abs(number) <= LARGEST_REWARD:
        hint = "leave it out where a turn has no score, and raise where an episode cannot be scored"
        _refuse("StepResult", "reward", f"be a finite number within +-{LARGEST_REWARD:g}", value, hint)
    return value if type(value) is float else number


def _success(value: Any) -> bool | float:
    number = as_number(value)
    if number is None or not 0.0 <= number <= 1.0:
        hint = "a reward is a field of its own"
        _refuse("StepResult", "success", "be a bool or a fraction in [0, 1]", value, hint)
    return bool(number) if number in (0.0, 1.0) else number


def _flag(name: str, value: Any) -> bool:
    number = as_number(value)
    if number not in (0.0, 1.0):
        _refuse("StepResult", name, "be a bool", value, "write True or False")
    return bool(number)


def _info(where: str, value: Any) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        _refuse(where, "info", "be a mapping", value, 'write {"score": 0.7}, or leave it out')
    foreign = {
        name: number
        for name, item in value.items()
        if type(item) not in (str, int, float, bool) and (number := as_number(item)) is not None
    }
    return {**value, **foreign} if foreign or type(value) is not dict else value


def _changed(record: Any, fields: Mapping[str, Any]) -> Any:
    """`record` with other fields, whatever its class does when it is made; itself where nothing differs."""
    new = {name: value for name, value in fields.items() if value is not getattr(record, name)}
    if not new:
        return record
    record = copy.copy(record)
    for name, value in new.items():
        object.__setattr__(record, name, value)
    return record


def _plain(text: str) -> str:
    return text if type(text) is str else str.__str__(text)


def _check_picklable(answer: Any) -> None:
    try:
        pickle.dumps(answer)
    except Exception as error:
        raise BadResult(
            f"the environment's answer cannot be pickled: {shown(error, plain=True)}; keep info plain"
        ) from error


def shown(value: Any, limit: int = 200, *, plain: bool = False) -> str:
    """A short text for any object, `plain` without quotes, also for one that cannot say what it is."""
    try:
        text = str(value) if plain else repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= limit else f"{text[:limit]}.."


def _refuse(where: str, name: str, rule: str, value: Any, hint: str) -> NoReturn:
    raise BadResult(f"{where}: {name} must {rule}, got {shown(value)} ({type(value).__name__}); {hint}")
