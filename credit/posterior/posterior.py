"""Posterior credit: the expected advantage of each turn given the teacher, the siblings and the outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..checks import check_range
from ..groups import group_metrics, trajectory_advantages
from ..inputs import Credit, CreditInputs
from ..metrics import Mean
from ..registry import register_credit
from ..tokens import spread
from .estimate import Estimate, estimate
from .evidence import turn_evidence
from .facts import USES, Facts, facts_of, joined, words
from .siblings import Stretches, stretches
from .slope import beliefs, fit_slope
from .turns import Turns, turns_of


def _requires(options: Mapping[str, Any]) -> Iterable[str]:
    return [USES[word] for word in words(options["use"])]


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
    adaptive: bool = True,
    slope: float = 0.2,
    ridge: float = 10.0,
    doubt: float = 0.05,
    spike: float = 3.0,
    scale_rewards: bool = True,
    normalization_scope: str = "trajectory",
    eps: float = 1e-4,
    outcome_discount: float = 1.0,
    others: Sequence[Facts] | None = None,
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
        adaptive: whether the batch's outcomes judge how far siblings and their clocks are believed, where observations
            may look alike; False takes ``alias`` and ``discount`` as they are.
        slope, ridge: mean and precision of the slope's prior; ridge above 0.
        doubt: prior probability that the teacher misleads, in [0, 1].
        spike: odds that the teacher knows nothing, where its evidence has no relation to the outcomes, at least 0; 0
            believes the slope as it is fitted.
        scale_rewards, normalization_scope, eps: as in :func:`group_relative_advantages`.
        outcome_discount: in (0, 1], fades every return, see :func:`~turncredit.credit.groups.faded`.
        others: facts of batches, of other processes, say, with which this one is fitted together, see
            :func:`~turncredit.credit.posterior.facts_of`; None fits it alone.

    Returns:
        Credit with ``turn_weights`` A~_k / A_i (1 where A_i = 0) and details, each ``[M]``, in units of R, the return
        mapped to [0, 1] over its group: ``advantage`` adv_k, ``revision`` mu_k of the teacher, ``variance`` p_k left
        before the own outcome. Metrics: ``teacher_slope`` (0 without a teacher); ``clock_trust`` in [0, 1], what
        is left of ``discount`` between siblings; ``explained_share`` = 1 - (sum over
        trajectories of (sum_k e_k - R_i + m_i)^2) / (sum of (R_i - m_i)^2), how much of the outcomes was said before
        them; ``known_turn_share`` = turns in a stretch that siblings judge / turns; and those of
        :func:`~turncredit.credit.groups.group_metrics`.

    Raises:
        TypeError: ``use`` is no text, or ``adaptive`` no flag.
        ValueError: an option is out of range, or what ``use`` names is missing.
    """
    _check_options(locals())
    facts = joined([facts_of(inputs, use=use, outcome_discount=outcome_discount), *(others or ())])
    turns = turns_of(facts, scope=normalization_scope, eps=eps)
    seen, evidence = stretches(turns, discount), turn_evidence(facts)
    believed = evidence.new_zeros(())
    if "teacher" in words(use):
        believed = fit_slope(turns, evidence, seen, slope=slope, ridge=ridge, doubt=doubt, spike=spike)
    belief = beliefs(turns, evidence, turns.running(evidence), believed)
    found = estimate(turns, belief, seen, luck=luck, alias=alias, adaptive=adaptive)
    advantages = trajectory_advantages(
        inputs,
        scale_rewards=scale_rewards,
        normalization_scope=normalization_scope,
        eps=eps,
        outcome_discount=outcome_discount,
    )
    by_row = advantages[inputs.trajectory_ids]
    own = slice(inputs.num_rows)
    weights = torch.where(by_row == 0, 1.0, _weights(turns, found, luck)[own]).to(inputs.dtype)
    metrics = {
        "teacher_slope": float(believed),
        "clock_trust": float(seen.clock),
        **_metrics(turns, seen, found, inputs),
        **group_metrics(inputs, advantages),
    }
    details = {"advantage": found.advantage[own], "revision": found.revision[own], "variance": found.variance[own]}
    return Credit(spread(by_row * weights, inputs.response_mask), weights, metrics, details)


def _check_options(options: Mapping[str, Any]) -> None:
    where, infinite = "posterior", float("inf")
    words(options["use"])
    if options["adaptive"] not in (True, False):  # a text would count as True
        raise TypeError(f"{where}: adaptive must be True or False, got {options['adaptive']!r}; leave it out for True")
    check_range(where, "luck", options["luck"], 0, infinite, "()")
    check_range(where, "alias", options["alias"], 0, infinite, ")")
    check_range(where, "discount", options["discount"], 0, 1, "(")
    check_range(where, "slope", options["slope"], -infinite, infinite, "()")
    check_range(where, "ridge", options["ridge"], 0, infinite, "()")
    check_range(where, "doubt", options["doubt"], 0, 1)
    check_range(where, "spike", options["spike"], 0, infinite, ")")


def _weights(turns: Turns, found: Estimate, luck: float) -> Tensor:
    """``[M]`` A~_k / A_i: exactly 1 for the turns of a trajectory of which nobody said anything, or whose A_i is 0."""
    centred = turns.outcome - turns.baseline
    unit = (1 + luck) / torch.where(turns.judged, centred, 1.0) * turns.counts
    return torch.where((found.informed & turns.judged)[turns.owner], found.advantage * unit[turns.owner], 1.0)


def _metrics(turns: Turns, seen: Stretches, found: Estimate, inputs: CreditInputs) -> dict[str, float]:
    """Of the batch itself, without others that were fitted along with it."""
    own = slice(inputs.num_trajectories)
    centred = torch.where(turns.judged, turns.outcome - turns.baseline, 0.0)[own]
    missed = torch.where(turns.judged, turns.total(found.expected), 0.0)[own] - centred
    size = float(centred.square().sum())
    known = seen.known[seen.ids][: inputs.num_rows].double()
    return {
        "explained_share": Mean(1 - float(missed.square().sum()) / size if size else 0.0, size),
        "known_turn_share": Mean(float(known.mean()), known.numel()),
    }
