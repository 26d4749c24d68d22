"""GAGPO: generalised advantages over values that siblings at the same state give."""

from __future__ import annotations

from ..checks import check_range
from ..groups import group_relative_advantages
from ..inputs import Credit, CreditInputs
from ..registry import register_credit
from ..segments import segment_mean
from ..states import discounted, earned, following, state_ids
from .graphs import check_options, episode_advantages, with_steps


@register_credit("gagpo", requires=("anchor_ids",))
def gagpo(
    inputs: CreditInputs,
    *,
    discount: float = 0.95,
    gae_lambda: float = 0.95,
    normalization: str = "mean_std",
    eps: float = 1e-6,
) -> Credit:
    """``A_k = delta_k + discount gae_lambda A_{k+1}``, ``delta_k = r_k + discount V(s_{k+1}) - V(s_k)``; then z.

    V(s) is the mean discounted return of the group's turns at the anchor, 0 behind the last turn; z is over all turns
    of the group: less their mean, over their sample deviation + eps (``"mean"``: only less their mean).

    Source: GAGPO (arXiv 2605.13217), docs/equations.md#gagpo. **Read in summaries only**: what they leave open is ours
    (`gae_lambda`, the sample deviation, that no episode term is added); its action-level ratio is a loss variant.

    Args:
        inputs: the batch; needs ``anchor_ids``.
        discount: in (0, 1].
        gae_lambda: in [0, 1]; 1 is the return from the turn on less V(s).
        normalization: ``"mean_std"`` or ``"mean"``.
        eps: stabiliser of the division.

    Returns:
        Credit with ``turn_weights`` = A~_k over the group-relative advantage of the trajectory (1 where that is 0) and
        details, each ``[M]``: ``state_values`` V(s), ``step_advantages``. Metrics: ``anchored_turn_share``,
        ``mean_abs_step_advantage``, and those of :func:`~turncredit.credit.groups.group_metrics`.

    Raises:
        ValueError: an option is out of range, or ``anchor_ids`` is None.
    """
    check_options("gagpo", 0.0, discount, normalization)
    check_range("gagpo", "gae_lambda", gae_lambda, 0, 1)
    states, rewards = state_ids(inputs), earned(inputs)
    values = segment_mean(discounted(inputs, rewards, discount), states, int(states.max()) + 1)[states]
    surprise = rewards + discount * following(inputs, values, 0.0) - values
    advantages = discounted(inputs, surprise, discount * gae_lambda)
    group = inputs.group_index[inputs.trajectory_ids]
    turns = group_relative_advantages(advantages, group, scale_rewards=normalization == "mean_std", eps=eps)
    episode = episode_advantages(inputs, normalization, eps, 1.0)
    return with_steps(inputs, episode, turns, states, {"state_values": values}, 0.0)
