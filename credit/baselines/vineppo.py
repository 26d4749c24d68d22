"""VinePPO: measured advantages of turns, from continuations of the states around them."""

from __future__ import annotations

import torch

from ..groups import group_metrics, group_relative_advantages
from ..inputs import Credit, CreditInputs
from ..metrics import Mean
from ..registry import register_credit
from ..segments import sample_std, segment_mean
from ..signals import register_signal
from ..tokens import mean_factor, spread

register_signal(
    "branch_advantages",
    axes="M",
    fix="measure them with turncredit.rollout.branching.turn_values",
    doc="measured advantage of each turn, environment's units",
)


@register_credit("vineppo", requires=("branch_advantages",))
def vineppo(inputs: CreditInputs, *, scale_rewards: bool = False, eps: float = 1e-4) -> Credit:
    """``A_k = r_k + V(s_{k+1}) - V(s_k)``, each V the mean return of M fresh continuations from before a turn.

    Source: VinePPO (arXiv 2410.01679), docs/equations.md#vineppo. ``scale_rewards`` divides by the sample deviation of
    the group's returns + eps, as GRPO does, and is ours.

    Args:
        inputs: the batch; needs ``branch_advantages``.
        scale_rewards: whether to divide; groups of equal returns are then divided by eps alone, and so left as they
            are.
        eps: stabiliser of the division.

    Returns:
        Credit with ``turn_weights`` = A_k over the trajectory's group-relative advantage (1 where that is 0). Metrics:
        ``mean_abs_turn_advantage`` and those of :func:`~turncredit.credit.groups.group_metrics`.

    Raises:
        TypeError: `scale_rewards` is no flag.
        ValueError: ``branch_advantages`` is None.
    """
    episode = group_relative_advantages(inputs.rewards, inputs.group_ids, scale_rewards=scale_rewards, eps=eps)
    episode = episode.to(inputs.dtype)
    rows = inputs.trajectory_ids
    turns = inputs.signal("branch_advantages").to(inputs.dtype)
    if scale_rewards:
        group, count = inputs.group_index, int(inputs.group_index.max()) + 1
        values = inputs.rewards.detach().double()
        centred = values - segment_mean(values, group, count)[group]
        size = sample_std(centred, group, count, torch.ones_like(values))
        turns = turns / torch.where(size > 0, size + eps, 1.0)[group[rows]].to(turns.dtype)
    metrics = {
        "mean_abs_turn_advantage": Mean(float(turns.abs().mean()), turns.numel()),
        **group_metrics(inputs, episode),
    }
    return Credit(spread(turns, inputs.response_mask), mean_factor(turns, episode[rows]), metrics)
