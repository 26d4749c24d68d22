"""RLSD: each token's weight is the clipped teacher-student ratio, turned by the outcome's sign."""

from __future__ import annotations

import math

from torch import Tensor

from .checks import check_range
from .groups import group_metrics, trajectory_advantages
from .inputs import Credit, CreditInputs
from .metrics import deviation
from .registry import register_credit
from .schedules import linear_decay
from .tokens import mean_factor, weigh_tokens

_LOG2_E = math.log2(math.e)


@register_credit("rlsd", requires=("teacher_logprobs",))
def rlsd(
    inputs: CreditInputs,
    *,
    lam: float = 0.5,
    band: float = 0.2,
    decay_steps: int | None = 100,
    step: int = 0,
    eps: float = 1e-4,
    scale_rewards: bool = True,
    normalization_scope: str = "trajectory",
    outcome_discount: float = 1.0,
) -> Credit:
    """Token weights ``w_t = clip(exp(sign(A_i) * delta_t), 1 - band, 1 + band)``, mixed in by a share that decays.

    ``A~_t = A_i * (1 + lam_s * (w_t - 1))``, ``lam_s = lam * max(0, 1 - step / decay_steps)``, with the token gap
    ``delta_t = log pi(y_t | h+) - log pi(y_t | h)``.

    Source: RLSD (arXiv 2604.03128), docs/equations.md#rlsd.

    Args:
        inputs: the batch; needs ``teacher_logprobs``.
        lam: share of the weight before the first update, in [0, 1]; 0 is GRPO bit for bit.
        band: half-width of the weight's range, in (0, 1).
        decay_steps: updates until the share is 0; None keeps it.
        step: optimiser updates done.
        eps, scale_rewards, normalization_scope: as in :func:`group_relative_advantages`.
        outcome_discount: in (0, 1], fades every return, see :func:`~turncredit.credit.groups.faded`.

    Returns:
        Credit with ``turn_weights`` = mean of A~_t / A_i over the turn's tokens (1 where A_i = 0). Metrics:
        ``lam`` = lam_s, ``turn_weight_std`` = population standard deviation of the turn weights, and those of
        :func:`~turncredit.credit.groups.group_metrics`.

    Raises:
        ValueError: an option is out of range, or ``teacher_logprobs`` is None.
    """
    check_range("rlsd", "lam", lam, 0, 1)
    check_range("rlsd", "band", band, 0, 1, "()")
    share = linear_decay(lam, step=step, decay_steps=decay_steps)
    trajectory = trajectory_advantages(
        inputs,
        scale_rewards=scale_rewards,
        normalization_scope=normalization_scope,
        eps=eps,
        outcome_discount=outcome_discount,
    )
    advantage = trajectory[inputs.trajectory_ids]
    # exp2 is vectorised on every CPU; exp goes to a library that is slow on some.
    exponent = advantage.sign() * _LOG2_E

    def weigh(gaps: Tensor, exponent: Tensor, mixed: Tensor, plain: Tensor) -> Tensor:
        return gaps.mul_(exponent).exp2_().clamp_(1 - band, 1 + band).mul_(mixed).add_(plain)

    mixed, plain = advantage * share, advantage * (1 - share)
    credit, sums = weigh_tokens(inputs, weigh, exponent, mixed, plain, mask=inputs.response_mask)
    turn_weights = mean_factor(sums / inputs.token_counts, advantage)
    metrics = {
        "lam": share,
        "turn_weight_std": deviation(turn_weights),
        **group_metrics(inputs, trajectory),
    }
    return Credit(credit, turn_weights, metrics)
