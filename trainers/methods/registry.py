"""Methods by name: ``@register_method`` on a function that returns a `Method` is all that a new one needs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...credit import CreditMethod, get_credit, list_credits
from ...credit.checks import suggest
from ...credit.signals import get_signal, list_signals
from .method import LAGGING, Method, Teacher
from .providers import Provider, find_provider, keyword_defaults, place, plan_providers

_TEACHER = {
    "teacher": "weights",
    "teacher_context": "context",
    "refresh_every": "refresh_every",
    "ema_rate": "ema_rate",
}
_ONLY_OF = {"refresh_every": "stale", "ema_rate": "ema"}
EVERY_METHOD = (*_TEACHER, "student_context", "invalid_penalty")
"""Options that every method has."""
FACTS = ("turn_rewards", "valid_actions")
"""Signals that credit gets whether it asks or not."""


@dataclass(frozen=True)
class _Entry:
    factory: Callable[..., Method]
    defaults: dict[str, Any]


_METHODS: dict[str, _Entry] = {}
_COMPANIONS: dict[Callable[..., Any], dict[str, Any]] = {}


def register_method(name: str) -> Callable[[Callable[..., Method]], Callable[..., Method]]:
    """Decorator that makes ``function(*, option=default) -> Method`` trainable by name.

    A credit function of the same name is then trained as this method.

    Raises:
        ValueError: the name is that of another method.
        TypeError: an option has no default.
    """

    def decorate(factory: Callable[..., Method]) -> Callable[..., Method]:
        old = _METHODS.get(name)
        if old is not None and place(old.factory) != place(factory):
            raise ValueError(
                f"register_method: name must be new, got {name!r}, which is {'.'.join(place(old.factory))}; choose "
                "another name"
            )
        _METHODS[name] = _Entry(factory, keyword_defaults("register_method", name, factory))
        return factory

    return decorate


def goes_with(credit_function: Callable[..., Any], **fields: Any) -> None:
    """What every method built on a credit function has, under whatever name, unless it says otherwise.

    Args:
        credit_function: a registered credit function.
        fields: of `Method`, such as ``teacher=Teacher("stale", context="hindsight")``.
    """
    _COMPANIONS[inspect.unwrap(credit_function)] = fields


def list_methods() -> list[str]:
    """Every name that trains, sorted: methods, credit functions and their presets."""
    return sorted({*_METHODS, *list_credits()})


def get_method(name: str, **options: Any) -> Method:
    """The method of that name with every option resolved and checked; nothing is loaded and nothing is played.

    Args:
        name: one of `list_methods`.
        options: of the method's factory, its credit function, the providers it needs, and those of `EVERY_METHOD`;
            ``teacher`` may be a model itself.

    Raises:
        ValueError: no such method, an option out of range, or a signal that nobody provides.
        TypeError: no such option, or one of another kind.
    """
    entry = _find(name)
    method = entry.factory(**{key: value for key, value in options.items() if key in entry.defaults})
    if not isinstance(method, Method):
        raise TypeError(
            f"get_method: {name} must return a Method, got {type(method).__name__}; return Method(credit, ...)"
        )
    credit = get_credit(method.credit) if isinstance(method.credit, str) else method.credit
    teaches = method.teacher is not None
    method = _completed(method, credit)
    own_penalty = {} if method.invalid_penalty is None else {"invalid_penalty": method.invalid_penalty}
    beside = {key: value for key, value in options.items() if key not in entry.defaults}
    values = {**own_penalty, **method.options, **beside}  # the factory passes its own on, or keeps them to itself
    if credit is not None:
        fixed = {} if isinstance(method.credit, str) else credit.options
        credit = get_credit(credit.name, **{**fixed, **{k: v for k, v in values.items() if k in credit.options}})
    needs = _needs(method, credit)
    providers = plan_providers(name, needs, method.gives)
    for provider in providers:
        if provider.own.get("modules") and method.modules is None:
            raise ValueError(
                f"get_method: {name} must attach the module {provider.own['modules'][0]!r}, from which the provider of "
                f"{provider.names[0]!r} reads, got none; give Method(modules=...), or register one's own signal with "
                "@provides"
            )
    of_credit = {} if credit is None else credit.options
    of_providers = {key for provider in (*providers, *_spared(credit)) for key in provider.defaults}
    beyond = {*EVERY_METHOD, *of_credit, *of_providers}
    _refuse_unknown(name, options, {*entry.defaults, *beyond})
    _refuse_unknown(f"{name}, in its Method(options=...),", method.options, beyond)
    shared = {**of_credit, **values}
    chosen = {key: value for provider in providers for key, value in provider.chosen(shared).items()}
    method = replace(method, name=name, credit=credit, needs=needs, providers=providers)
    if teaches and not _asks_teacher(method) and not any(provider.teacher for provider in _spared(credit)):
        raise ValueError(
            f"get_method: teacher of {name} must be read by something, got {method.teacher}; let its credit or a term "
            "read a signal of the teacher's, or leave it out"
        )
    method = _with_universal(method, values, options)
    everything = {**{key: options.get(key, default) for key, default in entry.defaults.items()}, **chosen}
    return replace(method, options={**everything, **_universal(method)})


def _find(name: str) -> _Entry:
    if name in _METHODS:
        return _METHODS[name]
    if name in list_credits():
        return _Entry(lambda: Method(name), {})
    known = list_methods()
    raise ValueError(
        f"get_method: name must be one of {', '.join(known)}, got {name!r}; {suggest(name, known, 'pick one of them')}"
    )


def _completed(method: Method, credit: CreditMethod | None) -> Method:
    """What goes with the credit function, in the places that the method leaves empty."""
    fields = {} if credit is None else _COMPANIONS.get(inspect.unwrap(credit.function), {})
    empty = {key: value for key, value in fields.items() if not getattr(method, key)}
    return replace(method, **empty)


def _needs(method: Method, credit: CreditMethod | None) -> frozenset[str]:
    found = {name for term in method.terms for name in term.reads}
    for name in sorted(found & set(list_signals())):
        if get_signal(name).axes not in ("M", "MT"):
            raise ValueError(
                f"get_method: a term must read signals per turn or token, got {name!r}, which is neither; let prepare "
                "give one value per turn, by another name"
            )
    return frozenset(found | (set(credit.requires) | set(FACTS) if credit is not None else set()))


def _spared(credit: CreditMethod | None) -> Iterable[Provider]:
    """Providers that the credit function needs with its defaults, whose options stay known where it needs less."""
    named = () if credit is None else get_credit(credit.name).requires
    return [provider for provider in map(find_provider, sorted(named)) if provider is not None]


def _refuse_unknown(name: str, options: Mapping[str, Any], known: set[str]) -> None:
    for key in options:
        if key not in known:
            raise TypeError(
                f"get_method: options of {name} must be among {', '.join(sorted(known))}, got {key!r}; "
                + suggest(key, sorted(known), "use one of them")
            )


def _asks_teacher(method: Method) -> bool:
    return method.reads_teacher or method.prepare is not None


def _with_universal(method: Method, values: Mapping[str, Any], given: Mapping[str, Any]) -> Method:
    asked = sorted(given.keys() & _TEACHER)
    if asked and not _asks_teacher(method):
        raise ValueError(
            f"get_method: {asked[0]} must be left out for {method.name}, got {given[asked[0]]!r}: it reads no teacher; "
            "choose a method that does"
        )
    changed = {field: values[option] for option, field in _TEACHER.items() if option in values}
    context = values.get("student_context", method.student_context)
    teacher = method.teacher
    if changed or method.reads_teacher:
        teacher = replace(teacher or Teacher(), **changed)
        _check_teacher(method.name, teacher, context, given)
    if method.credit is None and "invalid_penalty" in given:
        raise ValueError(
            f"get_method: invalid_penalty must be left out for {method.name}, got {given['invalid_penalty']!r}: it has "
            "no credit to add it to; choose a method that does"
        )
    penalty = values.get("invalid_penalty", 0.1)
    if method.credit_method is not None and method.credit_method.adds_residual:
        penalty = method.credit_method.options["invalid_penalty"]
    return replace(method, teacher=teacher, student_context=context, invalid_penalty=penalty)


def _check_teacher(name: str, teacher: Teacher, student_context: str | None, given: Mapping[str, Any]) -> None:
    """Raise unless its weights are a kind, a model or may be a model's name, and every option makes a difference."""
    weights, choices = teacher.weights, ("current", *LAGGING)
    if isinstance(weights, str) and not (weights in choices or "/" in weights or os.path.isdir(weights)):
        raise ValueError(
            f"get_method: teacher must be one of {choices}, or a model's name or folder, got {weights!r}; "
            + suggest(weights, choices, "write a folder with its path")
        )
    for option, kind in _ONLY_OF.items():
        if option in given and weights != kind:
            got = weights if isinstance(weights, str) else type(weights).__name__
            raise ValueError(
                f"get_method: {option} must be left out where the teacher of {name} is {got}, got {given[option]!r}; "
                f'it belongs to teacher="{kind}"'
            )
    if weights == "current" and student_context is not None and teacher.context == student_context:
        raise ValueError(
            f"get_method: student_context of {name} must not be what its teacher reads, got {student_context!r} for "
            "both; the teacher would be the student: name another context for one of them, or give the teacher other "
            "weights"
        )


def _universal(method: Method) -> dict[str, Any]:
    teacher = method.teacher or Teacher()
    shown: dict[str, Any] = {"student_context": method.student_context}
    if method.credit is not None:
        shown["invalid_penalty"] = method.invalid_penalty
    if _asks_teacher(method):
        kinds = {option: _ONLY_OF.get(option, teacher.weights) for option in _TEACHER}
        shown |= {option: getattr(teacher, _TEACHER[option]) for option in kinds if kinds[option] == teacher.weights}
        if not isinstance(teacher.weights, str):
            shown["teacher"] = type(teacher.weights).__name__
    return shown
