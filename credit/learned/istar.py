"""iStar: an implicit reward model, trained on which of two rollouts did better, says what each turn was worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..checks import check_choice, check_range
from ..groups import faded, group_metrics, leave_one_out
from ..inputs import Credit, CreditInputs
from ..metrics import Mean
from ..registry import register_credit
from ..segments import wide
from ..tokens import mean_factor, spread
from .turns import turn_means

REFERENCES = {"rollout": "student_logprobs", "initial": "ref_logprobs"}
"""Whose log-probs the reward model's are compared with: the policy's that sampled, or the frozen reference's."""


_TIE = 1e-3  # nats; two passes of equal weights differ by some 1e-5 over a turn


def _requires(options: Mapping[str, Any]) -> tuple[str, ...]:
    name = options.get("reference", "rollout")
    check_choice("istar", "reference", name, tuple(REFERENCES))
    return ("reward_model_logprobs", REFERENCES[name])


@register_credit("istar", requires=_requires)
def istar(
    inputs: CreditInputs,
    *,
    beta: float = 0.05,
    step_weight: float = 1.0,
    reference: str = "rollout",
    outcome_discount: float = 1.0,
) -> Credit:
    """Leave-one-out advantages of the episode and of implicit turn rewards: ``A~_k = A_i + step_weight * S_k``.

        r_k = beta sum_t (log pi_rm - log pi_ref),   A_i = R_i - mean of the others of the group
        S_k = r_k - mean of r over the turns of the others

    Source: iStar (arXiv 2509.19199), docs/equations.md#istar. The baseline of S_k leaves the whole own rollout out, not
    the one turn: turns of one rollout depend on each other. A group of one gives exactly 0; equal outcomes give
    ``A_i = 0`` and leave S_k.

    Args:
        inputs: the batch; needs ``reward_model_logprobs``, and ``ref_logprobs`` for ``"initial"``.
        beta: of the implicit reward, above 0; the default is ours.
        step_weight: w, at least 0; 0 is RLOO.
        reference: ``"rollout"``, the policy that sampled, or ``"initial"``, the frozen reference.
        outcome_discount: in (0, 1], fades R_i, see :func:`~turncredit.credit.groups.faded`.

    Returns:
        Credit with ``turn_weights`` = A~_k / A_i (1 where A_i = 0) and details, each ``[M]``: ``implicit_rewards`` r_k,
        ``step_advantages`` S_k. Metrics: ``mean_implicit_reward``, ``mean_abs_step_advantage`` over turns, and those of
        :func:`~turncredit.credit.groups.group_metrics` for A_i.

    Raises:
        ValueError: an option is out of range, or a signal is None.
    """
    check_range("istar", "beta", beta, 0, float("inf"), "()")
    check_range("istar", "step_weight", step_weight, 0, float("inf"), ")")
    owner, groups = inputs.trajectory_ids, inputs.group_index
    outcomes = faded(inputs.rewards, inputs.turn_counts, outcome_discount)
    episode = leave_one_out(outcomes, groups).to(inputs.dtype)
    rewards = beta * log_ratio_sums(inputs, reference)
    steps = leave_one_out(rewards, groups[owner], owner, tolerance=_TIE * beta).to(inputs.dtype)
    turns = episode[owner] + step_weight * steps
    metrics = {
        "mean_implicit_reward": Mean(float(rewards.mean()), rewards.numel()),
        "mean_abs_step_advantage": Mean(float(steps.abs().mean()), steps.numel()),
        **group_metrics(inputs, episode),
    }
    details = {"implicit_rewards": rewards.to(inputs.dtype), "step_advantages": steps}
    return Credit(spread(turns, inputs.response_mask), mean_factor(turns, episode[owner]), metrics, details)


def log_ratio_sums(inputs: CreditInputs, reference: str = "rollout") -> Tensor:
    """``[M]`` ``sum_t (log pi_rm - log pi_ref)`` of each turn, nats, in the wide dtype."""
    mean = turn_means(inputs, inputs.reward_model_logprobs) - turn_means(inputs, inputs.signal(REFERENCES[reference]))
    return mean * inputs.token_counts


@dataclass(frozen=True)
class Preferences:
    """Trajectory DPO over all pairs of a batch.

    Args:
        gradient: ``[N]`` derivative of ``loss`` with respect to each trajectory's summed log-prob.
        loss: sum over pairs, nats.
        pairs: how many.
        right: of how many the reward model puts the better one first, a tie counting as half.
    """

    gradient: Tensor
    loss: float
    pairs: int
    right: float


def preferences(margins: Tensor, rewards: Tensor, group_ids: Tensor, *, beta: float = 0.05) -> Preferences:
    """DPO's loss over every pair of one group with different rewards, and what it asks of each trajectory.

        L = sum over pairs (i better than j) of -log sigmoid(beta (s_i - s_j)),   s = sum log pi_rm - log pi_ref

    Source: iStar (arXiv 2509.19199), docs/equations.md#istar; all pairs of a group instead of drawn ones is ours.
    Rewards that differ by less than a millionth of the larger count as equal.

    Args:
        margins: ``[N]`` float, s_i.
        rewards: ``[N]`` float.
        group_ids: ``[N]`` int64.
        beta: above 0.

    >>> found = preferences(torch.zeros(2), torch.tensor([1.0, 0.0]), torch.tensor([3, 3]), beta=2.0)
    >>> found.gradient.tolist(), found.pairs
    ([-1.0, 1.0], 1)
    """
    check_range("preferences", "beta", beta, 0, float("inf"), "()")
    s, r = (value.detach().to(wide(margins.device)) for value in (margins, rewards))
    rounding = 1e-6 * torch.maximum(r.abs()[:, None], r.abs()[None]) + 1e-7
    better = (group_ids[:, None] == group_ids[None]) & (r[:, None] - r[None] > rounding)
    gaps = beta * (s[:, None] - s[None])
    pull = torch.where(better, -beta * torch.sigmoid(-gaps), 0.0)
    loss = torch.where(better, -logsigmoid(gaps), 0.0).sum()
    apart = gaps.where(gaps.abs() > _TIE * beta, 0.0).sign()
    right = float(torch.where(better, 0.5 + 0.5 * apart, 0.0).sum())
    return Preferences((pull.sum(1) - pull.sum(0)).to(margins.dtype), float(loss), int(better.sum()), right)
