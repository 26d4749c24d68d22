"""GiGPO: turns of one task that saw the same observation are compared by what they earned from there on."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import check_choice, check_range
from .groups import faded, group_metrics, group_relative_advantages
from .inputs import Credit, CreditInputs
from .metrics import Mean
from .registry import register_credit
from .states import discounted, earned, state_ids
from .tokens import mean_factor, spread


@register_credit("gigpo", requires=("anchor_ids",), presets={"gigpo_std": {"normalization": "mean_std"}})
def gigpo(
    inputs: CreditInputs,
    *,
    step_weight: float = 1.0,
    discount: float = 0.95,
    normalization: str = "mean",
    eps: float = 1e-6,
    outcome_discount: float = 1.0,
) -> Credit:
    """Episode advantage plus a step advantage among turns with the same anchor: ``A~_k = A_i + step_weight * S_k``.

    ``Q_k = r_k + discount * Q_{k+1}`` is the discounted return from turn k; ``S_k = Q_k - mean Q`` over the turns of
    the group with the same ``anchor_ids``, and ``A_i = R_i - mean_g R``; ``"mean_std"`` divides each by its sample
    standard deviation (ddof = 1) plus eps. A turn whose anchor nobody shares has S = 0.

    Source: GiGPO (arXiv 2505.10978), docs/equations.md#gigpo. Where ``turn_rewards`` is None, ``rewards``
    is earned at the last turn.

    Args:
        inputs: the batch; needs ``anchor_ids`` (exact ones, or those of :func:`similarity_anchors`).
        step_weight: omega, at least 0; 0 is GRPO with the same normalisation, bit for bit.
        discount: in (0, 1].
        normalization: ``"mean"`` or ``"mean_std"``.
        eps: stabiliser of the division.
        outcome_discount: in (0, 1], fades R_i in A_i, see :func:`~turncredit.credit.groups.faded`, and not Q_k.

    Returns:
        Credit with ``turn_weights`` = A~_k / A_i (1 where A_i = 0) and details, each ``[M]``: ``step_returns`` Q_k,
        ``step_advantages`` S_k. Metrics: ``anchored_turn_share`` = turns whose anchor another turn of the group
        shares / turns, ``mean_abs_step_advantage`` = mean of |S_k| over turns, and those of
        :func:`~turncredit.credit.groups.group_metrics` for A_i.

    Raises:
        ValueError: an option is out of range, or ``anchor_ids`` is None.
    """
    check_range("gigpo", "step_weight", step_weight, 0, float("inf"), ")")
    check_range("gigpo", "discount", discount, 0, 1, "(")
    check_choice("gigpo", "normalization", normalization, ("mean", "mean_std"))
    divide = normalization == "mean_std"
    outcomes = faded(inputs.rewards, inputs.turn_counts, outcome_discount)
    episode = group_relative_advantages(outcomes, inputs.group_ids, scale_rewards=divide, eps=eps)
    episode = episode.to(inputs.dtype)
    returns = step_returns(inputs, discount=discount)
    anchors = state_ids(inputs)
    steps = group_relative_advantages(returns, anchors, scale_rewards=divide, eps=eps).to(inputs.dtype)
    rows = episode[inputs.trajectory_ids]
    turns = rows + step_weight * steps
    shared = torch.bincount(anchors)[anchors] > 1
    metrics = {
        "anchored_turn_share": Mean(float(shared.double().mean()), shared.numel()),
        "mean_abs_step_advantage": Mean(float(steps.abs().mean()), steps.numel()),
        **group_metrics(inputs, episode),
    }
    details = {"step_returns": returns.to(inputs.dtype), "step_advantages": steps}
    return Credit(spread(turns, inputs.response_mask), mean_factor(turns, rows), metrics, details)


def step_returns(inputs: CreditInputs, *, discount: float = 0.95) -> Tensor:
    """``[M]`` discounted return from each turn on: ``Q_k = r_k + discount * Q_{k+1}``, in the wide dtype.

    Without ``turn_rewards`` the trajectory's reward is earned at its last turn.
    """
    return discounted(inputs, earned(inputs), discount)


def similarity_anchors(inputs: CreditInputs, embeddings: Tensor, *, threshold: float = 0.95) -> Tensor:
    """Anchor ids for turns whose observations are alike, not equal: ``replace(inputs, anchor_ids=...)`` uses them.

    Turns of one group are joined where their cosine is at least ``threshold``, and by transitivity; unlike the
    released code's first-come clusters, this does not depend on the order of the rows.

    Args:
        inputs: the batch, for the group of each row.
        embeddings: ``[M, D]`` float, one vector per turn's observation.
        threshold: cosine in (-1, 1].

    Returns:
        ``[M]`` int64: for each turn the smallest row of its cluster.

    Raises:
        ValueError: the shape differs, a vector is zero or not finite, or the threshold is out of range.
    """
    where = "similarity_anchors"
    check_range(where, "threshold", threshold, -1, 1, "(")
    if embeddings.ndim != 2 or embeddings.shape[0] != inputs.num_rows:
        raise ValueError(
            f"{where}: embeddings must be [M, D] with M = {inputs.num_rows}, got {list(embeddings.shape)}; "
            "encode one observation per turn"
        )
    return join_alike(inputs.group_index[inputs.trajectory_ids], embeddings, threshold=threshold)


def join_alike(groups: Tensor, embeddings: Tensor, *, threshold: float, lonely: Tensor | None = None) -> Tensor:
    """`similarity_anchors` of rows of which nothing but the group is known.

    Args:
        groups: ``[M]`` int64, the group of each row.
        embeddings: ``[M, D]`` float.
        threshold: cosine in (-1, 1].
        lonely: ``[M]`` bool, the rows that look for another: each joins the most similar one of its group, and two
            that are not lonely are never joined but through a tie; None joins all that are alike.

    Raises:
        ValueError: a vector is zero or not finite.
    """
    norms = embeddings.float().norm(dim=-1, keepdim=True)
    bad = ~((norms > 0) & torch.isfinite(norms))
    if bool(bad.any()):
        raise ValueError(
            f"similarity_anchors: embeddings must be finite and not 0, got a vector of norm {float(norms[bad][0])}; "
            "encode the text of every observation"
        )
    unit = embeddings.float() / norms
    anchors = torch.arange(len(groups), device=embeddings.device)
    for group in torch.unique(groups):
        rows = (groups == group).nonzero()[:, 0]
        cosine = (unit[rows] @ unit[rows].T).fill_diagonal_(-2)
        alike = cosine >= threshold - 1e-6
        if lonely is not None:
            nearest = lonely[rows, None] & (cosine >= cosine.amax(1, keepdim=True) - 1e-6)
            alike &= nearest | nearest.T
        alike.fill_diagonal_(True)
        anchors[rows] = rows[_components(alike)]
    return anchors


def _components(linked: Tensor) -> Tensor:
    """``[m]`` smallest member of each node's connected component in a symmetric ``[m, m]`` bool graph."""
    count = linked.shape[0]
    labels = torch.arange(count, device=linked.device)
    while True:
        spread_labels = torch.where(linked, labels[None, :], count).amin(1)
        spread_labels = spread_labels[spread_labels]
        if torch.equal(spread_labels, labels):
            return labels
        labels = spread_labels
