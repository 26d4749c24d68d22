"""Turns as visits of states: which turns saw the same, which turn follows, what was earned from there on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .segments import decayed_sums, wide

if TYPE_CHECKING:
    from .inputs import CreditInputs


def state_ids(inputs: CreditInputs) -> Tensor:
    """``[M]`` int64 in [0, S): equal for turns of one group with the same ``anchor_ids``."""
    assert inputs.anchor_ids is not None
    anchors = torch.unique(inputs.anchor_ids, return_inverse=True)[1]
    return joined(inputs.group_index[inputs.trajectory_ids], anchors)


def joined(one: Tensor, other: Tensor) -> Tensor:
    """``[M]`` int64 from 0 on, equal where both are; ``other`` is not negative."""
    return torch.unique(one * (other.max() + 1) + other, return_inverse=True)[1]


def following(inputs: CreditInputs, values: Tensor, end: float | int) -> Tensor:
    """``[M]`` the value ``[M]`` of the next turn of the same trajectory, ``end`` at its last one."""
    trajectory, turn = inputs.trajectory_ids, inputs.turn_ids
    grid = values.new_full((inputs.num_trajectories, int(inputs.turn_counts.max()) + 1), end)
    grid[trajectory, turn] = values
    return grid[trajectory, turn + 1]


def preceding(inputs: CreditInputs, values: Tensor, start: float | int) -> Tensor:
    """``[M]`` the value ``[M]`` of the turn before in the same trajectory, ``start`` at its first one."""
    trajectory, turn = inputs.trajectory_ids, inputs.turn_ids
    grid = values.new_full((inputs.num_trajectories, int(inputs.turn_counts.max()) + 1), start)
    grid[trajectory, turn + 1] = values
    return grid[trajectory, turn]


def turns_left(inputs: CreditInputs) -> Tensor:
    """``[M]`` int64, turns of the trajectory behind each: 0 at the last."""
    return inputs.turn_counts[inputs.trajectory_ids] - 1 - inputs.turn_ids


def earned(inputs: CreditInputs) -> Tensor:
    """``[M]`` reward of each turn, in the wide dtype; without ``turn_rewards`` all of it at the last turn."""
    dtype = wide(inputs.trajectory_ids.device)
    if inputs.turn_rewards is not None:
        return inputs.turn_rewards.to(dtype)
    return torch.where(turns_left(inputs) == 0, inputs.rewards[inputs.trajectory_ids].to(dtype), 0.0)


def discounted(inputs: CreditInputs, values: Tensor, discount: float) -> Tensor:
    """``[M]`` sums over the rest of the trajectory, in the wide dtype: ``S_k = values_k + discount * S_{k+1}``."""
    left, values = turns_left(inputs), values.detach().to(wide(values.device))
    grid = values.new_zeros(inputs.num_trajectories, int(inputs.turn_counts.max()))
    grid[inputs.trajectory_ids, left] = values
    return decayed_sums(grid, discount)[inputs.trajectory_ids, left]
