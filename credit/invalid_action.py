"""Penalty for invalid actions as a residual of the turn, added after credit has been allocated."""

from __future__ import annotations

import torch
from torch import Tensor

from ._checks import check_range
from .groups import group_relative_advantages


def invalid_action_residual(
    rewards: Tensor,
    valid_actions: Tensor,
    trajectory_ids: Tensor,
    group_ids: Tensor,
    *,
    penalty: float = 0.1,
    scale_rewards: bool = True,
    eps: float = 1e-4,
) -> Tensor:
    """What an invalid-action penalty changes in the normalised reward of each turn.

    ``residual_k = norm_g(R - penalty * invalid_k) - norm_g(R)``, both normalised over all turns of the group. The
    allocated weights never see the penalty, so the trajectory's token-weighted credit is conserved up to it.

    Source: AlignOPSD, stage 2 (METHODS.md section 2.3). In a group whose rewards are all equal the penalty is the
    only signal, and the division by the standard deviation brings it to the size of a usual advantage.

    Args:
        rewards: ``[N]`` float, return of each trajectory without the penalty.
        valid_actions: ``[M]`` bool, whether the turn's action was valid.
        trajectory_ids: ``[M]`` int64 in [0, N).
        group_ids: ``[N]`` int64.
        penalty: coefficient >= 0, in units of reward.
        scale_rewards: divide by the standard deviation, as for the advantages it is added to.
        eps: added to the standard deviation.

    Returns:
        ``[M]`` float; exactly 0 in a group without an invalid action.

    Raises:
        TypeError: valid_actions is not bool.
        ValueError: a shape differs or the penalty is negative.

    >>> rewards, ids = torch.tensor([1.0, 0.0]), torch.tensor([0, 1])
    >>> invalid_action_residual(rewards, torch.tensor([True, False]), ids, torch.tensor([0, 0]), scale_rewards=False)
    tensor([ 0.0500, -0.0500])
    """
    where = "invalid_action_residual"
    check_range(where, "penalty", penalty, 0, float("inf"), ")")
    if valid_actions.dtype != torch.bool:
        raise TypeError(f"{where}: valid_actions must be bool, got {valid_actions.dtype}; call .bool()")
    if valid_actions.shape != trajectory_ids.shape:
        raise ValueError(
            f"{where}: valid_actions must be [M] = {list(trajectory_ids.shape)}, got {list(valid_actions.shape)}; "
            "give one flag per turn"
        )
    group = group_ids[trajectory_ids]
    plain = rewards.detach()[trajectory_ids].double()
    penalised = plain - penalty * (~valid_actions).double()
    before, after = (
        group_relative_advantages(values, group, scale_rewards=scale_rewards, eps=eps) for values in (plain, penalised)
    )
    return (after - before).to(torch.float64 if rewards.dtype == torch.float64 else torch.float32)
