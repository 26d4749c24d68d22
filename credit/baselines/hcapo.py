"""HCAPO: a turn that hindsight makes likelier gets more of the return."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import check_choice, check_range
from ..groups import faded, group_metrics, group_relative_advantages
from ..inputs import Credit, CreditInputs
from ..metrics import Mean
from ..registry import register_credit
from ..segments import segment_mean, wide
from ..states import discounted, earned
from ..tokens import mean_factor, row_blocks, spread

SCOPES = ("group", "trajectory")


@register_credit("hcapo", requires=("teacher_logprobs",))
def hcapo(
    inputs: CreditInputs,
    *,
    step_weight: float = 1.0,
    hindsight_temperature: float = 5.0,
    ratio_low: float = 0.8,
    ratio_high: float = 1.2,
    discount: float = 0.95,
    scope: str = "group",
    eps: float = 1e-4,
    outcome_discount: float = 1.0,
) -> Credit:
    """``A~ = A_i + step_weight * z(rho_k Q_k)``, rho the turn's likelihood in hindsight over that of its siblings.

    ``p_k = exp(mean log p(y_k | h, hindsight) / hindsight_temperature)`` over the turn's tokens, ``rho_k =
    clip(p_k / mean of p over the trajectory, ratio_low, ratio_high)``, ``Q_k = r_k + discount Q_{k+1}``; z is less the
    mean over the sample deviation + eps.

    Source: HCAPO (arXiv 2603.08754), docs/equations.md#hcapo. Over which turns z is taken the paper leaves open:
    ``scope``.

    Args:
        inputs: the batch; ``teacher_logprobs`` are those under hindsight (the trainer's default context here).
        step_weight: omega, at least 0; 0 is GRPO bit for bit.
        hindsight_temperature: T, above 0.
        ratio_low, ratio_high: range of rho, at least 0.
        discount: in (0, 1].
        scope: ``"group"``, all turns of the group, or ``"trajectory"``.
        eps: stabiliser of the divisions.
        outcome_discount: in (0, 1], fades R_i in A_i, see :func:`~turncredit.credit.groups.faded`, and not Q_k.

    Returns:
        Credit with ``turn_weights`` = A~_k / A_i (1 where A_i = 0) and details, each ``[M]``: ``hindsight_ratios``,
        ``step_advantages``. Metrics: ``clipped_ratio_share``, ``mean_abs_step_advantage``, and those of
        :func:`~turncredit.credit.groups.group_metrics` for A_i.

    Raises:
        ValueError: an option is out of range, or ``teacher_logprobs`` is None.
    """
    where = "hcapo"
    check_range(where, "step_weight", step_weight, 0, float("inf"), ")")
    check_range(where, "hindsight_temperature", hindsight_temperature, 0, float("inf"), "()")
    check_range(where, "ratio_low", ratio_low, 0, 1)
    check_range(where, "ratio_high", ratio_high, 1, float("inf"), ")")
    check_range(where, "discount", discount, 0, 1, "(")
    check_choice(where, "scope", scope, SCOPES)
    outcomes = faded(inputs.rewards, inputs.turn_counts, outcome_discount)
    episode = group_relative_advantages(outcomes, inputs.group_ids, eps=eps).to(inputs.dtype)
    ratios = _ratios(inputs, hindsight_temperature)
    kept = ratios.clamp(ratio_low, ratio_high)
    ids = inputs.trajectory_ids if scope == "trajectory" else inputs.group_index[inputs.trajectory_ids]
    steps = group_relative_advantages(kept * discounted(inputs, earned(inputs), discount), ids, eps=eps)
    steps = steps.to(inputs.dtype)
    rows = episode[inputs.trajectory_ids]
    turns = rows + step_weight * steps
    metrics = {
        "clipped_ratio_share": Mean(float((kept != ratios).double().mean()), kept.numel()),
        "mean_abs_step_advantage": Mean(float(steps.abs().mean()), steps.numel()),
        **group_metrics(inputs, episode),
    }
    details = {"hindsight_ratios": kept.to(inputs.dtype), "step_advantages": steps}
    return Credit(spread(turns, inputs.response_mask), mean_factor(turns, rows), metrics, details)


def _ratios(inputs: CreditInputs, temperature: float) -> Tensor:
    """``[M]`` p_k over the mean of p in its trajectory, taken where the largest p of it is 1."""
    owner, count = inputs.trajectory_ids, inputs.num_trajectories
    mean = _teacher_sums(inputs) / inputs.token_counts / temperature
    top = mean.new_full((count,), -torch.inf).scatter_reduce_(0, owner, mean, "amax")
    likelihood = (mean - top[owner]).exp()
    return likelihood / segment_mean(likelihood, owner, count)[owner]


def _teacher_sums(inputs: CreditInputs) -> Tensor:
    """``[M]`` sum of the teacher's log-probs over each turn's tokens, in the wide dtype."""
    assert inputs.teacher_logprobs is not None
    mask, teacher = inputs.response_mask, inputs.teacher_logprobs.detach()
    sums = torch.empty(mask.shape[0], dtype=wide(mask.device), device=mask.device)
    for part in row_blocks(mask):
        sums[part] = torch.where(mask[part], teacher[part].to(inputs.dtype), 0.0).sum(-1)
    return sums
