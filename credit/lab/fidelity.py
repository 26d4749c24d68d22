"""How right is the credit? A method's turns against exact advantages, per trajectory, with intervals over seeds.

All measures look at the credit ``c_k`` a turn's tokens receive. Where credit is ``A_i w_k`` with w > 0, ranking ``c``
against the exact advantage is the same as ranking ``w`` against the outcome-aligned one, ``sign(A_i) adv_k``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import check_range
from ..inputs import Credit, CreditInputs
from .synthetic import SyntheticBatch, exact_gradient

_TIE = 1e-5
_T_975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip


@dataclass(frozen=True)
class Fidelity:
    """Means over trajectories; a measure without a single usable trajectory is NaN.

    Args:
        rank_correlation: Spearman's rho of credit and exact advantage within a trajectory, in [-1, 1]; equal credit
            for all turns counts 0. Over trajectories in which the exact advantages differ. Many redundant turns are
            tied in truth, so any difference a method makes among them costs: the exact advantages themselves, tiny
            ones included, stay below 1.
        pair_accuracy: share of the pairs of turns with different exact advantages that the credit orders rightly, in
            [0, 1]; a tie counts one half. Over the same trajectories; 1 can be reached.
        pivotal_recall: share of the outcome's m pivotal turns found among the m turns with most aligned credit, in
            [0, 1]; ties are broken at random, in expectation.
        pivotal_chance: the recall of equal credit, m / K: what GRPO gets.
        redundant_share: share of the absolute credit (token-weighted) that lies on redundant turns, in [0, 1].
        sign_errors: share of the pivotal turns, for better or worse, whose credit has the wrong sign, in [0, 1].
        direction_errors: share of the same turns whose credit deviates from the trajectory's mean credit to the wrong
            side, in [0, 1]; no deviation counts one half.
        trajectories: trajectories judged: those of groups with both outcomes.
    """

    rank_correlation: float
    pair_accuracy: float
    pivotal_recall: float
    pivotal_chance: float
    redundant_share: float
    sign_errors: float
    direction_errors: float
    trajectories: int


MEASURES = ("rank_correlation", "pair_accuracy", "pivotal_recall", "redundant_share", "sign_errors", "direction_errors")


def turn_credit(credit: Credit, inputs: CreditInputs) -> Tensor:
    """``[M]`` float64, mean advantage of the sampled tokens of each turn.

    Raises:
        ValueError: the credit does not belong to the batch.
    """
    if credit.advantages.shape != inputs.response_mask.shape:
        raise ValueError(
            f"turn_credit: credit.advantages must have shape {list(inputs.response_mask.shape)}, got "
            f"{list(credit.advantages.shape)}; pass the batch the method was run on"
        )
    inside = torch.where(inputs.response_mask, credit.advantages.double(), 0.0)
    return inside.sum(-1) / inputs.token_counts


def credit_fidelity(
    credit: Credit | Tensor,
    inputs: CreditInputs,
    exact_advantages: Tensor,
    *,
    pivotal: float = 0.1,
    negligible: float = 0.01,
) -> Fidelity:
    """Compare a method's credit with the exact advantages of the same turns.

    A turn is *pivotal* if its exact advantage is at least ``pivotal`` in size, and the outcome's pivotal turn if it
    also has the sign of A_i: the turn that won, or lost, the episode. It is *redundant* below ``negligible``; such
    advantages count as 0 in the ranks. Groups whose rewards are all equal are left out: they teach nothing.

    Args:
        credit: what the method returned, or ``[M]`` float credit per turn.
        inputs: the batch it was run on.
        exact_advantages: ``[M]`` float, Q - V of each turn, units of the return.
        pivotal: least size of a pivotal advantage.
        negligible: size below which an advantage is redundant.

    Returns:
        Fidelity: each measure averaged over the trajectories it is defined for.

    Raises:
        ValueError: a shape differs, credit is not finite, or the thresholds are out of order.
    """
    where = "credit_fidelity"
    check_range(where, "negligible", negligible, 0, float("inf"))
    check_range(where, "pivotal", pivotal, negligible, float("inf"))
    given = _given(where, credit, inputs)
    _check_turns(where, "exact_advantages", exact_advantages, inputs)
    truth = torch.where(exact_advantages.abs() < negligible, 0.0, exact_advantages.double())
    sign = _outcome(inputs)
    judged = sign != 0
    table = _Table(inputs)
    value, exact, tokens = table(given), table(truth), table(inputs.token_counts.double())
    real = table.real & judged[:, None]
    value, exact, tokens, sign = value[judged], exact[judged], tokens[judged], sign[judged, None]
    real = real[judged]
    size = torch.where(real, value.abs(), 0.0).amax(-1, keepdim=True).clamp(min=1e-300)
    value = (value / size / _TIE).round() * _TIE
    rho, pairs, differ = _order(value, exact, real)
    big = real & (exact.abs() >= pivotal)
    wanted = big & (exact * sign > 0)
    mean = (value * tokens * real).sum(-1, keepdim=True) / (tokens * real).sum(-1, keepdim=True)
    side = torch.where((value - mean).abs() < 2 * _TIE, 0.0, value - mean).sign() * exact.sign()
    absolute = value.abs() * tokens * real
    some = big.any(-1)
    return Fidelity(
        rank_correlation=_mean(rho, differ),
        pair_accuracy=_mean(pairs, differ),
        pivotal_recall=_mean(_recall(value * sign, wanted, real), wanted.any(-1)),
        pivotal_chance=_mean(wanted.double().sum(-1) / real.sum(-1), wanted.any(-1)),
        redundant_share=_mean((absolute * (exact == 0)).sum(-1) / absolute.sum(-1).clamp(min=1e-300), real.any(-1)),
        sign_errors=_mean(_share(value.sign() * exact.sign() <= 0, big), some),
        direction_errors=_mean(_share((1 - side) / 2, big), some),
        trajectories=int(judged.sum()),
    )


def gradient_cosine(credit: Credit | Tensor, batch: SyntheticBatch) -> float:
    """Cosine of the policy gradient a batch takes under a credit with the exact gradient of success, in [-1, 1].

    Both in the logits of a tabular softmax policy, at the policy that sampled the batch: ``sum_k c_k grad log pi(a_k |
    s_k)`` over all turns, and that of V_0(start). Unlike the order of pairs it sees where the mass of the credit lies,
    between trajectories too, and how noisy it is; it does not see a bias that adds up over updates. Sampling alone
    keeps the exact advantages of a small batch below 1. The size of the credit does not matter, above rounding (1e-12).

    Args:
        credit: what the method returned, or ``[M]`` float credit per turn.
        batch: the synthetic batch it was run on.

    Returns:
        The cosine; NaN where a gradient is zero: nothing was learnt, as by GRPO when no group has both outcomes.

    Raises:
        ValueError: the credit does not belong to the batch or is not finite.
    """
    given, episodes = _given("gradient_cosine", credit, batch.inputs), batch.episodes
    trajectory, turn = episodes.turns
    state, action = episodes.states[trajectory, turn], episodes.actions[trajectory, turn]
    policy = episodes.process.policy
    found = torch.zeros_like(policy).index_put_((state, action), given, accumulate=True)
    found = found - found.sum(-1, keepdim=True) * policy
    exact = exact_gradient(episodes.process, batch.values)
    norms = found.norm() * exact.norm()
    return float((found * exact).sum() / norms) if float(norms) > 1e-12 else math.nan


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of the 95% Student-t interval over independent seeds.

    One value has no interval: its half-width is NaN.

    Raises:
        ValueError: no values.

    >>> confidence_interval([1.0, 1.0, 1.0])
    (1.0, 0.0)
    """
    if not values:
        raise ValueError("confidence_interval: values must hold at least one number, got none; run a seed")
    count = len(values)
    mean = sum(values) / count
    if count == 1:
        return mean, math.nan
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    return mean, _t_quantile(count - 1) * spread / math.sqrt(count)


