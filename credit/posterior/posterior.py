"""Posterior credit: the expected advantage of each turn given the teacher, the siblings and the outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..checks import check_range, suggest
from ..groups import group_metrics, trajectory_advantages
from ..inputs import Credit, CreditInputs
from ..metrics import Mean
from ..registry import register_credit
from ..tokens import mean_factor, spread
from .estimate import Estimate, estimate
from .evidence import turn_evidence
from .siblings import Stretches, stretches
from .slope import beliefs, fit_slope
from .turns import Turns, turns_of

USES = {"teacher": "teacher_logprobs", "anchors": "anchor_ids", "sources": "correspondence"}


def _parts(use: str) -> list[str]:
    """The words of ``use``.

    Raises:
        TypeError: it is no text.
        ValueError: an unknown word, or sources without a teacher.
    """
    where = "posterior"
    if not isinstance(use, str):
        raise TypeError(f"{where}: use must be text, got {use!r}; write 'teacher+anchors'")
    parts = use.split("+") if use else []
    for part in parts:
        if part not in USES:
            raise ValueError(
                f"{where}: use must be made of {', '.join(USES)}, joined by +, got {part!r}; "
                + suggest(part, list(USES), "an empty text uses none")
            )
    if "sources" in parts and "teacher" not in parts:
        raise ValueError(
            f"{where}: use must hold 'teacher' where it holds 'sources', which correct the teacher's scores, got "
            f"{use!r}; write 'teacher+{use}'"
        )
    return parts


def _requires(options: Mapping[str, Any]) -> Iterable[str]:
    return [USES[part] for part in _parts(options["use"])]


@register_credit(
    "posterior",
    requires=_requires,
    presets={
        "posterior_anchors": {"use": "anchors"},
        "posterior_teacher": {"use": "teacher"},
        "posterior_sources": {"use": "teacher+sources"},
        "posterior_all": {"use": "teacher+anchors+sources"},
    },
)
def posterior(
    inputs: CreditInputs,
    *,
    use: str = "teacher+anchors",
    luck: float = 0.2,
    alias: float = 0.5,
    discount: float = 0.95,
    slope: float = 0.2,
    ridge: float = 10.0,
    doubt: float = 0.05,
    scale_rewards: bool = True,
    normalization_scope: str = "trajectory",
    eps: float = 1e-4,
    outcome_discount: float = 1.0,
) -> Credit:
    """Mean advantage of each turn, once the teacher, the siblings and the own outcome have been heard.

    The teacher's evidence revises a belief in success: the prior mean of a turn's advantage. Siblings that passed the
    same two observations say how the stretch between them went; the outcome says what all turns must add up to. How far
    the teacher is believed is one slope, fitted on the batch. ``A~_k = adv_k K_i (1 + luck) A_i / (R_i - m_i)``, which
    is A_i, bit for bit, where nothing was said.

    Source: ours, docs/equations.md#posterior. Nothing is conserved: neither the trajectory's budget nor A_i's sign.

    Args:
        inputs: the batch; needs what ``use`` names. ``turn_rewards`` are read where they are given: siblings are then
            compared by what they earned *from the shared observation on*, and to it comes what the stretch itself
            earned. The return that they leave, all of it without them, is earned at the last turn.
        use: ``"teacher"`` (``teacher_logprobs``), ``"anchors"`` (``anchor_ids``) and ``"sources"`` (``correspondence``,
            which rectifies the teacher's scores as AlignOPSD does), joined by ``+``; empty is GRPO.
        luck: share of the outcome's variance that is no turn's doing, above 0.
        alias: what a shared observation hides of the state, as a share of a turn's prior variance, at least 0.
        discount: of returns that siblings are compared by, per turn, in (0, 1].
        slope, ridge: mean and precision of the slope's prior; ridge above 0.
        doubt: prior probability that the teacher misleads, in [0, 1].
        scale_rewards, normalization_scope, eps: as in :func:`group_relative_advantages`.
        outcome_discount: in (0, 1], fades every return, see :func:`~turncredit.credit.groups.faded`.

    Returns:
        Credit with ``turn_weights`` A~_k / A_i (1 where A_i = 0) and details, each ``[M]``, in units of R, the return
        mapped to [0, 1] over the batch: ``advantage`` adv_k, ``revision`` mu_k of the teacher, ``variance`` p_k left
        before the own outcome. Metrics: ``teacher_slope`` (0 without a teacher); ``explained_share`` = 1 - (sum over
        trajectories of (sum_k e_k - R_i + m_i)^2) / (sum of (R_i - m_i)^2), how much of the outcomes was said before
        them; ``known_turn_share`` = turns in a stretch that siblings judge / turns; and those of
        :func:`~turncredit.credit.groups.group_metrics`.

    Raises:
        TypeError: ``use`` is no text.
        ValueError: an option is out of range, or what ``use`` names is missing.
    """
    parts = _parts(use)
    _check_options(locals())
    advantages = trajectory_advantages(
        inputs,
        scale_rewards=scale_rewards,
        normalization_scope=normalization_scope,
        eps=eps,
        outcome_discount=outcome_discount,
    )
    turns = turns_of(inputs, advantages, outcome_discount=outcome_discount, scope=normalization_scope)
    seen = stretches(turns, inputs.anchor_ids if "anchors" in parts else None, discount)
    evidence, believed = torch.zeros_like(turns.earned), turns.earned.new_zeros(())
    if "teacher" in parts:
        evidence = turn_evidence(inputs, by_sources="sources" in parts)
        believed = fit_slope(turns, evidence, seen, slope=slope, ridge=ridge, doubt=doubt)
    belief = beliefs(turns, evidence, turns.running(evidence), believed)
    found = estimate(turns, belief, seen, luck=luck, alias=alias)
    rows = _in_units(turns, found, advantages, luck)
    by_row = advantages[turns.owner]
    metrics = {**_metrics(turns, seen, found, believed), **group_metrics(inputs, advantages)}
    details = {"advantage": found.advantage, "revision": found.revision, "variance": found.variance}
    return Credit(spread(rows, inputs.response_mask), mean_factor(rows, by_row), metrics, details)


def _check_options(options: Mapping[str, Any]) -> None:
    where, infinite = "posterior", float("inf")
    check_range(where, "luck", options["luck"], 0, infinite, "()")
    check_range(where, "alias", options["alias"], 0, infinite, ")")
    check_range(where, "discount", options["discount"], 0, 1, "(")
    check_range(where, "slope", options["slope"], -infinite, infinite, "()")
    check_range(where, "ridge", options["ridge"], 0, infinite, "()")
    check_range(where, "doubt", options["doubt"], 0, 1)


def _in_units(turns: Turns, found: Estimate, advantages: Tensor, luck: float) -> Tensor:
    """``[M]`` credit in the units of A_i, and A_i itself for a trajectory of which nobody said anything."""
    centred = torch.where(turns.judged, turns.outcome - turns.baseline, 1.0)
    unit = turns.counts * (1 + luck) * advantages.to(centred.dtype) / centred
    rows = (found.advantage * unit[turns.owner]).to(advantages.dtype)
    return torch.where(found.informed[turns.owner], rows, advantages[turns.owner])


def _metrics(turns: Turns, seen: Stretches, found: Estimate, slope: Tensor) -> dict[str, float]:
    centred = torch.where(turns.judged, turns.outcome - turns.baseline, 0.0)
    missed = torch.where(turns.judged, turns.total(found.expected), 0.0) - centred
    size = float(centred.square().sum())
    known = seen.known[seen.ids].double()
    return {
        "teacher_slope": float(slope),
        "explained_share": Mean(1 - float(missed.square().sum()) / size if size else 0.0, size),
        "known_turn_share": Mean(float(known.mean()), known.numel()),
    }
