"""EMPG: sure turns are reinforced more, unsure ones less, and turns that lead to a sure one get a bonus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import check_range
from ..groups import group_metrics, trajectory_advantages
from ..inputs import Credit, CreditInputs
from ..metrics import Mean
from ..registry import register_credit
from ..segments import segment_sum, wide
from ..states import turns_left
from ..tokens import mean_factor, spread
from .turns import following, turn_means


@dataclass(frozen=True)
class EntropyFacts:
    """A number a turn, of the turns of groups that have an advantage; small enough to be passed between processes.

    Args:
        advantages: ``[M']`` A_i.
        entropies: ``[M']`` H_k, the mean entropy of the turn's tokens, nats.
        next_entropies: ``[M']`` H_{k+1}; 0 for a last turn.
        last: ``[M']`` bool.
    """

    advantages: Tensor
    entropies: Tensor
    next_entropies: Tensor
    last: Tensor


@dataclass(frozen=True)
class EntropyScale:
    """What the whole batch says: the range of H, the mean of exp(-k h), and the mean of the advantages."""

    low: float
    high: float
    gate: float
    mean: float


def entropy_facts(
    inputs: CreditInputs,
    *,
    scale_rewards: bool = True,
    normalization_scope: str = "trajectory",
    eps: float = 1e-4,
    outcome_discount: float = 1.0,
) -> EntropyFacts:
    """The facts of a batch; options as in :func:`empg`."""
    options = {"scale_rewards": scale_rewards, "normalization_scope": normalization_scope, "eps": eps}
    advantages = trajectory_advantages(inputs, **options, outcome_discount=outcome_discount)  # type: ignore[arg-type]
    return _facts(inputs, advantages)[0]


def entropy_scale(
    parts: Sequence[EntropyFacts], *, sharpness: float = 1.0, future_sharpness: float = 1.0, bonus: float = 0.05
) -> EntropyScale:
    """What all parts of a batch say together; all 0, and a gate of 1, without a turn."""
    joined = (torch.cat([getattr(part, name) for part in parts]) for name in EntropyFacts.__dataclass_fields__)
    facts = EntropyFacts(*joined)
    if not len(facts.entropies):
        return EntropyScale(0.0, 0.0, 1.0, 0.0)
    low, high = float(facts.entropies.min()), float(facts.entropies.max())
    gate = float((-sharpness * _scaled(facts.entropies, low, high)).exp().mean())
    scale = EntropyScale(low, high, gate, 0.0)
    turns = _modulated(facts, scale, sharpness, future_sharpness, bonus)
    return EntropyScale(low, high, gate, float(turns.mean()))


@register_credit("empg", requires=("entropies",))
def empg(
    inputs: CreditInputs,
    *,
    sharpness: float = 1.0,
    future_sharpness: float = 1.0,
    bonus: float = 0.05,
    scale_rewards: bool = True,
    normalization_scope: str = "trajectory",
    eps: float = 1e-4,
    outcome_discount: float = 1.0,
    scale: EntropyScale | None = None,
) -> Credit:
    """GRPO's advantage, modulated by how sure the policy was: ``A~_k = A'_k - mean A'`` over the batch.

        A'_k = A_i g(H_k) + bonus * f(H_{k+1})
        g(H_k) = exp(-sharpness h_k) / mean exp(-sharpness h),   f(H_{k+1}) = exp(-future_sharpness h_{k+1})

    with H_k the mean entropy of turn k's tokens and h its place between the batch's least (0) and largest (1); the last
    turn has no bonus.

    Source: EMPG (arXiv 2509.09265), docs/equations.md#empg. Departs from it in what the batch is: the turns of groups
    that have an advantage, as if the others were not there; a group of one, or with equal rewards, gives exactly 0.

    Args:
        inputs: the batch; needs ``entropies``.
        sharpness, future_sharpness: k and k', at least 0.
        bonus: zeta, at least 0.
        scale_rewards, normalization_scope, eps: as in :func:`~turncredit.credit.groups.group_relative_advantages`.
        outcome_discount: in (0, 1], fades R_i, see :func:`~turncredit.credit.groups.faded`.
        scale: of a batch of which these are a part (:func:`entropy_scale`); None takes these turns'.

    Returns:
        Credit with ``turn_weights`` = A~_k / A_i (1 where A_i = 0) and details ``turn_entropies [M]``. Metrics:
        ``mean_turn_entropy`` = mean of H_k over turns, ``turn_entropy_range`` = largest less least over the batch,
        and those of :func:`~turncredit.credit.groups.group_metrics`.

    Raises:
        ValueError: an option is out of range, or ``entropies`` is None.
    """
    for name, value in (("sharpness", sharpness), ("future_sharpness", future_sharpness), ("bonus", bonus)):
        check_range("empg", name, value, 0, float("inf"), ")")
    advantages = trajectory_advantages(
        inputs,
        scale_rewards=scale_rewards,
        normalization_scope=normalization_scope,
        eps=eps,
        outcome_discount=outcome_discount,
    )
    facts, entropies, heard = _facts(inputs, advantages)
    options = (sharpness, future_sharpness, bonus)
    if scale is None:
        scale = entropy_scale([facts], sharpness=sharpness, future_sharpness=future_sharpness, bonus=bonus)
    turns = torch.zeros_like(entropies)
    turns[heard] = _modulated(facts, scale, *options) - scale.mean
    turns, rows = turns.to(inputs.dtype), advantages[inputs.trajectory_ids]
    metrics = {
        "mean_turn_entropy": Mean(float(entropies.mean()), entropies.numel()),
        "turn_entropy_range": scale.high - scale.low,
        **group_metrics(inputs, advantages),
    }
    details = {"turn_entropies": entropies.to(inputs.dtype)}
    return Credit(spread(turns, inputs.response_mask), mean_factor(turns, rows), metrics, details)


def _facts(inputs: CreditInputs, advantages: Tensor) -> tuple[EntropyFacts, Tensor, Tensor]:
    """The facts, H_k ``[M]`` of all turns, and ``[M]`` bool: turns of groups with an advantage."""
    groups = inputs.group_index
    size = segment_sum(advantages.abs(), groups, int(groups.max()) + 1)
    heard = (size > 0)[groups][inputs.trajectory_ids]
    entropies = turn_means(inputs, inputs.entropies)
    rows = advantages[inputs.trajectory_ids].to(wide(entropies.device))
    values = (rows, entropies, following(inputs, entropies), turns_left(inputs) == 0)
    return EntropyFacts(*(value[heard] for value in values)), entropies, heard


def _scaled(entropies: Tensor, low: float, high: float) -> Tensor:
    return (entropies - low) / (high - low if high > low else 1.0)


def _modulated(
    facts: EntropyFacts, scale: EntropyScale, sharpness: float, future_sharpness: float, bonus: float
) -> Tensor:
    """``[M']`` A'."""
    gate = (-sharpness * _scaled(facts.entropies, scale.low, scale.high)).exp() / scale.gate
    clarity = (-future_sharpness * _scaled(facts.next_entropies, scale.low, scale.high)).exp()
    return facts.advantages * gate + bonus * clarity.masked_fill(facts.last, 0.0)
