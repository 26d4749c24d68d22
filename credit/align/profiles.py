"""AlignOPSD stage 2, part one: which sibling decisions a turn resembles, and how that changes from turn to turn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..checks import check_choice, check_range
from ..inputs import CreditInputs
from .correspondence import Correspondence, TaskBlock
from .rectification import check_selection

_STACK = 1 << 20

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

    The threshold gamma_H does not truncate it. Source: AlignOPSD, docs/equations.md#spans, Eq. (18).

    Args:
        block: the task.
        profile_temperature: T_prof > 0.

    Returns:
        ``[m, m]`` float ``[source, target]``; a column sums to 1, or is 0 where no source is eligible.

    Raises:
        ValueError: the temperature is not positive.
    """
    check_range("dense_profiles", "profile_temperature", profile_temperature, 0, float("inf"), "()")
    return _softmax(block.similarity, block.eligible, profile_temperature)


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

    Source: AlignOPSD, docs/equations.md#spans, Eq. (19). Two further distances, in our own reading: ``"entropy"`` is
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
    check_range(where, "profile_temperature", profile_temperature, 0, float("inf"), "()")
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
    for rows, consecutive, similarity, eligible in _stacks(correspondence.blocks):
        profiles = _softmax(similarity, eligible, profile_temperature)
        reached = (eligible & (similarity >= similarity_threshold)).any(dim=1)
        known = consecutive & reached[:, 1:] & reached[:, :-1]
        known &= (eligible[:, :, 1:] == eligible[:, :, :-1]).all(dim=1)
        distances = torch.where(known, _distance(profiles, eligible, distance), 0.0)
        real = rows >= 0
        values[rows[:, 1:][real[:, 1:]]] = distances[real[:, 1:]].to(values.dtype)
        defined[rows[:, 1:][real[:, 1:]]] = known[real[:, 1:]]
        valid[rows[real]] = reached[real]
    return Divergence(values, defined, valid)


def boundary_divergences(
    inputs: CreditInputs,
    *,
    similarity_threshold: float = 0.8,
    profile_temperature: float = 0.1,
    distance: str = "jensen_shannon",
) -> Tensor:
    """What a batch contributes to the boundary quantile: its defined divergences.

    Gather these of all processes, call :func:`boundary_threshold` on their union and pass the result to each
    ``align_opsd(..., threshold=...)``: the spans are then those of one process with the whole batch.

    Args:
        inputs: a batch of whole groups with its ``correspondence``.
        similarity_threshold: gamma_H, as in :func:`profile_divergence`.
        profile_temperature: T_prof, likewise.
        distance: likewise.

    Returns:
        ``[E]`` float in [0, 1], not clipped (the quantile is), in any order; E may be 0.

    Raises:
        ValueError: ``correspondence`` is None, does not belong to the batch, or an option is out of range.
    """
    if inputs.correspondence is None:
        raise ValueError(
            "boundary_divergences: inputs.correspondence must be given, got None; "
            "compare the thinking of teacher and student turns of each task"
        )
    found = profile_divergence(
        inputs.correspondence,
        inputs.num_rows,
        similarity_threshold=similarity_threshold,
        profile_temperature=profile_temperature,
        distance=distance,
    )
    return found.values[found.defined]


def boundary_threshold(
    defined_values: Tensor, *, quantile: float = 0.8, low: float = 0.01, high: float = 0.10
) -> float:
    """Threshold above which a divergence marks a boundary: ``clip(quantile_q(D), low, high)``, linear interpolation.

    Source: AlignOPSD, docs/equations.md#spans, Eq. (20).

    Several processes: gather the :func:`boundary_divergences` of all of them, call this on the union, and pass the
    result to each ``align_opsd(..., threshold=...)``.

    Args:
        defined_values: ``[E]`` float, all defined D of the batch, in any order.
        quantile: in [0, 1].
        low: lower clip.
        high: upper clip.

    Returns:
        The threshold; ``high`` when no D is defined (then there is no candidate either).

    Raises:
        ValueError: a value is not finite or an option is out of range.

    >>> round(boundary_threshold(torch.tensor([0.02, 0.03, 0.05, 0.06]), quantile=0.5), 6)
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


def _softmax(similarity: Tensor, eligible: Tensor, temperature: float) -> Tensor:
    """Softmax over the sources, the last axis but one; 0 where not eligible."""
    logits = (similarity / temperature).masked_fill(~eligible, -torch.inf)
    return torch.where(eligible, logits.softmax(dim=-2), 0.0)


def _stacks(blocks: Sequence[TaskBlock]) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Blocks of similar size, padded to a stack of B: rows ``[B, m]`` (-1 is padding), whether turn ``u + 1`` follows
    turn ``u`` in one trajectory ``[B, m - 1]``, similarity and eligibility ``[B, m, m]``.
    """
    by_size = sorted((block for block in blocks if block.rows.numel()), key=lambda block: block.rows.numel())
    start = 0
    while start < len(by_size):
        smallest, stop = by_size[start].rows.numel(), start + 1
        while stop < len(by_size):
            size = by_size[stop].rows.numel()
            if size > 1.25 * smallest or (stop + 1 - start) * size**2 > _STACK:
                break
            stop += 1
        yield _stack(by_size[start:stop])
        start = stop


def _stack(blocks: Sequence[TaskBlock]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, trajectory, turn = (
        pad_sequence([getattr(block, name) for block in blocks], batch_first=True, padding_value=-1)
        for name in ("rows", "trajectory_ids", "turn_ids")
    )
    size = rows.shape[1]
    similarity = blocks[0].similarity.new_zeros(len(blocks), size, size)
    eligible = blocks[0].eligible.new_zeros(len(blocks), size, size)
    for index, block in enumerate(blocks):
        own = block.rows.numel()
        similarity[index, :own, :own] = block.similarity
        eligible[index, :own, :own] = block.eligible
    follows = (trajectory.diff() == 0) & (turn.diff() == 1) & (rows[:, 1:] >= 0)
    return rows, follows, similarity, eligible


def _distance(profiles: Tensor, eligible: Tensor, distance: str) -> Tensor:
    """``[B, m - 1]`` distances between the profiles ``[B, source, target]`` of neighbouring targets."""
    before, after = profiles[..., :-1], profiles[..., 1:]
    if distance == "cosine":
        return (1 - torch.nn.functional.cosine_similarity(before, after, dim=1)).clamp(0, 1)
    entropy = torch.special.entr(profiles).sum(dim=1)
    if distance == "entropy":
        scale = eligible.sum(dim=1).clamp(min=2).to(profiles.dtype).log()
        return (entropy.diff().abs() / scale[:, 1:]).clamp(0, 1)
    middle = torch.special.entr((before + after) / 2).sum(dim=1)
    return ((middle - (entropy[:, 1:] + entropy[:, :-1]) / 2) / math.log(2)).clamp(0, 1)