def paired_interval(values: Sequence[float], baseline: Sequence[float]) -> tuple[float, float]:
    """Mean and 95% half-width of ``values - baseline``, seed by seed.

    Raises:
        ValueError: the two differ in length.
    """
    if len(values) != len(baseline):
        raise ValueError(
            f"paired_interval: baseline must have as many seeds as values ({len(values)}), got {len(baseline)}; "
            "run both on the same seeds"
        )
    return confidence_interval([value - other for value, other in zip(values, baseline, strict=True)])


def _given(where: str, credit: Credit | Tensor, inputs: CreditInputs) -> Tensor:
    """``[M]`` float64 credit per turn, checked."""
    given = turn_credit(credit, inputs) if isinstance(credit, Credit) else credit.double()
    _check_turns(where, "credit", given, inputs)
    return given


def _check_turns(where: str, name: str, value: Tensor, inputs: CreditInputs) -> None:
    if value.shape != inputs.trajectory_ids.shape:
        raise ValueError(
            f"{where}: {name} must be [M] = {list(inputs.trajectory_ids.shape)}, got {list(value.shape)}; "
            "give one value per turn"
        )
    if not bool(value.isfinite().all()):
        raise ValueError(f"{where}: {name} must be finite, got {value[~value.isfinite()][0]}; check the method")


