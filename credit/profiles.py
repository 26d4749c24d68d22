"""AlignOPSD stage 2, part one: which sibling decisions a turn resembles, and how that changes from turn to turn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ._checks import check_choice, check_range
from .correspondence import Correspondence, TaskBlock
from .sources import check_selection

DISTANCES = ("jensen_shannon", "entropy", "cosine")


@dataclass(frozen=True)
class Divergence:
    """How far each turn's correspondence profile is from that of the turn before it.

    Args:
        values: ``[M]`` float in [0, 1], D; 0 where undefined.
        defined: ``[M]`` bool; always False for a first turn.
        profile_valid: ``[M]`` bool, whether an eligible source of the turn reaches the threshold.
    """

    values: Tensor
    defined: Tensor
    profile_valid: Tensor


def dense_profiles(block: TaskBlock, *, profile_temperature: float = 0.1) -> Tensor:
    """Correspondence profile of every turn of a task: ``P_u = softmax over all eligible v of H[v, u] / T_prof``.

    The threshold gamma_H does not truncate it. Source: AlignOPSD, stage 2 (METHODS.md section 2.2).

    Args:
        block: the task.
        profile_temperature: T_prof > 0.

    Returns:
        ``[m, m]`` float ``[source, target]``; a column sums to 1, or is 0 where no source is eligible.

    Raises:
        ValueError: the temperature is not positive.
    """
    check_range("dense_profiles", "profile_temperature", profile_temperature, 0, float("inf"), "()")
    logits = (block.similarity / profile_temperature).masked_fill(~block.eligible, -torch.inf)
    return torch.where(block.eligible, logits.softmax(dim=0), 0.0)


def profile_divergence(
    correspondence: Correspondence,
    num_rows: int,
    *,
    similarity_threshold: float = 0.8,
    profile_temperature: float = 0.1,
    distance: str = "jensen_shannon",
) -> Divergence:
    """Distance between the profiles of consecutive turns of a trajectory.

    ``D_u = JSD(P_{u-1}, P_u) / ln 2``; defined where both profiles are valid (some eligible source has
    ``H >= gamma_H``) and both turns have the same eligible sources.

    Source: AlignOPSD, stage 2 (METHODS.md section 2.2). Two further distances, in our own reading: ``"entropy"`` is
    ``|S(P_u) - S(P_{u-1})| / ln(eligible sources)`` and ``"cosine"`` is ``1 - cos(P_{u-1}, P_u)``.

    Args:
        correspondence: blocks per task.
        num_rows: M, rows of the batch; rows outside every block are undefined.
        similarity_threshold: gamma_H in [-1, 1).
        profile_temperature: T_prof > 0.
        distance: ``"jensen_shannon"``, ``"entropy"`` or ``"cosine"``.

    Returns:
        Divergence on the device of the blocks.

    Raises:
        ValueError: an option is out of range, or a block names a row beyond ``num_rows``.
    """
    where = "profile_divergence"
    check_selection(where, similarity_threshold, 1)
    check_choice(where, "distance", distance, DISTANCES)
    first = correspondence.blocks[0].similarity if correspondence.blocks else torch.empty(0)
    values = torch.zeros(num_rows, dtype=torch.promote_types(first.dtype, torch.float32), device=first.device)
    defined = torch.zeros(num_rows, dtype=torch.bool, device=first.device)
    valid = torch.zeros_like(defined)
    for block in correspondence.blocks:
        if block.rows.numel() and int(block.rows.max()) >= num_rows:
            raise ValueError(
                f"{where}: correspondence must name rows below num_rows ({num_rows}), got {int(block.rows.max())}; "
                "build it from the same batch"
            )
        profiles = dense_profiles(block, profile_temperature=profile_temperature)
        reached = (block.eligible & (block.similarity >= similarity_threshold)).any(dim=0)
        known = _consecutive(block) & reached[1:] & reached[:-1]
        known &= (block.eligible[:, 1:] == block.eligible[:, :-1]).all(dim=0)
        distances = _distance(profiles, block.eligible, distance)
        values[block.rows[1:]] = torch.where(known, distances, 0.0).to(values.dtype)
        defined[block.rows[1:]] = known
        valid[block.rows] = reached
    return Divergence(values, defined, valid)


def boundary_threshold(
    defined_values: Tensor, *, quantile: float = 0.8, low: float = 0.01, high: float = 0.10
) -> float:
    """Threshold above which a divergence marks a boundary: ``clip(quantile_q(D), low, high)``, linear interpolation.

    Several processes: gather the defined values of all of them, call this once on the union, and pass the result to
    each ``align_opsd(..., threshold=...)``.

    Args:
        defined_values: ``[E]`` float, all defined D of the batch, in any order.
        quantile: in [0, 1].
        low: lower clip.
        high: upper clip.

    Returns:
        The threshold; ``high`` when no D is defined (then there is no candidate either).

    Raises:
        ValueError: a value is not finite or an option is out of range.

    >>> boundary_threshold(torch.tensor([0.02, 0.03, 0.05, 0.06]), quantile=0.5)
    0.04
    """
    where = "boundary_threshold"
    check_range(where, "quantile", quantile, 0, 1)
    check_range(where, "high", high, 0, 1)
    check_range(where, "low", low, 0, high)
    values = defined_values.detach().flatten().double().sort().values
    if not bool(values.isfinite().all()):
        raise ValueError(f"{where}: defined_values must be finite, got {float(values[-1])}; select D where defined")
    if not values.numel():
        return high
    place = quantile * (values.numel() - 1)
    below = min(int(place), values.numel() - 1)
    above = min(below + 1, values.numel() - 1)
    start, end = float(values[below]), float(values[above])
    return min(max(start + (place - below) * (end - start), low), high)


def _consecutive(block: TaskBlock) -> Tensor:
    """``[m - 1]`` bool: turn u of the block directly follows turn u - 1 in one trajectory."""
    return (block.trajectory_ids.diff() == 0) & (block.turn_ids.diff() == 1)


def _distance(profiles: Tensor, eligible: Tensor, distance: str) -> Tensor:
    before, after = profiles[:, :-1], profiles[:, 1:]
    if distance == "cosine":
        return (1 - torch.nn.functional.cosine_similarity(before, after, dim=0)).clamp(0, 1)
    entropy = torch.special.entr(profiles).sum(dim=0)
    if distance == "entropy":
        scale = eligible.sum(dim=0).clamp(min=2).to(profiles.dtype).log()
        return ((entropy[1:] - entropy[:-1]).abs() / scale[1:]).clamp(0, 1)
    middle = torch.special.entr((before + after) / 2).sum(dim=0)
    return ((middle - (entropy[1:] + entropy[:-1]) / 2) / torch.log(profiles.new_tensor(2.0))).clamp(0, 1)
