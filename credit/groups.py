"""Group-relative advantages: how much better a rollout did than the other rollouts of its task."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import check_choice, check_range
from .inputs import CreditInputs
from .metrics import Mean
from .segments import sample_std, segment_extremes, segment_mean, segment_sum, wide

_SCOPES = ("trajectory", "turn")
_ROUNDING = 1e-6
_AT_THE_MEAN = 0.25  # of that: a few float32 roundings of the largest reward, and less than half an unequal pair's gap


def group_relative_advantages(
    rewards: Tensor,
    group_ids: Tensor,
    *,
    scale_rewards: bool = True,
    normalization_scope: str = "trajectory",
    turn_counts: Tensor | None = None,
    eps: float = 1e-4,
) -> Tensor:
    """Advantage of each trajectory over its group: ``A_i = (R_i - mean_g R) / (std_g R + eps)``.

    The standard deviation is the sample one (ddof = 1). Rewards of a group that differ by less than a millionth of
    the largest of them, or by less than a thousandth of ``eps``, count as equal: such a group, like a group of one,
    gives exactly 0. So does a reward that lies within a quarter of that from its group's mean: this is the one place
    that decides whether an advantage counts as 0, and what divides by one or takes its sign asks whether it *is* 0.

    Source: GRPO (arXiv 2402.03300); AgentOPSD (arXiv 2608.05987), Eq. 2; docs/equations.md#shared-definitions, Eq. (2).
    Without the division, Dr.GRPO (arXiv 2503.20783).

    Args:
        rewards: ``[N]`` float, return of each trajectory.
        group_ids: ``[N]`` int64, any distinct integers, in any order.
        scale_rewards: divide by the standard deviation.
        normalization_scope: ``"trajectory"`` counts each rollout once, ``"turn"`` once per turn, as verl-agent does.
        turn_counts: ``[N]`` int, turns of each trajectory; needed for ``"turn"``.
        eps: added to the standard deviation.

    Returns:
        ``[N]`` advantages in the dtype of ``rewards`` (half precision gives float32).

    Raises:
        TypeError: scale_rewards is no flag, rewards are not floating point, or group_ids are not integers.
        ValueError: shapes differ, rewards are not finite, the scope is unknown or lacks ``turn_counts``.

    >>> group_relative_advantages(torch.tensor([1.0, 0.0]), torch.tensor([7, 7]), scale_rewards=False)
    tensor([ 0.5000, -0.5000])
    """
    if scale_rewards not in (True, False):  # a text would count as True
        raise TypeError(
            f"group_relative_advantages: scale_rewards must be True or False, got {scale_rewards!r}; False is Dr.GRPO's"
        )
    _check(rewards, group_ids, normalization_scope, turn_counts, eps)
    values = rewards.detach().to(wide(rewards.device))
    unique, ids = torch.unique(group_ids, return_inverse=True)
    count = unique.numel()
    per_turn = normalization_scope == "turn" and turn_counts is not None
    weights = turn_counts.to(values.dtype) if per_turn and turn_counts is not None else torch.ones_like(values)
    centred = values - segment_mean(values, ids, count, weights)[ids]
    low, high = segment_extremes(values, ids, count)
    advantages = centred
    if scale_rewards:
        advantages = centred / (sample_std(centred, ids, count, weights) + eps)[ids]
    rounding = _ROUNDING * torch.maximum(low.abs(), high.abs()) + 1e-3 * eps
    zero = (high - low <= rounding)[ids] | (centred.abs() <= (_AT_THE_MEAN * rounding)[ids])
    return advantages.masked_fill(zero, 0.0).to(torch.float64 if rewards.dtype == torch.float64 else torch.float32)


def leave_one_out(values: Tensor, group_ids: Tensor, owners: Tensor | None = None, *, tolerance: float = 0.0) -> Tensor:
    """How far each value lies above the mean of the others' of its group: RLOO's baseline.

    Equal values, to a millionth of the largest, give exactly 0, and so does a group with one owner.

    Source: RLOO (arXiv 2402.14740) and LOOP (arXiv 2502.01600), docs/equations.md#istar.

    Args:
        values: ``[E]`` float.
        group_ids: ``[E]`` int64, any integers.
        owners: ``[E]`` int64, whose each value is; the others' are those of other owners. None: each its own.
        tolerance: differences up to this count as none, too.

    Returns:
        ``[E]`` in the wide dtype.

    >>> leave_one_out(torch.tensor([1.0, 0.0, 0.5]), torch.tensor([7, 7, 7])).tolist()
    [0.75, -0.75, 0.0]
    """
    wide_values = values.detach().to(wide(values.device))
    groups, ids = torch.unique(group_ids, return_inverse=True)
    owners = torch.arange(len(values), device=values.device) if owners is None else owners
    names, own = torch.unique(torch.stack([ids, owners]), dim=1, return_inverse=True)
    ones = torch.ones_like(wide_values)
    total, count = (segment_sum(x, ids, len(groups))[ids] for x in (wide_values, ones))
    mine, members = (segment_sum(x, own, names.shape[1])[own] for x in (wide_values, ones))
    others = count - members
    centred = wide_values - (total - mine) / others.clamp(min=1)
    low, high = segment_extremes(wide_values, ids, len(groups))
    rounding = _ROUNDING * torch.maximum(low.abs(), high.abs()) + tolerance
    zero = (others == 0) | (high - low <= rounding)[ids] | (centred.abs() <= (_AT_THE_MEAN * rounding)[ids])
    return centred.masked_fill(zero, 0.0)


def faded(rewards: Tensor, turn_counts: Tensor, outcome_discount: float) -> Tensor:
    """Returns that fade with the length of their trajectory: ``outcome_discount ** K_i * R_i``.

    Short episodes are preferred: among successes of a group the longer ones have a lower, perhaps a negative,
    advantage. A negative return becomes the smaller the longer its episode was.

    Args:
        rewards: ``[N]`` float.
        turn_counts: ``[N]`` int64, K_i.
        outcome_discount: in (0, 1]; 1 gives ``rewards`` as they are.

    Returns:
        ``[N]``, in the wide dtype where they fade.

    Raises:
        ValueError: the discount is out of range.

    >>> faded(torch.tensor([1.0, 1.0, -1.0]), torch.tensor([1, 2, 2]), 0.5).tolist()
    [0.5, 0.25, -0.25]
    """
    check_range("faded", "outcome_discount", outcome_discount, 0, 1, "(")
    if outcome_discount == 1:
        return rewards
    values = rewards.detach().to(wide(rewards.device))
    return values * outcome_discount ** turn_counts.to(values.dtype)


def trajectory_advantages(
    inputs: CreditInputs,
    *,
    scale_rewards: bool,
    normalization_scope: str,
    eps: float,
    outcome_discount: float = 1.0,
) -> Tensor:
    """``[N]`` group-relative advantages of a batch in ``inputs.dtype``, of returns that may fade."""
    advantages = group_relative_advantages(
        faded(inputs.rewards, inputs.turn_counts, outcome_discount),
        inputs.group_ids,
        scale_rewards=scale_rewards,
        normalization_scope=normalization_scope,
        turn_counts=inputs.turn_counts,
        eps=eps,
    )
    return advantages.to(inputs.dtype)


def group_metrics(inputs: CreditInputs, advantages: Tensor) -> dict[str, float]:
    """Scalars of the group baseline.

    ``mean_abs_advantage`` = (1/N) sum_i |A_i|; ``zero_advantage_group_share`` = groups whose A_i are all 0 / groups.
    """
    ids = inputs.group_index
    count = int(ids.max()) + 1
    size = segment_sum(advantages.abs(), ids, count)
    return {
        "mean_abs_advantage": Mean(float(advantages.abs().mean()), advantages.numel()),
        "zero_advantage_group_share": Mean(float((size == 0).double().mean()), count),
    }


def _check(rewards: Tensor, group_ids: Tensor, scope: str, turn_counts: Tensor | None, eps: float) -> None:
    where = "group_relative_advantages"
    check_choice(where, "normalization_scope", scope, _SCOPES)
    check_range(where, "eps", eps, 0, float("inf"), ")")
    if not rewards.is_floating_point():
        raise TypeError(f"{where}: rewards must be floating point, got {rewards.dtype}; call .float()")
    if group_ids.is_floating_point() or group_ids.dtype == torch.bool:
        raise TypeError(f"{where}: group_ids must be integers, got {group_ids.dtype}; call .long()")
    if rewards.ndim != 1 or rewards.numel() == 0:
        raise ValueError(f"{where}: rewards must be [N], not empty, got {list(rewards.shape)}; one per trajectory")
    for name, value in (("group_ids", group_ids), ("turn_counts", turn_counts)):
        if value is not None and value.shape != rewards.shape:
            raise ValueError(
                f"{where}: {name} must be [N] = {list(rewards.shape)}, got {list(value.shape)}; one per trajectory"
            )
    if not bool(torch.isfinite(rewards).all()):
        index = int((~torch.isfinite(rewards)).nonzero()[0, 0])
        raise ValueError(
            f"{where}: rewards must be finite, got {float(rewards[index])} at index {index}; "
            "leave out a rollout whose reward is missing"
        )
    if scope == "turn" and turn_counts is None:
        raise ValueError(
            f"{where}: turn_counts must be given for the scope 'turn', got None; pass turns per trajectory"
        )
    if turn_counts is not None and not bool((turn_counts > 0).all()):
        raise ValueError(
            f"{where}: turn_counts must be positive, got {int(turn_counts.min())}; leave out trajectories without turns"
        )