class _Table:
    """Lays ``[M]`` rows out as ``[N, K]``, trajectory by turn; ``real`` tells entries from padding."""

    def __init__(self, inputs: CreditInputs) -> None:
        self.place = inputs.trajectory_ids, inputs.turn_ids
        self.shape = inputs.num_trajectories, int(inputs.turn_ids.max()) + 1
        self.real = torch.zeros(self.shape, dtype=torch.bool).index_put_(self.place, torch.tensor(True))

    def __call__(self, rows: Tensor) -> Tensor:
        return torch.zeros(self.shape, dtype=torch.float64).index_put_(self.place, rows.double())


def _outcome(inputs: CreditInputs) -> Tensor:
    """``[N]`` sign of each return against its group's mean; 0 where the group's returns are equal."""
    index, rewards = inputs.group_index, inputs.rewards.double()
    count = int(index.max()) + 1
    total = torch.zeros(2, count, dtype=torch.float64)
    total.index_add_(1, index, torch.stack([rewards, torch.ones_like(rewards)]))
    centred = rewards - (total[0] / total[1])[index]
    return torch.where(centred.abs() < 1e-9, 0.0, centred).sign()


def _order(value: Tensor, exact: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``[N]`` Spearman's rho (average ranks for ties), share of pairs in the right order, and where both are defined.

    The mean sign of ``x_k - x_j`` over j is the centred average rank of k, up to a constant.
    """
    both = (real[:, :, None] & real[:, None, :]).double()
    signs = [(x[:, :, None] - x[:, None, :]).sign() * both for x in (value, exact)]
    left, right = (sign.sum(-1) for sign in signs)
    norms = left.square().sum(-1) * right.square().sum(-1)
    rho = (left * right).sum(-1) / norms.sqrt().clamp(min=1e-12)
    pairs = signs[1].abs().sum((-1, -2))
    concordant = (signs[0] * signs[1]).sum((-1, -2)) / pairs.clamp(min=1)
    return rho, (1 + concordant) / 2, pairs > 0


def _recall(value: Tensor, wanted: Tensor, real: Tensor) -> Tensor:
    """Expected share of ``wanted`` among the ``wanted.sum()`` highest entries of each row."""
    wanted_count = wanted.sum(-1, keepdim=True)
    other = real[:, None, :]
    above = ((value[:, None, :] > value[:, :, None]) & other).sum(-1)
    equal = ((value[:, None, :] == value[:, :, None]) & other).sum(-1)
    chance = ((wanted_count - above).double() / equal.clamp(min=1)).clamp(0, 1)
    return (chance * wanted).sum(-1) / wanted_count.squeeze(-1).clamp(min=1)


def _share(value: Tensor, among: Tensor) -> Tensor:
    return (value.double() * among).sum(-1) / among.sum(-1).clamp(min=1)


def _mean(value: Tensor, defined: Tensor) -> float:
    return float(value[defined].double().mean()) if bool(defined.any()) else math.nan


def _t_quantile(freedom: int) -> float:
    """97.5% quantile of Student's t; beyond the table its expansion about the normal's."""
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
