"""Penalty for invalid actions as a residual of the turn, added after credit has been allocated."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import check_choice, check_range
from .groups import group_relative_advantages
from .metrics import Largest, Mean
from .segments import sample_std, segment_mean, wide

NORMALIZATIONS = ("bounded", "paper")


def invalid_action_residual(
    rewards: Tensor,
    valid_actions: Tensor,
    trajectory_ids: Tensor,
    group_ids: Tensor,
    *,
    penalty: float = 0.1,
    normalization: str = "bounded",
    scale_rewards: bool = True,
    normalization_scope: str = "trajectory",
    eps: float = 1e-4,
) -> Tensor:
    """What an invalid-action penalty changes in the normalised reward of each turn.

        bounded  residual_k = -penalty (invalid_k - mean_g invalid) / (max(std_g R, penalty) + eps)
        paper    residual_k = norm_g(R - penalty invalid_k) - norm_g(R)

    with the mean, and ``norm_g`` = (value - mean) / (std + eps), over all turns of the group. Both add up to 0 over
    the turns of a group. The allocated weights never see the penalty, so the trajectory's token-weighted credit is
    conserved up to it.

    Source: docs/equations.md#invalid-actions; Eq. (30), ``"paper"``, is AlignOPSD's. There a group of equal rewards has
    no deviation but the penalty's own, so that one invalid turn of n gets about -sqrt(n), -19.6 of 400. ``"bounded"``
    is ours: the deviation of the rewards, or the penalty where that is larger, so that no residual exceeds 1 in size.

    Args:
        rewards: ``[N]`` float, return of each trajectory without the penalty.
        valid_actions: ``[M]`` bool, whether the turn's action was valid.
        trajectory_ids: ``[M]`` int64 in [0, N).
        group_ids: ``[N]`` int64.
        penalty: coefficient >= 0, in units of reward.
        normalization: ``"bounded"`` or ``"paper"``.
        scale_rewards: divide by the standard deviation, as for the advantages it is added to; without it both are
            ``-penalty (invalid_k - mean_g invalid)``.
        normalization_scope: what ``std_g R`` counts once (bounded), as in :func:`group_relative_advantages`.
        eps: added to the standard deviation.

    Returns:
        ``[M]`` float; exactly 0 in a group whose turns are all valid or all invalid (paper: all valid).

    Raises:
        TypeError: valid_actions is not bool.
        ValueError: a shape differs, the penalty is negative, or an option is unknown.

    >>> rewards, ids = torch.tensor([1.0, 0.0]), torch.tensor([0, 1])
    >>> invalid_action_residual(rewards, torch.tensor([True, False]), ids, torch.tensor([0, 0]), scale_rewards=False)
    tensor([ 0.0500, -0.0500])
    """
    where = "invalid_action_residual"
    check_range(where, "penalty", penalty, 0, float("inf"), ")")
    check_range(where, "eps", eps, 0, float("inf"), ")")
    check_choice(where, "normalization", normalization, NORMALIZATIONS)
    check_choice(where, "normalization_scope", normalization_scope, ("trajectory", "turn"))
    if valid_actions.dtype != torch.bool:
        raise TypeError(f"{where}: valid_actions must be bool, got {valid_actions.dtype}; call .bool()")
    if valid_actions.shape != trajectory_ids.shape:
        raise ValueError(
            f"{where}: valid_actions must be [M] = {list(trajectory_ids.shape)}, got {list(valid_actions.shape)}; "
            "give one flag per turn"
        )
    values = rewards.detach().to(wide(rewards.device))
    invalid = (~valid_actions).to(values.dtype)
    if normalization == "paper" and scale_rewards:
        group, plain = group_ids[trajectory_ids], values[trajectory_ids]
        before, after = (group_relative_advantages(r, group, eps=eps) for r in (plain, plain - penalty * invalid))
        residual = after - before
    else:
        unique, ids = torch.unique(group_ids, return_inverse=True)
        rows = ids[trajectory_ids]
        residual = -penalty * (invalid - segment_mean(invalid, rows, unique.numel())[rows])
        if scale_rewards and penalty > 0:
            turns = torch.bincount(trajectory_ids, minlength=values.numel()) if normalization_scope == "turn" else None
            deviation = _deviation(values, ids, unique.numel(), turns)
            residual = residual / (deviation.clamp(min=penalty) + eps)[rows]
    return residual.to(torch.float64 if rewards.dtype == torch.float64 else torch.float32)


def residual_metrics(residual: Tensor) -> dict[str, float]:
    """``invalid_residual_mean_abs`` and ``invalid_residual_max_abs``: size of the residual over turns."""
    size = residual.abs()
    return {
        "invalid_residual_mean_abs": Mean(float(size.mean()), size.numel()),
        "invalid_residual_max_abs": Largest(float(size.max())),
    }


def _deviation(values: Tensor, ids: Tensor, count: int, turns: Tensor | None) -> Tensor:
    """``[count]`` sample standard deviation of each group's rewards, each counted once or once per turn."""
    weights = torch.ones_like(values) if turns is None else turns.to(values.dtype)
    return sample_std(values - segment_mean(values, ids, count, weights)[ids], ids, count, weights)
