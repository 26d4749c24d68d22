"""Credit methods by name: ``@register_credit`` on a function is all that a new method needs."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ParamSpec

import torch

from .checks import check_credit, suggest
from .display import loses_turn_rewards
from .inputs import OBLIGATORY, Credit, CreditInputs
from .signals import get_signal, list_signals

P = ParamSpec("P")
Requires = Iterable[str] | Callable[[Mapping[str, Any]], Iterable[str]]


@dataclass(frozen=True)
class CreditMethod:
    """A credit function with its options fixed; what :func:`get_credit` returns.

    Args:
        name: the registered name.
        options: every option of the function with the value it will take.
        requires: signals beyond the obligatory fields of :class:`CreditInputs` that these options need.
        adds_residual: whether it adds the invalid-action residual itself, by its option ``invalid_penalty``; a trainer
            adds it to the credit of the others.
    """

    name: str
    options: dict[str, Any]
    requires: frozenset[str]
    function: Callable[..., Credit] = field(repr=False)
    scheduled: bool = field(default=False, repr=False)
    adds_residual: bool = False

    @property
    def extras(self) -> frozenset[str]:
        """Required signals that are no field of a batch and travel in its ``extras``; synthetic batches have none."""
        return self.requires - {own.name for own in fields(CreditInputs)}

    def __call__(self, inputs: CreditInputs, *, step: int | None = None) -> Credit:
        """Run the method; ``step`` (optimiser updates done) reaches only methods with a schedule.

        Raises:
            TypeError, ValueError: a signal is missing, an option is out of range, or what the function returned is no
                Credit of this batch (shapes, finite, 0 outside the mask, metrics that are numbers).
        """
        extra = {"step": step} if self.scheduled and step is not None else {}
        credit = self.function(inputs, **self.options, **extra)
        if not isinstance(credit, Credit):
            raise TypeError(
                f"{self.name}: the method must return a Credit, got {type(credit).__name__}; "
                "return Credit(advantages=..., turn_weights=...)"
            )
        metrics = check_credit(self.name, credit, inputs)
        if loses_turn_rewards(inputs) and not bool(credit.advantages.any()):
            warnings.warn(
                f"{self.name}: rewards must tell trajectories of a group apart, got equal ones in every group, and "
                "turn_rewards that differ, which this method ignores: its credit is 0; pass their sums as rewards",
                stacklevel=2,
            )
        return replace(credit, metrics=metrics)


@dataclass(frozen=True)
class _Entry:
    function: Callable[..., Credit]
    requires: Requires
    preset: dict[str, Any]
    adds_residual: bool


_REGISTRY: dict[str, _Entry] = {}


def register_credit(
    name: str,
    *,
    requires: Requires = (),
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    adds_invalid_penalty: bool = False,
) -> Callable[[Callable[P, Credit]], Callable[P, Credit]]:
    """Decorator that makes ``function(inputs, *, option=default, ...) -> Credit`` reachable as ``get_credit(name)``.

    The function runs without gradients, and a missing required field raises before its body starts.

    Args:
        name: the name; used again only by a new definition of the same function (a notebook cell run twice).
        requires: names of the signals it reads (see :mod:`~turncredit.credit.signals`), or a function from its options
            to them.
        presets: further names, each with the options that differ from the defaults.
        adds_invalid_penalty: it adds the invalid-action residual itself, with the coefficient ``invalid_penalty``, one
            of its options.

    Raises:
        ValueError: the name belongs to another function, or a required signal is not registered.
        TypeError: an option has no default, a preset sets an option that the function lacks, or a function that adds
            the residual has no option ``invalid_penalty``.
    """

    def decorate(function: Callable[P, Credit]) -> Callable[P, Credit]:
        defaults = _defaults(name, function)
        if adds_invalid_penalty and "invalid_penalty" not in defaults:
            raise TypeError(
                f"register_credit: {name} must have an option invalid_penalty to add the residual itself, got "
                f"{', '.join(defaults) or 'no options'}; write 'def {name}(inputs, *, invalid_penalty=0.1)'"
            )
        if isinstance(requires, str):
            raise TypeError(
                f"register_credit: requires of {name} must be a tuple of names, got {requires!r}; write ({requires!r},)"
            )
        if not callable(requires):
            _needs(name, requires, {})

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> Credit:
            inputs = args[0] if args else kwargs.get("inputs")
            if not isinstance(inputs, CreditInputs):
                raise TypeError(f"{name}: inputs must be a CreditInputs, got {type(inputs).__name__}; build one first")
            for needed in sorted(_needs(name, requires, {**defaults, **kwargs})):
                if inputs.signal(needed) is None:
                    fix = get_signal(needed).fix or f"pass it to CreditInputs, by extras={{{needed!r}: ..}} if no field"
                    raise ValueError(f"{name}: inputs.{needed} must be given, got None; {fix}")
            with torch.no_grad():
                return function(*args, **kwargs)

        for key, preset in {name: {}, **(presets or {})}.items():
            _check_options(key, preset, defaults)
            _add(key, _Entry(checked, requires, dict(preset), adds_invalid_penalty))
        return checked

    return decorate


def get_credit(name: str, **options: Any) -> CreditMethod:
    """The method registered as ``name`` with ``options`` in place of its defaults.

    Raises:
        ValueError: no method of that name, or it requires a signal that is not registered.
        TypeError: the method has no such option; the message lists the known ones and the one probably meant.

    >>> get_credit("agent_opsd", gamma=1.0).options["gamma"]
    1.0
    """
    if name not in _REGISTRY:
        known = list_credits()
        raise ValueError(
            f"get_credit: name must be one of {', '.join(known)}, got {name!r}; "
            + suggest(name, known, "pick one of them")
        )
    entry = _REGISTRY[name]
    defaults = _defaults(name, entry.function)
    _check_options(name, options, defaults)
    resolved = {**defaults, **entry.preset, **options}
    scheduled = "step" in inspect.signature(entry.function).parameters
    needs = _needs(name, entry.requires, resolved)
    return CreditMethod(name, resolved, needs, entry.function, scheduled, entry.adds_residual)


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


def _needs(name: str, requires: Requires, options: Mapping[str, Any]) -> frozenset[str]:
    """The signals beyond the obligatory fields.

    Raises:
        ValueError: one is not registered.
    """
    needed = frozenset(requires(options) if callable(requires) else requires)
    known = list_signals()
    for signal in sorted(needed):
        if signal not in known:
            optional = [other for other in known if other not in OBLIGATORY]
            raise ValueError(
                f"register_credit: requires of {name} must be among {', '.join(optional)}, got {signal!r}; "
                + suggest(signal, optional, "define it with register_signal")
            )
    return needed - set(OBLIGATORY)


def _check_options(name: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    for key in options:
        if key not in defaults:
            fix = "pass step when you call the method"
            if key != "step":
                fix = suggest(key, list(defaults), "use one of them" if defaults else "it takes none")
            raise TypeError(
                f"get_credit: options of {name} must be among {', '.join(defaults) or 'none'}, got {key!r}; {fix}"
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
