"""What these methods share: turns of a trajectory side by side, rewards that add up to the return, sums of rewards."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import states
from ..groups import group_relative_advantages
from ..inputs import CreditInputs
from ..segments import segment_mean, segment_sum, wide
from ..states import discounted, turns_left


def following(inputs: CreditInputs, values: Tensor) -> Tensor:
    """``[M]`` value of the turn after each turn, 0 after the last, in the wide dtype."""
    return states.following(inputs, values.detach().to(wide(values.device)), 0.0)


def earned(inputs: CreditInputs) -> Tensor:
    """``[M]`` rewards of turns that add up to the return, in the wide dtype.

    Those of ``turn_rewards``, and what the return has beyond them at the last turn, also where an episode was cut off.
    """
    owner = inputs.trajectory_ids
    rewards = inputs.rewards.detach().to(wide(owner.device))
    own = torch.zeros(inputs.num_rows, dtype=rewards.dtype, device=owner.device)
    if inputs.turn_rewards is not None:
        own = inputs.turn_rewards.detach().to(rewards.dtype)
    rest = rewards - segment_sum(own, owner, inputs.num_trajectories)
    return own + torch.where(turns_left(inputs) == 0, rest[owner], 0.0)


def normalized_sums(
    inputs: CreditInputs, rewards: Tensor, *, discount: float, scale_rewards: bool, eps: float
) -> Tensor:
    """``[M]`` ``A_k = sum_{j >= k} discount^{j - k} z_j`` with z the turns' rewards standardised over their group.

    Exactly 0 in a group of one rollout, and in one whose turns all have the same reward.
    """
    groups = inputs.group_index[inputs.trajectory_ids]
    z = group_relative_advantages(rewards, groups, scale_rewards=scale_rewards, eps=eps)
    alone = torch.bincount(inputs.group_index)[groups] == 1
    return discounted(inputs, z.masked_fill(alone, 0.0), discount)


def edge_weights(inputs: CreditInputs, *, last: bool) -> Tensor:
    """``[M, T]`` float32: n_i, the tokens of the trajectory, at each turn's first (or last) sampled token, else 0.

    A loss that stands at these tokens with these weights, and is averaged ``"seq-mean-token-mean"``, is the mean over
    trajectories of the sum over turns.
    """
    mask = inputs.response_mask
    index = mask.to(torch.int8).argmax(1)
    if last:
        index = mask.shape[1] - 1 - mask.flip(1).to(torch.int8).argmax(1)
    tokens = segment_sum(inputs.token_counts, inputs.trajectory_ids, inputs.num_trajectories)[inputs.trajectory_ids]
    out = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    return out.scatter_(1, index[:, None], tokens.to(out.dtype)[:, None])


def turn_means(inputs: CreditInputs, values: Tensor) -> Tensor:
    """``[M]`` mean of ``[M, T]`` over each turn's sampled tokens, in the wide dtype."""
    mask = inputs.response_mask
    row, column = mask.nonzero(as_tuple=True)
    kept = values.detach()[row, column].to(wide(mask.device))
    return segment_mean(kept, row, inputs.num_rows)
