"""A credit method's options, tried on a made-up batch: a value out of range is named before the first rollout."""

from __future__ import annotations

import math
from dataclasses import fields

import torch

from ...credit import CreditInputs, CreditMethod, get_credit
from ...credit.align import correspondence_from_similarity, select_sources
from ...credit.signals import Signal, get_signal, list_signals

_TURNS, _TOKENS, _TASKS = 3, 4, 2


def try_options(method: CreditMethod | None, num_generations: int) -> None:
    """Run a method of this library once where its options differ from its defaults; cheap, and changes nothing.

    The methods check their options when they are called, which would be after the first rollouts. The defaults are
    tried first: a method that this batch does not suit is left alone, and so is one of the user's own, which may keep
    something between calls.

    Raises:
        TypeError, ValueError: what the method says about the option.
    """
    if method is None:
        return
    default = get_credit(method.name)
    if method.options == default.options or not _is_ours(method):
        return
    rollouts = min(num_generations, 8)
    try:
        default(made_up_inputs(default, rollouts), step=0)
    except Exception:
        return
    method(made_up_inputs(method, rollouts), step=0)


def _is_ours(method: CreditMethod) -> bool:
    package = __name__.rpartition(".trainers.")[0]
    return (method.function.__module__ or "").startswith(f"{package}.credit.")


def made_up_inputs(method: CreditMethod, rollouts: int) -> CreditInputs:
    """Two groups of rollouts of three turns with every field that a method may read; half of them succeed.

    Raises:
        ValueError: an option by which the corresponding turns are selected is out of range.
    """
    n, m = _TASKS * rollouts, _TASKS * rollouts * _TURNS
    trajectories = torch.arange(n).repeat_interleave(_TURNS)
    turns = torch.arange(_TURNS).repeat(n)
    groups = torch.arange(_TASKS).repeat_interleave(rollouts)
    success = (torch.arange(n) % 2).float()
    mask = torch.ones(m, _TOKENS, dtype=torch.bool)
    student = -0.1 - torch.arange(m * _TOKENS).reshape(m, _TOKENS).remainder(7).float()
    teacher = student + 0.1 * torch.arange(m)[:, None].remainder(5) - 0.2
    correspondence = None
    if "correspondence" in method.requires:
        similarity = torch.full((m, m), 0.9)
        valid = torch.ones(m, dtype=torch.bool)
        correspondence = correspondence_from_similarity(similarity, trajectories, turns, groups, valid, valid)
        selection = {name: method.options[name] for name in ("similarity_threshold", "top_k") if name in method.options}
        sources = select_sources(correspondence, **selection)
        correspondence = correspondence.with_scores(sources, teacher[sources.target])
    return CreditInputs(
        response_mask=mask,
        trajectory_ids=trajectories,
        turn_ids=turns,
        group_ids=groups,
        rewards=success,
        successes=success,
        student_logprobs=student,
        teacher_logprobs=teacher,
        valid_actions=turns != 1,
        span_mask=mask,
        anchor_ids=turns + _TURNS * groups[trajectories],
        turn_rewards=success[trajectories] * (turns == _TURNS - 1),
        correspondence=correspondence,
        extras={name: _made_up(get_signal(name), m) for name in method.requires & _extras()},
    )


def _extras() -> set[str]:
    """Signals of numbers that are no field of a batch."""
    own = {field.name for field in fields(CreditInputs)}
    return {name for name in list_signals() if name not in own and get_signal(name).kind in ("float", "int")}


def _made_up(signal: Signal, turns: int) -> torch.Tensor:
    """Numbers in the signal's range, one per turn or token of as many turns."""
    shape = {"M": (turns,), "MT": (turns, _TOKENS), "N": (turns // _TURNS,)}[signal.axes]
    if signal.kind == "int":
        return torch.arange(math.prod(shape)).reshape(shape) % 2
    values = torch.arange(math.prod(shape)).reshape(shape).remainder(7).float() / 7
    values = values if signal.high is None else signal.high - values
    return values if signal.low is None else values.clamp(min=signal.low)
