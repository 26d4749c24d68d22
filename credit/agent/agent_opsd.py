"""AgentOPSD: a belief of success, revised turn by turn by the privileged teacher, weights each turn's credit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..checks import check_choice, check_range
from ..groups import group_metrics, trajectory_advantages
from ..inputs import Credit, CreditInputs
from ..registry import register_credit
from ..segments import segment_mean, segment_std
from ..tokens import spread
from .beliefs import belief_revisions, calibrated_evidence, initial_beliefs
from .report import Findings
from .units import token_units, turn_units


@register_credit(
    "agent_opsd",
    requires=("teacher_logprobs",),
    presets={
        "agent_opsd_token": {"granularity": "token"},
        "agent_opsd_gap": {"revision": "gap"},
        "agent_opsd_magnitude": {"signed": False},
        "agent_opsd_no_prior": {"prior": "none"},
        "agent_opsd_centered": {"evidence_centering": "trajectory"},
        "agent_opsd_calibrated": {"evidence_centering": "group", "evidence_scale": "group_std"},
    },
)
def agent_opsd(
    inputs: CreditInputs,
    *,
    gamma: float = 0.95,
    lam: float = 0.5,
    band: float = 0.2,
    eps: float = 1e-4,
    granularity: str = "turn",
    revision: str = "belief",
    signed: bool = True,
    prior: str = "success_rate",
    evidence_centering: str | None = None,
    evidence_scale: float | str | None = None,
    evidence_reduction: str = "sum",
    scale_rewards: bool = True,
    normalization_scope: str = "trajectory",
    outcome_discount: float = 1.0,
) -> Credit:
    """Weight each turn by how far the teacher's evidence moved the belief of success, in the outcome's direction.

    With token gaps ``delta = log pi(y | h+) - log pi(y | h)``, per trajectory i and turn k::

        e_k = sum_t delta[k, t]          c_k = gamma * c_{k-1} + e_k,  c_0 = 0
        B_0 = clip(S/G, eps, 1 - eps)    B_k = sigmoid(logit(B_0) + c_k)
        q_k = sign(A_i) * (B_k - B_{k-1})
        w_k = clip(1 + band * (q_k - mean_k q) / (std_k q + eps), 1 - band, 1 + band)
        A~_k = A_i * (1 + lam * (w_k - 1))

    Source: AgentOPSD (arXiv 2608.05987), Table 2 too; docs/equations.md#agentopsd, Eq. (4) to (10). The released code
    departs from the paper (docs/equations.md#departures); this follows the paper. The evidence options are ours.

    Args:
        inputs: the batch; needs ``teacher_logprobs``.
        gamma: decay of the accumulated evidence, in (0, 1]; the prior does not decay.
        lam: share of the weight in the advantage, in [0, 1]; 0 is GRPO bit for bit.
        band: half-width b of the weight's range, in (0, 1).
        eps: stabiliser of the prior's clip and of both standard deviations, in (0, 0.5).
        granularity: ``"turn"``, or ``"token"``: the recursion runs over the trajectory's flattened tokens.
        revision: ``"belief"`` uses B_k - B_{k-1}, ``"gap"`` the raw evidence e_k.
        signed: multiply by sign(A_i); False uses the magnitude of the revision.
        prior: ``"success_rate"`` of the group, or ``"none"``: B_0 = 1/2.
        evidence_centering: None, or subtract the mean evidence of the ``"trajectory"`` or the ``"group"``.
        evidence_scale: None, a temperature to divide by, or ``"group_std"``: the group's population standard
            deviation of the evidence (plus eps).
        evidence_reduction: ``"sum"`` or ``"mean"`` over the tokens of a turn.
        scale_rewards, normalization_scope: as in :func:`group_relative_advantages`.
        outcome_discount: in (0, 1], fades every return, see :func:`~turncredit.credit.groups.faded`.

    Returns:
        Credit with ``turn_weights`` w_k (mean over the turn's tokens for ``"token"``) and details, each ``[M]``:
        ``evidence`` e_k (sum over tokens for ``"token"``), ``beliefs`` B_k after the turn, ``revisions``
        B_k - B_{k-1} over the turn, ``prior`` B_0. Metrics, over units (turns, or tokens for ``"token"``):

        - ``evidence_mean`` = mean over turns of e_k; ``evidence_std`` = its population standard deviation;
        - ``belief_saturated_share`` = units with B_k outside [0.01, 0.99] / units;
        - ``first_turn_revision_share`` = sum over trajectories of the first turn's sum |dB| / sum of all |dB|
          (0 if nothing moved);
        - ``evidence_agreement_share`` = turns with sign(e_k) = sign(A_i) / turns with A_i != 0 (0 if none);
        - ``weight_clip_share`` = units with |band * z_k| >= band / units; ``weight_std`` = population standard
          deviation of w over units;
        - those of :func:`~turncredit.credit.groups.group_metrics`.

        A trajectory of one turn has w = 1, a trajectory with A = 0 has advantages of exactly 0.

    Raises:
        ValueError: an option is out of range, or ``teacher_logprobs`` is None.
    """
    _check_options(locals())
    grpo_advantages = trajectory_advantages(
        inputs,
        scale_rewards=scale_rewards,
        normalization_scope=normalization_scope,
        eps=eps,
        outcome_discount=outcome_discount,
    )
    rows = grpo_advantages[inputs.trajectory_ids]
    by_token = granularity == "token"
    initial = initial_beliefs(inputs, prior, eps)
    prior_logits, found = torch.logit(initial), Findings(inputs, initial)
    advantages = rows.new_empty(inputs.response_mask.shape if by_token else 0)
    for units in token_units(inputs) if by_token else [turn_units(inputs, evidence_reduction)]:
        evidence = calibrated_evidence(units, inputs, evidence_centering, evidence_scale, eps)
        beliefs, moves = belief_revisions(
            evidence, units.trajectory, units.place, prior_logits[units.members], gamma=gamma
        )
        sign = grpo_advantages.sign().to(evidence.dtype)[units.members][units.trajectory]
        moved = evidence if revision == "gap" else moves
        scores = _standardise(moved * sign if signed else moved.abs(), units.trajectory, units.members.numel(), eps)
        weights = (1 + band * scores).clamp(1 - band, 1 + band)
        found.add(units, evidence, beliefs, moves, scores, weights)
        if by_token:
            factor = rows[units.rows][units.line] * (1 + lam * (weights - 1)).to(inputs.dtype)
            sampled = inputs.response_mask[units.rows]
            advantages[units.rows] = factor.new_zeros(sampled.shape).masked_scatter_(sampled, factor)
    turn_weights = found.turn_weights.to(inputs.dtype)
    if not by_token:
        advantages = spread(rows * (1 + lam * (found.turn_weights - 1)).to(inputs.dtype), inputs.response_mask)
    metrics = {**found.metrics(rows), **group_metrics(inputs, grpo_advantages)}
    return Credit(advantages, turn_weights, metrics, found.details())


def _check_options(options: dict[str, Any]) -> None:
    where = "agent_opsd"
    check_range(where, "gamma", options["gamma"], 0, 1, "(")
    check_range(where, "lam", options["lam"], 0, 1)
    check_range(where, "band", options["band"], 0, 1, "()")
    check_range(where, "eps", options["eps"], 0, 0.5, "()")
    check_choice(where, "granularity", options["granularity"], ("turn", "token"))
    check_choice(where, "revision", options["revision"], ("belief", "gap"))
    check_choice(where, "signed", options["signed"], (True, False))
    check_choice(where, "prior", options["prior"], ("success_rate", "none"))
    check_choice(where, "evidence_centering", options["evidence_centering"], (None, "trajectory", "group"))
    check_choice(where, "evidence_reduction", options["evidence_reduction"], ("sum", "mean"))
    scale = options["evidence_scale"]
    if scale is not None and scale != "group_std":
        check_range(where, "evidence_scale", scale, 0, float("inf"), "()")


def _standardise(scores: Tensor, ids: Tensor, count: int, eps: float) -> Tensor:
    """z-scores within each trajectory; exactly 0 for a trajectory of one unit."""
    centred = scores - segment_mean(scores, ids, count)[ids]
    return centred / (segment_std(scores, ids, count) + eps)[ids]
