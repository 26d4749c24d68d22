"""GRPO: every token of a trajectory inherits the trajectory's group-relative advantage."""

from __future__ import annotations

import torch

from .groups import group_metrics, trajectory_advantages
from .inputs import Credit, CreditInputs
from .registry import register_credit
from .tokens import spread


@register_credit("grpo", presets={"dr_grpo": {"scale_rewards": False}, "faded_grpo": {"outcome_discount": 0.95}})
def grpo(
    inputs: CreditInputs,
    *,
    scale_rewards: bool = True,
    normalization_scope: str = "trajectory",
    eps: float = 1e-4,
    outcome_discount: float = 1.0,
) -> Credit:
    """Uniform credit: ``A~[k, t] = A_i`` for every sampled token of trajectory i.

    Source: GRPO (arXiv 2402.03300), docs/equations.md#grpo; ``scale_rewards=False``, registered as ``dr_grpo``, is
    Dr.GRPO (arXiv 2503.20783). ``outcome_discount`` in (0, 1] fades every return by the length of its episode, see
    :func:`~turncredit.credit.groups.faded`; 0.95 is registered as ``faded_grpo``.
    A group of one, or with equal rewards, gets exactly 0. Other options as in :func:`group_relative_advantages`.

    Returns:
        Credit with ``turn_weights`` all 1 and the metrics of :func:`~turncredit.credit.groups.group_metrics`.

    Raises:
        ValueError: an option is out of range.
    """
    advantages = trajectory_advantages(
        inputs,
        scale_rewards=scale_rewards,
        normalization_scope=normalization_scope,
        eps=eps,
        outcome_discount=outcome_discount,
    )
    rows = advantages[inputs.trajectory_ids]
    return Credit(
        advantages=spread(rows, inputs.response_mask),
        turn_weights=torch.ones_like(rows),
        metrics=group_metrics(inputs, advantages),
    )
