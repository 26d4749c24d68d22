"""Who makes the signals that credit and loss terms read: ``@provides("name")`` beside whoever needs the name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...credit.checks import suggest
from ...rollout.options import Rule, check_options
from ..batch import TurnBatch
from ..batch import span_mask as spans_of
from ..teacher import TeacherScores, score_teacher
from .comparing import check_head

if TYPE_CHECKING:
    from .run import Run


@dataclass(frozen=True)
class Provider:
    """What `provides` registers.

    Args:
        names: the signals it makes; it is asked for by the first.
        function: ``(batch, run, *, option=default) -> value``, or a mapping for several names.
        requires: signals that it reads by ``run.signal``.
        defaults: its options.
        rules: what they must be.
        teacher: whether the teacher speaks.
        own: what the pass over the sampled tokens must bring beside log-probs, see `Run.own_scores`.
        start: ``(run, **options)``, called before the first rollout, so that what is missing is said then.
    """

    names: tuple[str, ...]
    function: Callable[..., Any] = field(repr=False)
    requires: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    teacher: bool = False
    own: Mapping[str, Any] = field(default_factory=dict)
    start: Callable[..., None] | None = None

    def chosen(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Its own options out of a method's, checked."""
        values = {name: options.get(name, default) for name, default in self.defaults.items()}
        return {**values, **check_options(f"provider of {self.names[0]}", values, self.rules)}


_PROVIDERS: dict[str, Provider] = {}


