"""Credit methods by name: ``@register_credit`` on a function is all that a new method needs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec

import torch

from .inputs import Credit, CreditInputs

P = ParamSpec("P")
Requires = Iterable[str] | Callable[[Mapping[str, Any]], Iterable[str]]

_HINTS = {
    "teacher_logprobs": "score the sampled tokens under the privileged context",
    "span_mask": "mark the causal span of each turn, or pass span_mask=response_mask",
    "anchor_ids": "number the observations so that equal ones share an id",
    "turn_rewards": "pass the immediate reward of each turn",
    "correspondence": "compare the thinking of teacher and student turns of each task",
}


@dataclass(frozen=True)
class CreditMethod:
    """A credit function with its options fixed; what :func:`get_credit` returns.

    Args:
        name: the registered name.
        options: every option of the function with the value it will take.
        requires: fields of :class:`CreditInputs` beyond the obligatory ones that these options need.
    """

    name: str
    options: dict[str, Any]
    requires: frozenset[str]
    function: Callable[..., Credit] = field(repr=False)
    scheduled: bool = field(default=False, repr=False)

    @property
    def adds_residual(self) -> bool:
        return "invalid_penalty" in self.options

    def __call__(self, inputs: CreditInputs, *, step: int | None = None) -> Credit:
        """Run the method; ``step`` (optimiser updates done) reaches only methods with a schedule."""
        extra = {"step": step} if self.scheduled and step is not None else {}
        credit = self.function(inputs, **self.options, **extra)
        if not isinstance(credit, Credit):
            raise TypeError(
                f"{self.name}: the method must return a Credit, got {type(credit).__name__}; "
                "return Credit(advantages=..., turn_weights=...)"
            )
        if credit.advantages.shape != inputs.response_mask.shape:
            raise ValueError(
                f"{self.name}: advantages must be [M, T] = {list(inputs.response_mask.shape)}, got "
                f"{list(credit.advantages.shape)}; give every token of a turn the turn's value, 0 outside response_mask"
            )
        metrics = {name: _number(self.name, name, value) for name, value in (credit.metrics or {}).items()}
        return replace(credit, metrics=metrics)


def _number(method: str, name: str, value: Any) -> float:
    """A metric as a float; one of :mod:`turncredit.credit.metrics` stays what it is."""
    if isinstance(value, float):
        return value
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise TypeError(f"{method}: metrics must be numbers, got {value!r} for {name!r}; return tensors in details")


@dataclass(frozen=True)
class _Entry:
    function: Callable[..., Credit]
    requires: Requires
    preset: dict[str, Any]


_REGISTRY: dict[str, _Entry] = {}


def register_credit(
    name: str, *, requires: Requires = (), presets: Mapping[str, Mapping[str, Any]] | None = None
) -> Callable[[Callable[P, Credit]], Callable[P, Credit]]:
    """Decorator that makes ``function(inputs, *, option=default, ...) -> Credit`` reachable as ``get_credit(name)``.

    The function runs without gradients, and a missing required field raises before its body starts.

    Args:
        name: the name; used again only by a new definition of the same function (a notebook cell run twice).
        requires: names of the optional :class:`CreditInputs` fields it reads, or a function from its options to them.
        presets: further names, each with the options that differ from the defaults.

    Raises:
        ValueError: the name belongs to another function, or a required field does not exist.
        TypeError: an option has no default, or a preset sets an option that the function lacks.
    """

    def decorate(function: Callable[P, Credit]) -> Callable[P, Credit]:
        defaults = _defaults(name, function)
        if not callable(requires):
            _check_fields(name, requires)

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> Credit:
            inputs = args[0] if args else kwargs.get("inputs")
            if not isinstance(inputs, CreditInputs):
                raise TypeError(f"{name}: inputs must be a CreditInputs, got {type(inputs).__name__}; build one first")
            for needed in sorted(_needs(requires, {**defaults, **kwargs})):
                if getattr(inputs, needed) is None:
                    raise ValueError(
                        f"{name}: inputs.{needed} must be given, got None; {_HINTS.get(needed, 'fill that field')}"
                    )
            with torch.no_grad():
                return function(*args, **kwargs)

        for key, preset in {name: {}, **(presets or {})}.items():
            _check_options(key, preset, defaults)
            _add(key, _Entry(checked, requires, dict(preset)))
        return checked

    return decorate


def get_credit(name: str, **options: Any) -> CreditMethod:
    """The method registered as ``name`` with ``options`` in place of its defaults.

    Raises:
        ValueError: no method of that name; the message lists the known ones.
        TypeError: the method has no such option; the message lists the known ones.

    >>> get_credit("agent_opsd", gamma=1.0).options["gamma"]
    1.0
    """
    if name not in _REGISTRY:
        raise ValueError(f"get_credit: name must be one of {', '.join(list_credits())}, got {name!r}; pick one of them")
    entry = _REGISTRY[name]
    defaults = _defaults(name, entry.function)
    _check_options(name, options, defaults)
    resolved = {**defaults, **entry.preset, **options}
    scheduled = "step" in inspect.signature(entry.function).parameters
    return CreditMethod(name, resolved, frozenset(_needs(entry.requires, resolved)), entry.function, scheduled)


def list_credits() -> list[str]:
    """Names of all registered methods and presets, sorted."""
    return sorted(_REGISTRY)


def _defaults(name: str, function: Callable[..., Credit]) -> dict[str, Any]:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    for parameter in parameters:
        if parameter.default is parameter.empty or parameter.kind is not parameter.KEYWORD_ONLY:
            raise TypeError(
                f"register_credit: {name} must take its options by keyword with a default, got {parameter}; "
                f"write 'def {name}(inputs, *, {parameter.name}=...)'"
            )
    return {parameter.name: parameter.default for parameter in parameters if parameter.name != "step"}


def _needs(requires: Requires, options: Mapping[str, Any]) -> Iterable[str]:
    return requires(options) if callable(requires) else requires


def _check_fields(name: str, requires: Iterable[str]) -> None:
    optional = [key for key, value in CreditInputs.__dataclass_fields__.items() if value.default is None]
    for needed in requires:
        if needed not in optional:
            raise ValueError(
                f"register_credit: requires of {name} must be among {', '.join(optional)}, got {needed!r}; "
                "name optional fields of CreditInputs"
            )


def _check_options(name: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    for key in options:
        if key not in defaults:
            raise TypeError(
                f"get_credit: options of {name} must be among {', '.join(defaults)}, got {key!r}; "
                + ("pass step when you call the method" if key == "step" else "use one of them")
            )


def _add(name: str, entry: _Entry) -> None:
    old = _REGISTRY.get(name)
    if old is not None:
        place = (old.function.__module__, old.function.__qualname__)
        if place != (entry.function.__module__, entry.function.__qualname__):
            raise ValueError(
                f"register_credit: name must be new, got {name!r}, which is {'.'.join(place)}; choose another name"
            )
    _REGISTRY[name] = entry
