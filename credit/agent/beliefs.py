"""Beliefs of success: the group's prior, revised by decayed evidence; and how evidence may be calibrated."""

from __future__ import annotations

import torch
from torch import Tensor

from ..inputs import CreditInputs
from ..segments import decayed_sums, segment_mean, segment_std, wide
from .units import Units


def belief_revisions(
    evidence: Tensor, segment: Tensor, place: Tensor, prior_logits: Tensor, *, gamma: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Beliefs ``B_k = sigmoid(l_0 + c_k)`` with ``c_k = gamma * c_{k-1} + e_k``, and revisions ``B_k - B_{k-1}``.

    Source: AgentOPSD, docs/equations.md#agentopsd, Eq. (6) to (8). The difference is taken as
    ``sigmoid(hi) * sigmoid(-lo) * (1 - exp(lo - hi))``, which neither overflows nor cancels.

    Args:
        evidence: ``[E]`` float, nats.
        segment: ``[E]`` int64, the trajectory of each entry, an index into ``prior_logits``.
        place: ``[E]`` int64, 0, 1, .. within the trajectory, each once.
        prior_logits: ``[N]`` float, logit of B_0.
        gamma: decay in (0, 1].

    Returns:
        Beliefs and revisions, each ``[E]``; the revisions of a trajectory add up to ``B_K - B_0``.

    >>> zero = torch.tensor([0])
    >>> moved = belief_revisions(torch.tensor([1.0986]), zero, zero, torch.tensor([0.0]))
    >>> [round(value.item(), 4) for value in moved]
    [0.75, 0.25]
    """
    grid = evidence.new_zeros(prior_logits.shape[0], int(place.max()) + 1)
    grid[segment, place] = evidence
    logits = prior_logits[:, None] + decayed_sums(grid, gamma)
    before = torch.cat([prior_logits[:, None], logits[:, :-1]], dim=1)
    new, old = logits[segment, place], before[segment, place]
    high, low = torch.maximum(new, old), torch.minimum(new, old)
    size = high.sigmoid() * (-low).sigmoid() * -torch.expm1(low - high)
    return new.sigmoid(), torch.where(new >= old, size, -size)


def initial_beliefs(inputs: CreditInputs, prior: str, eps: float) -> Tensor:
    successes = inputs.successes.detach().to(wide(inputs.successes.device))
    if prior == "none":
        return torch.full_like(successes, 0.5)
    ids = inputs.group_index
    return segment_mean(successes, ids, inputs.num_trajectories)[ids].clamp(eps, 1 - eps)


def calibrated_evidence(
    units: Units, inputs: CreditInputs, centering: str | None, scale: float | str | None, eps: float
) -> Tensor:
    evidence, group = units.evidence, inputs.group_index[units.members][units.trajectory]
    groups = inputs.num_trajectories
    if centering is not None:
        ids = units.trajectory if centering == "trajectory" else group
        evidence = evidence - segment_mean(evidence, ids, groups)[ids]
    if scale == "group_std":
        return evidence / (segment_std(evidence, group, groups) + eps)[group]
    return evidence if scale is None else evidence / float(scale)