def provides(
    name: str,
    *also: str,
    requires: Iterable[str] = (),
    rules: Mapping[str, Rule] | None = None,
    teacher: bool = False,
    own: Mapping[str, Any] | None = None,
    start: Callable[..., None] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: ``function(batch, run, *, option=default)`` makes the signal `name` for whatever method reads it.

    Every process calls it, also with an empty batch. An option takes the value that is given to the method, or that its
    factory passes on in ``Method(options=..)``, and without one that of the credit function.

    Args:
        name: the signal; see `turncredit.credit.register_signal` for one of your own.
        also: further signals of the same pass; the function then returns a mapping of all of them.
        requires, rules, teacher, own, start: see `Provider`.

    Raises:
        ValueError: another function provides the signal.
        TypeError: an option without a default.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        former = _PROVIDERS.get(name)
        if former is not None and place(former.function) != place(function):
            raise ValueError(
                f"provides: name must be new, got {name!r}, which {'.'.join(place(former.function))} makes; give the "
                "signal another name"
            )
        defaults = keyword_defaults("provides", name, function, skip=2)
        entry = Provider((name, *also), function, tuple(requires), defaults, rules or {}, teacher, own or {}, start)
        _PROVIDERS[name] = entry
        return function

    return decorate


def list_providers() -> list[str]:
    """Names of the signals that some provider makes, sorted."""
    return sorted({name for provider in _PROVIDERS.values() for name in provider.names})


def plan_providers(owner: str, names: Iterable[str], given: Iterable[str] = ()) -> tuple[Provider, ...]:
    """The providers that together make some signals; one that another makes along with its own is left out.

    Raises:
        ValueError: nobody makes a signal, or two do.
    """
    wanted, chosen = sorted(names, reverse=True), {}
    while wanted:
        name = wanted.pop()
        if name in chosen or name in given:
            continue
        provider = find_provider(name)
        if provider is None:
            otherwise = f'register one with @provides("{name}"), or let prepare return it and name it in gives'
            raise ValueError(
                f"get_method: signals that {owner} reads must have a provider, got {name!r} without one; "
                + suggest(name, list_providers(), otherwise)
            )
        chosen[provider.names[0]] = provider
        wanted += provider.requires
        if twice := sorted(set(provider.names) & set(given)):
            raise ValueError(
                f"get_method: gives of {owner} must not hold {twice[0]!r}, which the provider of {provider.names[0]!r} "
                "makes too; leave it to one of them"
            )
    along = {name for provider in chosen.values() for name in provider.names[1:]}
    return tuple(chosen[name] for name in sorted(chosen.keys() - along))


def find_provider(name: str) -> Provider | None:
    """Who makes a signal, alone where there is a choice, or None."""
    makers = [provider for provider in _PROVIDERS.values() if name in provider.names]
    return _PROVIDERS.get(name) or next(iter(makers), None)


def keyword_defaults(owner: str, name: str, function: Callable[..., Any], skip: int = 0) -> dict[str, Any]:
    """Defaults of a function's keyword-only parameters behind its first `skip`.

    Raises:
        TypeError: a parameter without a default, or one that is not by keyword.
    """
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    for parameter in parameters:
        if parameter.default is parameter.empty or parameter.kind is not parameter.KEYWORD_ONLY:
            raise TypeError(
                f"{owner}: {name} must take its options by keyword with a default, got {parameter}; write "
                f"'*, {parameter.name}=...'"
            )
    return {parameter.name: parameter.default for parameter in parameters}


def place(function: Callable[..., Any]) -> tuple[str, str]:
    """Where a function stands: running a notebook's cell again makes a new one in the same place."""
    while isinstance(function, functools.partial):
        function = function.func
    return function.__module__, function.__qualname__


@provides("turn_rewards")
def turn_rewards(batch: TurnBatch, run: Run) -> Tensor:
    """``[M]`` float32: the immediate reward of every turn."""
    return torch.tensor([turn.reward for turn in batch.turns], dtype=torch.float32)


@provides("valid_actions")
def valid_actions(batch: TurnBatch, run: Run) -> Tensor:
    """``[M]`` bool: whether the turn was well-formed and admissible."""
    return torch.tensor([turn.valid for turn in batch.turns], dtype=torch.bool)


@provides("span_mask")
def span_mask(batch: TurnBatch, run: Run) -> Tensor:
    """``[M, T]`` bool: the span that the suite calls causal, see `turncredit.trainers.batch.span_mask`."""
    return spans_of(batch, getattr(run.suite, "causal_span", "action_only"))


@provides("entropies", own={"entropy": True})
def entropies(batch: TurnBatch, run: Run) -> Tensor:
    """``[M, T]`` float32: the policy's entropy at every sampled token, nats."""
    entropy = run.own_scores(entropy=True).entropy
    assert entropy is not None
    return entropy


@provides("values", own={"modules": ("value",)})
def values(batch: TurnBatch, run: Run) -> Tensor:
    """``[M]`` float32: what the attached module ``"value"`` says before the first token of every response."""
    value = run.own_scores(modules=("value",)).outputs["value"]
    return value.flatten(1)[:, 0] if len(value) else torch.zeros(0)


def _needs_reference(run: Run) -> None:
    with run.weights("reference"):
        pass


@provides("ref_logprobs", start=_needs_reference)
def ref_logprobs(batch: TurnBatch, run: Run) -> Tensor:
    """``[M, T]`` float32: the sampled tokens under the frozen reference, nats."""
    return run.score(batch.prompts, batch.responses, weights="reference").logprobs


@provides("teacher_logprobs", teacher=True)
def teacher_logprobs(batch: TurnBatch, run: Run) -> Tensor:
    """``[M, T]`` float32: the sampled tokens as the teacher scores them, nats."""
    return teacher_scores(run).logprobs


def teacher_scores(run: Run, pairs: list[tuple[int, int]] | None = None) -> TeacherScores:
    """The batch, and pairs of rows, under the teacher's prompts in one pass, and how many rows that took."""
    scores = score_teacher(
        lambda prompts, responses: run.score(prompts, responses, weights="teacher"),
        run.batch,
        run.teacher_prompts(),
        run.student_logprobs,
        pairs=pairs or (),
        max_length=run.longest("teacher"),
        identical_too=run.teacher.differs,
    )
    for name, rows in (("", scores.scored), ("identical_", scores.identical), ("over_length_", scores.over_length)):
        run.log(f"teacher/{name}rows", rows, reduce="sum")
    return scores


def _keeps_its_head(run: Run) -> None:
    check_head(run, run.method.name)


@provides("teacher_hidden", teacher=True, start=_keeps_its_head)
def teacher_hidden(batch: TurnBatch, run: Run) -> Tensor:
    """``[M, T, H]`` float32: what the teacher's head reads before every sampled token, under the teacher's prompts.

    A row that would exceed the teacher's positions is read under the student's prompt, and counted.
    """
    longest, prompts = run.longest("teacher"), run.teacher_prompts()
    over = [
        longest is not None and len(prompt) + len(response) > longest
        for prompt, response in zip(prompts, batch.responses, strict=True)
    ]
    read = [own if long else prompt for own, prompt, long in zip(batch.prompts, prompts, over, strict=True)]
    scores = run.score(read, batch.responses, weights="teacher", modules=("hidden",))
    run.log("teacher/rows", len(read), reduce="sum")
    run.log("teacher/over_length_rows", sum(over), reduce="sum")
    hidden = scores.outputs["hidden"]
    return hidden if batch.turns else torch.zeros(batch.response_mask.shape)
