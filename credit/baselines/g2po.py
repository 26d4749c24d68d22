"""G2PO: states are worth what their visitors came to; a turn is worth what it led to, and how far it moved."""

from __future__ import annotations

from ..groups import group_relative_advantages
from ..inputs import Credit, CreditInputs
from ..registry import register_credit
from ..segments import segment_mean
from ..states import discounted, earned, following, state_ids
from .graphs import check_options, episode_advantages, with_steps


@register_credit("g2po", requires=("anchor_ids",))
def g2po(
    inputs: CreditInputs,
    *,
    step_weight: float = 1.0,
    discount: float = 0.95,
    normalization: str = "mean_std",
    eps: float = 1e-6,
    outcome_discount: float = 1.0,
) -> Credit:
    """``A~ = A_i + step_weight * (z_state[U] + z_group[U - V(s)])``, U the value of what the turn led to.

    ``V(s)`` is the mean over the group's visits of s of ``discount ** (K - k) R`` (K turns, this one's number k from
    0), ``U_k = r_k + V(s_{k+1})`` with nothing behind the last turn: for a reward at the end V(s') within and R at the
    last. ``z_state`` is over the turns at the same anchor, ``z_group`` over all turns of the group, each less its mean
    over its sample deviation + eps (``"mean"``: only less its mean).

    Source: G2PO (arXiv 2606.22995), docs/equations.md#g2po. With ``turn_rewards`` V is the mean discounted return from
    the turn on; ``normalization="mean"`` is ours.

    Args:
        inputs: the batch; needs ``anchor_ids``.
        step_weight: w, at least 0; 0 is GRPO with the same normalisation.
        discount: in (0, 1].
        normalization: ``"mean_std"`` or ``"mean"``.
        eps: stabiliser of the divisions.
        outcome_discount: in (0, 1], fades R_i in A_i, see :func:`~turncredit.credit.groups.faded`.

    Returns:
        Credit with ``turn_weights`` = A~_k / A_i (1 where A_i = 0) and details, each ``[M]``: ``state_values`` V(s),
        ``step_advantages``. Metrics: ``anchored_turn_share``, ``mean_abs_step_advantage``, and those of
        :func:`~turncredit.credit.groups.group_metrics` for A_i.

    Raises:
        ValueError: an option is out of range, or ``anchor_ids`` is None.
    """
    check_options("g2po", step_weight, discount, normalization)
    scale = normalization == "mean_std"
    states, rewards = state_ids(inputs), earned(inputs)
    visits = discount * discounted(inputs, rewards, discount)
    values = segment_mean(visits, states, int(states.max()) + 1)[states]
    reached = rewards + following(inputs, values, 0.0)
    group = inputs.group_index[inputs.trajectory_ids]
    local = group_relative_advantages(reached, states, scale_rewards=scale, eps=eps)
    moved = group_relative_advantages(reached - values, group, scale_rewards=scale, eps=eps)
    episode = episode_advantages(inputs, normalization, eps, outcome_discount)
    return with_steps(inputs, episode, step_weight * (local + moved), states, {"state_values": values})
