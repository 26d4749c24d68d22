"""The invalid-action penalty, which every method has: a residual in the units of the method's advantages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...credit import CreditMethod
from ...credit.groups import faded
from ...credit.invalid_action import invalid_action_residual, residual_metrics
from ..batch import TurnBatch


def normalization_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """How a method normalises its advantages, by the names that methods give it; GRPO's way where it does not say."""
    named = {name: options[name] for name in ("scale_rewards", "normalization_scope", "eps") if name in options}
    if "normalization" in options:  # GiGPO's
        named["scale_rewards"] = options["normalization"] == "mean_std"
    return named


def penalised(
    advantages: Tensor, batch: TurnBatch, credit: CreditMethod, penalty: float | None
) -> tuple[Tensor, dict[str, float]]:
    """``[M, T]`` advantages with the residual, and its size; as they are where the credit function adds its own."""
    if not penalty or credit.adds_residual:
        return advantages, {}
    rewards = torch.tensor([t.reward for t in batch.trajectories], dtype=torch.float32)
    residual = invalid_action_residual(
        faded(rewards, torch.bincount(batch.trajectory_ids), credit.options.get("outcome_discount", 1.0)),
        torch.tensor([turn.valid for turn in batch.turns], dtype=torch.bool),
        batch.trajectory_ids,
        batch.group_ids,
        penalty=penalty,
        **normalization_of(credit.options),
    )
    metrics = {f"credit/{name}": value for name, value in residual_metrics(residual).items()}
    return torch.where(batch.response_mask, advantages + residual.float()[:, None], advantages), metrics
