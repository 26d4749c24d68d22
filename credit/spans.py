"""AlignOPSD stage 2, part two: cut each trajectory into spans of consecutive turns that serve one decision.

All trajectories are cut at once on a ``[N, K]`` table of turns; the loops run over cuts, never over trajectories.
"""

from __future__ import annotations

import torch
from torch import Tensor


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

    A trajectory shorter than ``min_span`` is one span. Source: AlignOPSD, stage 2 (METHODS.md section 2.2).

    Args:
        divergence: ``[M]`` float, D of each turn against the one before it.
        defined: ``[M]`` bool.
        trajectory_ids: ``[M]`` int64 in [0, N), rows in any order.
        turn_ids: ``[M]`` int64, 0 .. K_i - 1 once per trajectory.
        threshold: theta, see :func:`~turncredit.credit.profiles.boundary_threshold`.
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
    table, real = turn_table(trajectory_ids, turn_ids)
    inner = real & (turn_ids.new_ones(table.shape).cumsum(1) > 1)
    score, known = divergence.detach()[table], defined[table] & inner
    starts = _cut(score, known & (score > threshold), known & (score >= split_floor), real, min_span, max_span)
    return _to_rows(starts, table, real)


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

    Source: AlignOPSD, ablations (METHODS.md section 2.2).

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
    table, real = turn_table(trajectory_ids, turn_ids)
    generator = torch.Generator().manual_seed(seed)
    score = torch.rand(table.shape[::-1], generator=generator, dtype=torch.float64).T.to(table.device)
    inner = real & (turn_ids.new_ones(table.shape).cumsum(1) > 1)
    allowed = inner if candidates is None else inner & candidates[table]
    return _to_rows(_cut(score, allowed, inner, real, min_span, max_span), table, real)


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
    table, real = turn_table(trajectory_ids, turn_ids)
    index = torch.where(real, spans[table], 0)
    step = torch.where(real[:, 1:], index.diff(dim=1), 0)
    if bool((index[:, 0] != 0).any()) or bool(((step < 0) | (step > 1)).any()):
        broken = (index[:, 0] != 0) | ((step < 0) | (step > 1)).any(dim=1)
        trajectory = int(broken.int().argmax())
        raise ValueError(
            f"{where}: spans must run 0, 1, 2, .. without gaps over the turns of a trajectory, got "
            f"{index[trajectory][real[trajectory]].tolist()[:16]} in trajectory {trajectory}; number them in turn order"
        )
    lengths = torch.zeros_like(index).scatter_add(1, index, real.to(index.dtype))
    longest, trajectory = lengths.max(dim=1).values.max(dim=0)
    if max_span is not None and int(longest) > max_span:
        raise ValueError(
            f"{where}: spans must hold at most max_span = {max_span} turns, got {int(longest)} in trajectory "
            f"{int(trajectory)}; cut it or raise max_span"
        )
    short = (lengths > 0) & (lengths < min_span) & (real.sum(dim=1, keepdim=True) >= min_span)
    if bool(short.any()):
        trajectory = int(short.any(dim=1).int().argmax())
        raise ValueError(
            f"{where}: spans must hold at least min_span = {min_span} turns, got "
            f"{int(lengths[trajectory][short[trajectory]][0])} in trajectory {trajectory}; merge it or lower min_span"
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


def turn_table(trajectory_ids: Tensor, turn_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of every trajectory in turn order.

    Args:
        trajectory_ids: ``[M]`` int64 in [0, N).
        turn_ids: ``[M]`` int64, 0 .. K_i - 1 once per trajectory.

    Returns:
        ``[N, K]`` int64 row of each (trajectory, turn), 0 where there is none, and ``[N, K]`` bool whether there is.
    """
    count = int(trajectory_ids.max()) + 1 if trajectory_ids.numel() else 0
    width = int(turn_ids.max()) + 1 if turn_ids.numel() else 0
    rows = torch.arange(trajectory_ids.numel(), device=trajectory_ids.device)
    table = rows.new_zeros(count, width)
    real = torch.zeros(count, width, dtype=torch.bool, device=rows.device)
    table[trajectory_ids, turn_ids] = rows
    real[trajectory_ids, turn_ids] = True
    return table, real


def _cut(score: Tensor, candidate: Tensor, attractive: Tensor, real: Tensor, min_span: int, max_span: int) -> Tensor:
    """``[N, K]`` bool: a span starts at this turn. ``score`` ranks cuts; the two masks are for steps 1 and 2."""
    place = torch.arange(score.shape[1], device=score.device)
    length = real.sum(dim=1, keepdim=True)
    starts = real & (place == 0)
    free = candidate & (place >= min_span) & (place <= length - min_span)
    # Accepting the best free turn and barring its neighbourhood gives the same cuts as walking down the ranking.
    while bool(free.any()):
        best = score.masked_fill(~free, -torch.inf).argmax(dim=1, keepdim=True)
        chosen = free.any(dim=1, keepdim=True)
        starts |= chosen & (place == best)
        free &= ~chosen | ((place - best).abs() >= min_span)
    while True:
        index = starts.long().cumsum(1) - 1
        sizes = torch.zeros_like(index).scatter_add(1, index, real.long())
        long = sizes > max_span
        if not bool(long.any()):
            return starts
        span = long.int().argmax(dim=1, keepdim=True)
        size = sizes.gather(1, span)
        begin = sizes.cumsum(1).gather(1, span) - size
        feasible = (place >= begin + min_span) & (place <= begin + size - min_span) & long.any(dim=1, keepdim=True)
        wanted = feasible & attractive
        strongest = score.masked_fill(~wanted, -torch.inf).argmax(dim=1, keepdim=True)
        off_middle = (2 * (place - begin) - size).abs().masked_fill(~feasible, torch.iinfo(torch.long).max)
        best = torch.where(wanted.any(dim=1, keepdim=True), strongest, off_middle.argmin(dim=1, keepdim=True))
        starts |= feasible & (place == best)


def _to_rows(starts: Tensor, table: Tensor, real: Tensor) -> Tensor:
    index = starts.long().cumsum(1) - 1
    spans = table.new_zeros(int(real.sum()))
    spans[table[real]] = index[real]
    return spans


def _check_rows(where: str, trajectory_ids: Tensor, **others: Tensor | None) -> None:
    for name, tensor in others.items():
        if tensor is not None and tensor.shape != trajectory_ids.shape:
            raise ValueError(
                f"{where}: {name} must be [M] = {list(trajectory_ids.shape)}, got {list(tensor.shape)}; "
                "give one entry per turn"
            )
