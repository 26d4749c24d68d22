"""Methods by name: ``@register_method`` on a function that returns a `Method` is all that a new one needs."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...credit import CreditMethod, get_credit, list_credits
from ...credit.checks import suggest
from .method import LAGGING, Method, Teacher
from .providers import Provider, find_provider, keyword_defaults, plan_providers

_TEACHER = {
    "teacher": "weights",
    "teacher_context": "context",
    "refresh_every": "refresh_every",
    "ema_rate": "ema_rate",
}
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
        if old is not None and _place(old.factory) != _place(factory):
            raise ValueError(
                f"register_method: name must be new, got {name!r}, which is {'.'.join(_place(old.factory))}; choose "
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
    method = _completed(method, credit)
    own_penalty = {} if method.invalid_penalty is None else {"invalid_penalty": method.invalid_penalty}
    values = {**own_penalty, **method.options, **options}
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
    _refuse_unknown(name, options, {*entry.defaults, *EVERY_METHOD, *of_credit, *of_providers})
    shared = {**of_credit, **values}
    chosen = {key: value for provider in providers for key, value in provider.chosen(shared).items()}
    method = replace(method, name=name, credit=credit, needs=needs, providers=providers)
    method = _with_universal(method, values, options)
    everything = {**{key: values.get(key, default) for key, default in entry.defaults.items()}, **chosen}
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


def _with_universal(method: Method, values: Mapping[str, Any], given: Mapping[str, Any]) -> Method:
    asked = sorted(given.keys() & _TEACHER)
    if asked and not (method.reads_teacher or method.prepare):
        raise ValueError(
            f"get_method: {asked[0]} must be left out for {method.name}, got {given[asked[0]]!r}: it reads no teacher; "
            "choose a method that does"
        )
    if isinstance(values.get("teacher"), str):
        _check_teacher(values["teacher"])
    changed = {field: values[option] for option, field in _TEACHER.items() if option in values}
    teacher = replace(method.teacher or Teacher(), **changed)
    penalty = values.get("invalid_penalty", 0.1)
    if method.credit_method is not None and method.credit_method.adds_residual:
        penalty = method.credit_method.options["invalid_penalty"]
    context = values.get("student_context", method.student_context)
    return replace(method, teacher=teacher, student_context=context, invalid_penalty=penalty)


def _check_teacher(weights: str) -> None:
    """Raise unless it is a kind of teacher or may be a model's name."""
    choices = ("current", *LAGGING)
    if weights in choices or "/" in weights or os.path.isdir(weights):
        return
    raise ValueError(
        f"get_method: teacher must be one of {choices}, or a model's name or folder, got {weights!r}; "
        + suggest(weights, choices, "write a folder with its path")
    )


def _universal(method: Method) -> dict[str, Any]:
    teacher = method.teacher or Teacher()
    shown = {"student_context": method.student_context, "invalid_penalty": method.invalid_penalty}
    if method.reads_teacher or method.prepare:
        shown |= {option: getattr(teacher, field) for option, field in _TEACHER.items()}
        if not isinstance(teacher.weights, str):
            shown["teacher"] = type(teacher.weights).__name__
    return shown


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    while isinstance(function, functools.partial):
        function = function.func
    return function.__module__, function.__qualname__
