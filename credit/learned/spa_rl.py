"""SPA-RL: a head shares the return out over the turns, and its shares are the turns' rewards."""

from __future__ import annotations

from ..checks import check_range
from ..groups import faded, group_metrics, trajectory_advantages
from ..inputs import Credit, CreditInputs
from ..metrics import Mean
from ..registry import register_credit
from ..segments import segment_sum, wide
from ..tokens import mean_factor, spread
from .turns import edge_weights, normalized_sums


@register_credit("spa_rl", requires=("progress",))
def spa_rl(
    inputs: CreditInputs,
    *,
    discount: float = 1.0,
    scale_rewards: bool = True,
    eps: float = 1e-4,
    outcome_discount: float = 1.0,
) -> Credit:
    """Predicted shares of the return as rewards of turns: ``A~_k = sum_{j >= k} discount^{j - k} z(v)_j``.

    v_k is what a head says after turn k's response, trained so that ``sum_k v_k`` is R_i (squared error); z
    standardises the v of all turns of the group together, ``(v - mean) / (std + eps)``, ddof = 1.

    Source: SPA-RL (arXiv 2505.20732), docs/equations.md#spa-rl. Departs from it: the head learns beside the policy, not
    before it, v_k is the whole reward, without the paper's bonus for admissible actions (the invalid-action penalty is
    here beside every method), and the advantage is relative to the group, not to a critic. A group of one rollout, and
    one whose turns all have the same v, gives exactly 0; equal outcomes alone do not.

    Args:
        inputs: the batch; needs ``progress``.
        discount: in [0, 1].
        scale_rewards: divide by the standard deviation.
        eps: stabiliser of the division.
        outcome_discount: in (0, 1], fades R_i, see :func:`~turncredit.credit.groups.faded`.

    Returns:
        Credit with ``turn_weights`` = A~_k / A_i, A_i being GRPO's (1 where A_i = 0), and details:
        ``progress_rest [M]`` = R_i less the shares of the other turns, the target of v_k, ``progress_tokens [M, T]``,
        where the head's loss stands, ``progress_turns [M]`` = K_i. Metrics: ``mean_abs_return_error`` = mean of
        |sum_k v_k - R_i| over trajectories, ``mean_progress`` over turns, and those of
        :func:`~turncredit.credit.groups.group_metrics`.

    Raises:
        ValueError: an option is out of range, or ``progress`` is None.
    """
    check_range("spa_rl", "discount", discount, 0, 1)
    owner = inputs.trajectory_ids
    shares = inputs.progress.detach().to(wide(owner.device))
    turns = normalized_sums(inputs, shares, discount=discount, scale_rewards=scale_rewards, eps=eps).to(inputs.dtype)
    episode = trajectory_advantages(
        inputs,
        scale_rewards=scale_rewards,
        normalization_scope="trajectory",
        eps=eps,
        outcome_discount=outcome_discount,
    )
    outcomes = faded(inputs.rewards.detach().to(shares.dtype), inputs.turn_counts, outcome_discount)
    errors = segment_sum(shares, owner, inputs.num_trajectories) - outcomes
    details = {
        "progress_rest": (shares - errors[owner]).to(inputs.dtype),
        "progress_tokens": edge_weights(inputs, last=True),
        "progress_turns": inputs.turn_counts[owner].to(inputs.dtype),
    }
    metrics = {
        "mean_abs_return_error": Mean(float(errors.abs().mean()), errors.numel()),
        "mean_progress": Mean(float(shares.mean()), shares.numel()),
        **group_metrics(inputs, episode),
    }
    return Credit(spread(turns, inputs.response_mask), mean_factor(turns, episode[owner]), metrics, details)
