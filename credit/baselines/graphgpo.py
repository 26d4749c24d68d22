"""GraphGPO: a turn is good where it led closer to a success, by whatever way a sibling knows."""

from __future__ import annotations

import torch

from ..checks import check_range
from ..groups import group_relative_advantages
from ..inputs import Credit, CreditInputs
from ..registry import register_credit
from ..states import state_ids
from .graphs import check_options, episode_advantages, goal_distances, with_steps


@register_credit("graphgpo", requires=("anchor_ids",))
def graphgpo(
    inputs: CreditInputs,
    *,
    step_weight: float = 1.0,
    discount: float = 0.95,
    goal: float = 10.0,
    normalization: str = "mean_std",
    eps: float = 1e-6,
    outcome_discount: float = 1.0,
) -> Credit:
    """Episode advantage plus the standing of ``goal * discount ** d(s')`` among the turns at the same anchor.

    d(s') is the number of turns from what the turn led to, to a success, on the shortest way in the union of the
    group's trajectories (0 behind the last turn of a success; no known way gives 0 instead of the power). Both terms
    are ``(x - mean) / (sample deviation + eps)``, with ``"mean"`` only less their mean.

    Source: GraphGPO (arXiv 2605.26684), docs/equations.md#graphgpo. Dividing per anchor makes a small difference
    between two turns count as much as the one that decides; ``normalization="mean"`` is ours.

    Args:
        inputs: the batch; needs ``anchor_ids``; a trajectory succeeds where ``successes`` is above 1/2.
        step_weight: at least 0; 0 is GRPO with the same normalisation.
        discount: in (0, 1].
        goal: value of a success, above 0; with ``"mean_std"`` it makes no difference.
        normalization: ``"mean_std"`` or ``"mean"``.
        eps: stabiliser of the divisions.
        outcome_discount: in (0, 1], fades R_i in A_i, see :func:`~turncredit.credit.groups.faded`.

    Returns:
        Credit with ``turn_weights`` = A~_k / A_i (1 where A_i = 0) and details, each ``[M]``: ``goal_values``,
        ``step_advantages``. Metrics: ``anchored_turn_share`` = turns whose anchor another turn of the group shares /
        turns, ``mean_abs_step_advantage``, and those of :func:`~turncredit.credit.groups.group_metrics` for A_i.

    Raises:
        ValueError: an option is out of range, or ``anchor_ids`` is None.
    """
    check_options("graphgpo", step_weight, discount, normalization)
    check_range("graphgpo", "goal", goal, 0, float("inf"), "()")
    states = state_ids(inputs)
    distances = goal_distances(inputs, states)
    values = torch.where(distances.isinf(), 0.0, goal * discount**distances)
    episode = episode_advantages(inputs, normalization, eps, outcome_discount)
    steps = group_relative_advantages(values, states, scale_rewards=normalization == "mean_std", eps=eps)
    return with_steps(inputs, episode, step_weight * steps, states, {"goal_values": values})
