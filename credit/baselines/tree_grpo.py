"""Tree-GRPO: branches of one tree, and trees of one task, are compared by their returns."""

from __future__ import annotations

import torch
from torch import Tensor

from ..groups import group_metrics, group_relative_advantages
from ..inputs import Credit, CreditInputs
from ..registry import register_credit
from ..segments import sample_std, segment_extremes, segment_mean
from ..signals import register_signal
from ..states import joined
from ..tokens import mean_factor, spread

_FIX = "let the method tree_grpo play its trees"
register_signal(
    "tree_ids", axes="N", kind="int", fix=_FIX, doc="equal for trajectories of one group that branch off one another"
)
register_signal(
    "leaf_returns",
    axes="M",
    fix=_FIX,
    doc="mean return of the trajectories that pass through a turn",
)


@register_credit("tree_grpo", requires=("tree_ids", "leaf_returns"))
def tree_grpo(inputs: CreditInputs, *, scale_rewards: bool = True, eps: float = 1e-4) -> Credit:
    """``A_k = (L_k - mean_tree) / (std_tree + eps) + (L_k - mean_group) / (std_group + eps)``.

    L_k is the mean return of the leaves behind turn k: of all trajectories of the tree that pass through it. Means and
    sample deviations are over the returns of the tree's, and of the group's, trajectories; a tree or group of equal
    returns adds exactly 0.

    Source: Tree-GRPO (arXiv 2509.21240), docs/equations.md#tree-grpo. The released code normalises the sum of both
    once more, which is not in the paper.

    Args:
        inputs: the batch; needs ``tree_ids`` and ``leaf_returns``.
        scale_rewards: divide by the deviations.
        eps: stabiliser of the divisions.

    Returns:
        Credit with ``turn_weights`` = A_k over the trajectory's group-relative advantage (1 where that is 0) and the
        metrics of :func:`~turncredit.credit.groups.group_metrics`.

    Raises:
        ValueError: a signal is missing.
    """
    episode = group_relative_advantages(inputs.rewards, inputs.group_ids, scale_rewards=scale_rewards, eps=eps)
    episode, rows = episode.to(inputs.dtype), inputs.trajectory_ids
    trees = inputs.signal("tree_ids")
    trees = joined(inputs.group_index, trees - trees.min())
    leaves = inputs.signal("leaf_returns").double()
    turns = sum(_standing(leaves, inputs.rewards, ids, rows, scale_rewards, eps) for ids in (trees, inputs.group_index))
    turns = torch.as_tensor(turns).to(inputs.dtype)
    metrics = group_metrics(inputs, episode)
    return Credit(spread(turns, inputs.response_mask), mean_factor(turns, episode[rows]), metrics)


def _standing(leaves: Tensor, rewards: Tensor, ids: Tensor, rows: Tensor, scale: bool, eps: float) -> Tensor:
    """``[M]`` how much more the leaves of a turn earned than its tree or group, ``ids`` ``[N]``."""
    values, count = rewards.detach().double(), int(ids.max()) + 1
    mean = segment_mean(values, ids, count)
    low, high = segment_extremes(values, ids, count)
    size = sample_std(values - mean[ids], ids, count, torch.ones_like(values)) + eps if scale else torch.ones_like(mean)
    differ = (high - low > 1e-6 * torch.maximum(low.abs(), high.abs()))[ids][rows]
    return torch.where(differ, (leaves - mean[ids][rows]) / size[ids][rows], 0.0)
