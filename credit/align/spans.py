"""AlignOPSD stage 2, part two: cut each trajectory into spans of consecutive turns that serve one decision.

All trajectories are cut at once on a ``[K, N]`` grid of turns; the loops run over cuts, never over trajectories.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FAR = 1 << 30


def segment_spans(
    divergence: Tensor,
    defined: Tensor,
    trajectory_ids: Tensor,
    turn_ids: Tensor,
    *,
    threshold: float,
    min_span: int = 2,
    max_span: int = 8,
    split_floor: float = 0.01,
) -> Tensor:
    """Cut trajectories where the correspondence profile changes.

    1. Candidates: turns with a defined D > threshold, strongest first (ties: earlier); a cut before turn p is accepted
       if both sides keep at least ``min_span`` turns.
    2. While a span is longer than ``max_span``: cut it at its strongest feasible turn with a defined
       D >= ``split_floor``, else at the feasible turn nearest its middle (ties: earlier).

    A trajectory shorter than ``min_span`` is one span. Source: AlignOPSD, docs/equations.md#spans, Eq. (21) and (22).

    Args:
        divergence: ``[M]`` float, D of each turn against the one before it.
        defined: ``[M]`` bool.
        trajectory_ids: ``[M]`` int64 in [0, N), rows in any order.
        turn_ids: ``[M]`` int64, 0 .. K_i - 1 once per trajectory.
        threshold: theta, see :func:`~turncredit.credit.align.profiles.boundary_threshold`.
        min_span: shortest span, L_min >= 1.
        max_span: longest span, L_max >= 2 L_min - 1.
        split_floor: smallest D that attracts a cut of an over-long span.

    Returns:
        ``[M]`` int64, the span of each turn: 0 for the first of its trajectory, ascending with the turns.

    Raises:
        ValueError: the lengths contradict each other, a shape differs, or a defined D is not finite.
    """
    where = "segment_spans"
    check_span_lengths(where, min_span, max_span)
    _check_rows(where, trajectory_ids, turn_ids=turn_ids, divergence=divergence, defined=defined)
    if not bool(torch.isfinite(torch.where(defined, divergence, 0)).all()):
        raise ValueError(f"{where}: divergence must be finite where defined, got NaN or inf; check the similarities")
    table, length = _grid(trajectory_ids, turn_ids)
    score = divergence.detach()[table]
    known = defined[table] & (_places(table) < length)
    known[:1] = False
    starts = _cut(score, known & (score > threshold), known & (score >= split_floor), length, min_span, max_span)
    return (starts.cumsum(0) - 1)[turn_ids, trajectory_ids]


def random_spans(
    trajectory_ids: Tensor,
    turn_ids: Tensor,
    *,
    seed: int,
    candidates: Tensor | None = None,
    min_span: int = 2,
    max_span: int = 8,
) -> Tensor:
    """Cut trajectories at random turns under the length rules of :func:`segment_spans` (ablation D).

    Every turn but the first draws a random number that takes the place of D in both steps. The numbers depend on the
    seed, the number of trajectories, the trajectory's index and the turn, not on the order of rows; the global
    generator is untouched.

    Source: AlignOPSD's ablation D, docs/equations.md#spans.

    Args:
        trajectory_ids: ``[M]`` int64 in [0, N).
        turn_ids: ``[M]`` int64.
        seed: seed of the draw.
        candidates: ``[M]`` bool, turns that may be cut in step 1 (``defined & (D > threshold)`` shuffles only the
            order of the semantic candidates); None: every turn, which gives spans of L_min to 2 L_min - 1 turns.
        min_span: L_min >= 1.
        max_span: L_max >= 2 L_min - 1.

    Returns:
        ``[M]`` int64, the span of each turn within its trajectory.

    Raises:
        ValueError: the lengths contradict each other or a shape differs.
    """
    where = "random_spans"
    check_span_lengths(where, min_span, max_span)
    _check_rows(where, trajectory_ids, turn_ids=turn_ids, candidates=candidates)
    table, length = _grid(trajectory_ids, turn_ids)
    generator = torch.Generator().manual_seed(seed)
    score = torch.rand(table.shape, generator=generator, dtype=torch.float64).to(table.device)
    inner = _places(table) < length
    inner[:1] = False
    allowed = inner if candidates is None else inner & candidates[table]
    starts = _cut(score, allowed, inner, length, min_span, max_span)
    return (starts.cumsum(0) - 1)[turn_ids, trajectory_ids]


def check_spans(
    spans: Tensor, trajectory_ids: Tensor, turn_ids: Tensor, *, min_span: int = 1, max_span: int | None = None
) -> None:
    """Raise ValueError unless ``spans [M]`` cuts every trajectory into 0, 1, 2, .. in the order of its turns.

    Every span must hold at most ``max_span`` turns and at least ``min_span``, a trajectory shorter than that excepted.
    """
    where = "check_spans"
    _check_rows(where, trajectory_ids, turn_ids=turn_ids, spans=spans)
    if spans.is_floating_point() or spans.dtype == torch.bool:
        raise TypeError(f"{where}: spans must be integers, got {spans.dtype}; call .long()")
    table, length = _grid(trajectory_ids, turn_ids)
    real = _places(table) < length
    index = torch.where(real, spans[table], 0)
    step = torch.where(real[1:], index.diff(dim=0), 0)
    broken = (index[:1] != 0).any(0) | ((step < 0) | (step > 1)).any(0)
    if bool(broken.any()):
        trajectory = int(broken.int().argmax())
        raise ValueError(
            f"{where}: spans must run 0, 1, 2, .. without gaps over the turns of a trajectory, got "
            f"{index[real[:, trajectory], trajectory].tolist()[:16]} in trajectory {trajectory}; count in turn order"
        )
    sizes = torch.zeros_like(index).scatter_add(0, index, real.to(index.dtype))
    longest, trajectory = sizes.amax(0).max(dim=0)
    if max_span is not None and int(longest) > max_span:
        raise ValueError(
            f"{where}: spans must hold at most max_span = {max_span} turns, got {int(longest)} in trajectory "
            f"{int(trajectory)}; cut it or raise max_span"
        )
    short = (sizes > 0) & (sizes < min_span) & (length >= min_span)
    if bool(short.any()):
        trajectory = int(short.any(0).int().argmax())
        raise ValueError(
            f"{where}: spans must hold at least min_span = {min_span} turns, got "
            f"{int(sizes[:, trajectory][short[:, trajectory]][0])} in trajectory {trajectory}; merge spans"
        )


def check_span_lengths(where: str, min_span: int, max_span: int) -> None:
    """Raise ValueError unless 1 <= min_span and max_span >= 2 min_span - 1."""
    for name, value in (("min_span", min_span), ("max_span", max_span)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{where}: {name} must be a whole number >= 1, got {value!r}; the paper uses 2 and 8")
    if max_span < 2 * min_span - 1:
        raise ValueError(
            f"{where}: max_span must be at least 2 * min_span - 1 = {2 * min_span - 1}, got {max_span}; "
            "otherwise an over-long span may have no cut that keeps both sides long enough"
        )


def _grid(trajectory_ids: Tensor, turn_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Row of each (turn, trajectory), ``[K, N]`` int64 with 0 where there is none, and ``[N]`` int32 turns.

    Turns come first, so that what is reduced over turns is vectorised over trajectories.
    """
    count = int(trajectory_ids.max()) + 1 if trajectory_ids.numel() else 0
    width = int(turn_ids.max()) + 1 if turn_ids.numel() else 0
    table = trajectory_ids.new_zeros(width, count)
    table[turn_ids, trajectory_ids] = torch.arange(trajectory_ids.numel(), device=trajectory_ids.device)
    return table, torch.bincount(trajectory_ids, minlength=count).int()


