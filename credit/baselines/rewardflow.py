"""RewardFlow: success flows backwards through the graph of states; turns at one state are compared by it."""

from __future__ import annotations

from ..checks import check_range
from ..groups import group_relative_advantages
from ..inputs import Credit, CreditInputs
from ..registry import register_credit
from ..states import earned, state_ids
from .graphs import best_values, check_options, episode_advantages, with_steps


@register_credit("rewardflow", requires=("anchor_ids",))
def rewardflow(
    inputs: CreditInputs,
    *,
    discount: float = 0.95,
    episode_weight: float = 0.0,
    normalization: str = "mean_std",
    eps: float = 1e-6,
    outcome_discount: float = 1.0,
) -> Credit:
    """Standing of ``q_k = max(r_k, discount V(s_{k+1}))`` among the turns at the same anchor, ``V(s) = max q``.

    q and V are computed on the union of the group's trajectories until they no longer change; the standing is
    ``(q - mean) / (sample deviation + eps)`` (``"mean"``: only less the mean).

    Source: RewardFlow (arXiv 2603.18859), docs/equations.md#rewardflow. A turn whose anchor nobody shares has credit of
    exactly 0, as there; ``episode_weight`` adds that share of GRPO's advantage and is ours, as ``"mean"`` is.

    Args:
        inputs: the batch; needs ``anchor_ids``.
        discount: in (0, 1].
        episode_weight: at least 0.
        normalization: ``"mean_std"`` or ``"mean"``.
        eps: stabiliser of the divisions.
        outcome_discount: in (0, 1], fades R_i in the episode's advantage, see
            :func:`~turncredit.credit.groups.faded`, and not q.

    Returns:
        Credit with ``turn_weights`` = A~_k over the trajectory's group-relative advantage (1 where that is 0) and
        details, each ``[M]``: ``flow_values`` q, ``step_advantages``. Metrics: ``anchored_turn_share``,
        ``mean_abs_step_advantage``, and those of :func:`~turncredit.credit.groups.group_metrics`.

    Raises:
        ValueError: an option is out of range, or ``anchor_ids`` is None.
    """
    check_options("rewardflow", 0.0, discount, normalization)
    check_range("rewardflow", "episode_weight", episode_weight, 0, float("inf"), ")")
    states = state_ids(inputs)
    values = best_values(inputs, states, earned(inputs), discount)
    steps = group_relative_advantages(values, states, scale_rewards=normalization == "mean_std", eps=eps)
    episode = episode_advantages(inputs, normalization, eps, outcome_discount)
    return with_steps(inputs, episode, steps, states, {"flow_values": values}, episode_weight)
