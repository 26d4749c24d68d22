"""HGPO: turns are compared with those that share more and more of their history."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import check_range
from ..groups import faded, group_metrics, group_relative_advantages
from ..inputs import Credit, CreditInputs
from ..metrics import Mean
from ..registry import register_credit
from ..segments import segment_std
from ..states import discounted, earned, joined, preceding, state_ids
from ..tokens import mean_factor, spread


@register_credit("hgpo", requires=("anchor_ids",))
def hgpo(
    inputs: CreditInputs,
    *,
    history: int = 2,
    alpha: float = 1.0,
    discount: float = 0.95,
    eps: float = 1e-6,
    outcome_discount: float = 1.0,
) -> Credit:
    """Weighted mean over depths of a turn's standing among those with the same last k anchors.

    ``A~ = sum_k w_k (Q - mean_{C_k} Q) / (std_{C_k} Q + eps)`` for depths k = 1 .. history + 1, where C_k are the turns
    of the group whose last k anchors agree (at least two of them; population deviation), w_k is proportional to
    ``(k + 1) ** alpha`` over the depths that have a C_k, and ``Q_k = r_k + discount * Q_{k+1}``. A turn in no C_k has
    the episode's advantage ``A_i`` of GRPO.

    Source: HGPO (arXiv 2602.22817), docs/equations.md#hgpo. In the released code a turn in no cluster has exactly 0, so
    that whoever explores alone learns nothing.

    Args:
        inputs: the batch; needs ``anchor_ids``.
        history: h, turns of history that the policy reads, at least 0; 0 compares by the anchor alone.
        alpha: exponent of the weights, at least 0; 0 weighs all depths alike.
        discount: in (0, 1].
        eps: stabiliser of the divisions.
        outcome_discount: in (0, 1], fades R_i in A_i, see :func:`~turncredit.credit.groups.faded`, and not Q_k.

    Returns:
        Credit with ``turn_weights`` = A~_k / A_i (1 where A_i = 0) and ``details["step_advantages"]`` ``[M]``, A~.
        Metrics: ``clustered_turn_share``, the share of turns in some C_k, ``mean_cluster_depth``, the mean number of
        depths of these, and those of :func:`~turncredit.credit.groups.group_metrics` for A_i.

    Raises:
        TypeError, ValueError: an option is out of range or of another kind, or ``anchor_ids`` is None.
    """
    if type(history) is not int or history < 0:
        raise ValueError(f"hgpo: history must be a whole number of at least 0, got {history!r}; write 2")
    check_range("hgpo", "alpha", alpha, 0, float("inf"), ")")
    check_range("hgpo", "discount", discount, 0, 1, "(")
    check_range("hgpo", "eps", eps, 0, float("inf"), ")")
    outcomes = faded(inputs.rewards, inputs.turn_counts, outcome_discount)
    episode = group_relative_advantages(outcomes, inputs.group_ids).to(inputs.dtype)
    returns = discounted(inputs, earned(inputs), discount)
    total, weights, depths = (torch.zeros_like(returns) for _ in range(3))
    for depth, cluster in enumerate(_clusters(inputs, history + 1), 1):
        shared = (torch.bincount(cluster)[cluster] > 1).to(returns.dtype)
        weight = (depth + 1) ** alpha * shared
        total += weight * _standing(returns, cluster, eps)
        weights += weight
        depths += shared
    rows = episode[inputs.trajectory_ids]
    found = weights > 0
    turns = torch.where(found, (total / weights.clamp(min=1e-300)).to(rows.dtype), rows)
    metrics = {
        "clustered_turn_share": Mean(float(found.double().mean()), found.numel()),
        "mean_cluster_depth": Mean(float(depths.sum() / found.sum().clamp(min=1)), float(found.sum())),
        **group_metrics(inputs, episode),
    }
    return Credit(spread(turns, inputs.response_mask), mean_factor(turns, rows), metrics, {"step_advantages": turns})


def _clusters(inputs: CreditInputs, depth: int) -> list[Tensor]:
    """Depth by depth ``[M]`` int64: equal for turns of a group whose last 1, 2, .. anchors agree, as far as there are
    so many; a history that begins agrees with none that does not."""
    earlier = cluster = state_ids(inputs)
    found = [cluster]
    for _ in range(depth - 1):
        earlier = preceding(inputs, earlier, -1)
        cluster = joined(cluster, earlier + 1)
        found.append(cluster)
    return found


def _standing(values: Tensor, ids: Tensor, eps: float) -> Tensor:
    """``(x - mean) / (population deviation + eps)`` within equal ids, exactly 0 where all are equal."""
    centred = group_relative_advantages(values, ids, scale_rewards=False, eps=eps)
    return (centred / (segment_std(values, ids, int(ids.max()) + 1) + eps)[ids]).masked_fill(centred == 0, 0.0)