def _places(table: Tensor) -> Tensor:
    """``[K, 1]`` int32 (whose minima are vectorised, unlike those of int64): 0 .. K - 1."""
    return torch.arange(table.shape[0], dtype=torch.int32, device=table.device)[:, None]


def _cut(score: Tensor, candidate: Tensor, attractive: Tensor, length: Tensor, min_span: int, max_span: int) -> Tensor:
    """``[K, N]`` bool: a span starts at this turn. ``score`` ranks cuts; the two masks are for steps 1 and 2."""
    place = _places(score)
    starts = (place == 0) & (length > 0)
    free = candidate & (place >= min_span) & (place <= length - min_span)
    # Accepting the best free turn and barring its neighbourhood gives the same cuts as walking down the ranking.
    while bool(free.any()):
        best = _strongest(score, free)
        starts |= place == best
        free &= (place - best).abs() >= min_span
    if score.shape[0] <= max_span:
        return starts
    while True:
        begun = torch.where(starts, place, 0).cummax(0).values
        long = (place - begun >= max_span) & (place < length)
        if not bool(long.any()):
            return starts
        begin = torch.where(long, begun, _FAR).amin(0)
        end = torch.minimum(torch.where(starts & (place > begin), place, _FAR).amin(0), length)
        feasible = (place >= begin + min_span) & (place <= end - min_span)
        wanted = feasible & attractive
        off_middle = torch.where(feasible, -(2 * place - begin - end).abs(), -_FAR)
        best = torch.where(wanted.any(0), _strongest(score, wanted), _strongest(off_middle, feasible))
        starts |= place == best


def _strongest(score: Tensor, allowed: Tensor) -> Tensor:
    """``[N]``: the first allowed turn of the highest score, or a turn beyond the last."""
    worst = -torch.inf if score.is_floating_point() else -_FAR
    kept = torch.where(allowed, score, worst)
    return torch.where(allowed & (kept == kept.amax(0)), _places(score), _FAR).amin(0)


def _check_rows(where: str, trajectory_ids: Tensor, **others: Tensor | None) -> None:
    for name, tensor in others.items():
        if tensor is not None and tensor.shape != trajectory_ids.shape:
            raise ValueError(
                f"{where}: {name} must be [M] = {list(trajectory_ids.shape)}, got {list(tensor.shape)}; "
                "give one entry per turn"
            )
