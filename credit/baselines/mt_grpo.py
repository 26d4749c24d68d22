"""MT-GRPO: rewards of single turns, compared among the turns with the same number."""

from __future__ import annotations

import torch

from ..checks import check_range
from ..groups import group_metrics, group_relative_advantages, trajectory_advantages
from ..inputs import Credit, CreditInputs
from ..metrics import Mean
from ..registry import register_credit
from ..states import joined, turns_left
from ..tokens import mean_factor, spread


@register_credit("mt_grpo", requires=("turn_rewards",))
def mt_grpo(
    inputs: CreditInputs,
    *,
    step_weight: float = 1.0,
    eps: float = 1e-4,
    outcome_discount: float = 1.0,
) -> Credit:
    """Outcome advantage plus the standing of a turn's own reward: ``A~_k = A_i + step_weight * z(r_k)``.

    z is over the turns with the same index k of the group's trajectories, divided by their sample deviation + eps.
    A trajectory's last turn has no z: its reward is the outcome, which is in A_i.

    Source: MT-GRPO (arXiv 2505.11821), docs/equations.md#mt-grpo. Where the policy decides when to stop, the
    trajectories that still have a turn k are no random sample, and z is biased; the paper's episodes have two turns.

    Args:
        inputs: the batch; needs ``turn_rewards``.
        step_weight: the paper's coefficient, at least 0; 0 is GRPO bit for bit.
        eps: stabiliser of both divisions.
        outcome_discount: in (0, 1], fades R_i in A_i, see :func:`~turncredit.credit.groups.faded`.

    Returns:
        Credit with ``turn_weights`` = A~_k / A_i (1 where A_i = 0) and ``details["step_advantages"]`` ``[M]``.
        Metrics: ``mean_abs_step_advantage`` and those of :func:`~turncredit.credit.groups.group_metrics` for A_i.

    Raises:
        ValueError: an option is out of range, or ``turn_rewards`` is None.
    """
    check_range("mt_grpo", "step_weight", step_weight, 0, float("inf"), ")")
    assert inputs.turn_rewards is not None
    episode = trajectory_advantages(
        inputs, scale_rewards=True, normalization_scope="trajectory", eps=eps, outcome_discount=outcome_discount
    )
    inner = turns_left(inputs) > 0
    steps = torch.zeros(inputs.num_rows, dtype=inputs.dtype, device=inputs.response_mask.device)
    if bool(inner.any()):
        places = joined(inputs.group_index[inputs.trajectory_ids[inner]], inputs.turn_ids[inner])
        steps[inner] = group_relative_advantages(inputs.turn_rewards[inner], places, eps=eps).to(inputs.dtype)
    rows = episode[inputs.trajectory_ids]
    turns = rows + step_weight * steps
    metrics = {
        "mean_abs_step_advantage": Mean(float(steps.abs().mean()), steps.numel()),
        **group_metrics(inputs, episode),
    }
    return Credit(spread(turns, inputs.response_mask), mean_factor(turns, rows), metrics, {"step_advantages": steps})
