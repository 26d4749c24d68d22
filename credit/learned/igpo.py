"""IGPO: a turn is worth how much likelier it made the gold answer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import check_range
from ..groups import faded, group_metrics, trajectory_advantages
from ..inputs import Credit, CreditInputs
from ..metrics import Mean
from ..registry import register_credit
from ..segments import wide
from ..states import turns_left
from ..tokens import mean_factor, spread
from .turns import following, normalized_sums


@register_credit("igpo", requires=("answer_logprobs",))
def igpo(
    inputs: CreditInputs,
    *,
    discount: float = 1.0,
    scale_rewards: bool = True,
    eps: float = 1e-4,
    outcome_discount: float = 1.0,
) -> Credit:
    """Information gain as the reward of a turn: ``A~_k = sum_{j >= k} discount^{j - k} z(r)_j``.

        r_k = p_{k+1} - p_k,   r_K = R_i,   p_k = exp(mean log-prob of the gold answer before turn k)

    z standardises the rewards of all turns of the group together: ``(r - mean) / (std + eps)``, ddof = 1.

    Source: IGPO (arXiv 2510.14967), docs/equations.md#igpo; its released trainer leaves the discounted sum out, this
    follows the paper. R_i should be of the scale of a probability. A group of one rollout gives exactly 0, and so does
    one whose turns all have the same r; equal outcomes alone do not: gains still tell turns apart.

    Args:
        inputs: the batch; needs ``answer_logprobs``.
        discount: gamma, in [0, 1]; the default is ours.
        scale_rewards: divide by the standard deviation.
        eps: stabiliser of the division.
        outcome_discount: in (0, 1], fades R_i, see :func:`~turncredit.credit.groups.faded`.

    Returns:
        Credit with ``turn_weights`` = A~_k / A_i, A_i being GRPO's (1 where A_i = 0), and details, each ``[M]``:
        ``turn_gains`` r_k, ``answer_probabilities`` p_k. Metrics: ``mean_answer_probability``; ``mean_gain`` and
        ``positive_gain_share`` over turns that are not the last; those of
        :func:`~turncredit.credit.groups.group_metrics` for A_i.

    Raises:
        ValueError: an option is out of range, or ``answer_logprobs`` is None.
    """
    check_range("igpo", "discount", discount, 0, 1)
    gains, probabilities = information_gains(inputs, outcome_discount)
    turns = normalized_sums(inputs, gains, discount=discount, scale_rewards=scale_rewards, eps=eps).to(inputs.dtype)
    episode = trajectory_advantages(
        inputs,
        scale_rewards=scale_rewards,
        normalization_scope="trajectory",
        eps=eps,
        outcome_discount=outcome_discount,
    )
    inner = gains[turns_left(inputs) > 0]
    metrics = {
        "mean_answer_probability": Mean(float(probabilities.mean()), probabilities.numel()),
        "mean_gain": Mean(float(inner.mean()) if len(inner) else 0.0, len(inner)),
        "positive_gain_share": Mean(float((inner > 0).double().mean()) if len(inner) else 0.0, len(inner)),
        **group_metrics(inputs, episode),
    }
    details = {"turn_gains": gains.to(inputs.dtype), "answer_probabilities": probabilities.to(inputs.dtype)}
    weights = mean_factor(turns, episode[inputs.trajectory_ids])
    return Credit(spread(turns, inputs.response_mask), weights, metrics, details)


def information_gains(inputs: CreditInputs, outcome_discount: float = 1.0) -> tuple[Tensor, Tensor]:
    """``[M]`` r_k and ``[M]`` p_k, in the wide dtype."""
    probabilities = inputs.answer_logprobs.detach().to(wide(inputs.answer_logprobs.device)).exp()
    outcomes = faded(inputs.rewards.detach().to(probabilities.dtype), inputs.turn_counts, outcome_discount)
    gains = following(inputs, probabilities) - probabilities
    return torch.where(turns_left(inputs) == 0, outcomes[inputs.trajectory_ids], gains), probabilities
