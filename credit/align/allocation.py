"""AlignOPSD stage 2, part three: share a trajectory's credit among its spans and turns without changing the total.

Elements are turns (or tokens) in any order, each with a weight n (its tokens) and a segment (its trajectory). All sums
run in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import check_range
from ..segments import segment_sum, wide

_CHUNK = 1 << 21
_EXACT = 1e-12


@dataclass(frozen=True)
class Allocation:
    """How the credit of each trajectory is shared.

    Args:
        weights: ``[E]`` float, w: the factor on the trajectory's advantage; ``sum n w = N`` per trajectory.
        density: ``[E]`` float, x after projection.
        raw_density: ``[E]`` float, x before projection.
        span_budget: ``[E]`` float in [0, 1], beta of the element's span.
    """

    weights: Tensor
    density: Tensor
    raw_density: Tensor
    span_budget: Tensor


def allocate(
    scores: Tensor,
    token_counts: Tensor,
    spans: Tensor,
    trajectory_ids: Tensor,
    *,
    credit_temperature: float = 0.5,
    mix: float = 0.5,
    density_min: float = 0.0,
    density_max: float = 4.0,
) -> Allocation:
    """Turn outcome-signed evidence into weights that keep each trajectory's token-weighted credit.

    The density of :func:`hierarchical_density`, projected by :func:`project_density`, then ``w = (1 - mu) + mu x``.

    Source: AlignOPSD, docs/equations.md#allocation, Eq. (23) to (28).

    Args:
        scores: ``[E]`` float, ``sign(A) g``: outcome-signed mean gap of each turn, nats per token.
        token_counts: ``[E]`` number, n >= 0: optimised tokens. An element without tokens gets weight 1.
        spans: ``[E]`` int64, span within the trajectory; all 0: one softmax over the trajectory.
        trajectory_ids: ``[E]`` int64 in [0, N).
        credit_temperature: T_c > 0.
        mix: mu in [0, 1]; 0 gives weights of exactly 1.
        density_min: lower bound of x, in [0, 1]; ``1 - b`` in the bounded variant.
        density_max: upper bound of x, at least 1.

    Returns:
        Allocation in the dtype of ``scores`` (half precision gives float32), detached.

    Raises:
        ValueError: a shape differs, a value is not finite, or an option is out of range.

    >>> allocate(torch.zeros(2), torch.tensor([3, 1]), torch.tensor([0, 0]), torch.tensor([0, 0])).weights
    tensor([1., 1.])
    """
    check_range("allocate", "mix", mix, 0, 1)
    density, budget = hierarchical_density(
        scores, token_counts, spans, trajectory_ids, credit_temperature=credit_temperature
    )
    projected = project_density(density, token_counts, trajectory_ids, lower=density_min, upper=density_max)
    weights = torch.where(token_counts > 0, (1 - mix) + mix * projected, 1.0)
    dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    return Allocation(weights.to(dtype), projected.to(dtype), density.to(dtype), budget.to(dtype))


def hierarchical_density(
    scores: Tensor, token_counts: Tensor, spans: Tensor, trajectory_ids: Tensor, *, credit_temperature: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Budget of each span, share of each turn in it, and the resulting density of credit per token.

    ``beta_j = softmax_j(log N_j + mean_{k in j} score_k / T_c)``; ``q_k = softmax_{k in j}(log n_k + score_k / T_c)``;
    ``x_k = N beta_j q_k / n_k``, so that ``sum_k n_k x_k = N``. Softmaxes are taken in log space: scores of any finite
    size are safe.

    Source: AlignOPSD, docs/equations.md#allocation, Eq. (24) to (26).

    Args:
        scores: ``[E]`` float.
        token_counts: ``[E]`` number, n >= 0; elements with n = 0 take no part and get density 1.
        spans: ``[E]`` int64 >= 0, span within the trajectory.
        trajectory_ids: ``[E]`` int64 in [0, N).
        credit_temperature: T_c > 0.

    Returns:
        ``[E]`` float64 density x and ``[E]`` float64 budget beta of the element's span.

    Raises:
        ValueError: a shape differs, a score with tokens is not finite, or the temperature is not positive.
    """
    where = "hierarchical_density"
    check_range(where, "credit_temperature", credit_temperature, 0, float("inf"), "()")
    _check_elements(where, trajectory_ids, scores=scores, token_counts=token_counts, spans=spans)
    counts = token_counts.to(wide(scores.device))
    used = counts > 0
    signal = torch.where(used, scores.detach().to(counts.dtype), 0.0) / credit_temperature
    if not bool(torch.isfinite(signal).all()):
        raise ValueError(f"{where}: scores must be finite, got NaN or inf; check the log-probs of both contexts")
    width = int(spans.max()) + 1 if spans.numel() else 1
    num_trajectories = int(trajectory_ids.max()) + 1 if trajectory_ids.numel() else 0
    num_spans = num_trajectories * width
    span_of = trajectory_ids * width + spans
    owner = torch.arange(num_spans, device=span_of.device) // width

    span_tokens = segment_sum(counts, span_of, num_spans)
    members = segment_sum(used.to(counts.dtype), span_of, num_spans)
    span_signal = segment_sum(signal, span_of, num_spans) / members.clamp(min=1)
    log_budget = span_tokens.log() + span_signal
    log_budget = log_budget - _logsumexp(log_budget, owner, num_trajectories)[owner]
    total = segment_sum(span_tokens, owner, num_trajectories)
    # log n_k cancels: x_k = N beta_j exp(score_k / T_c) / sum_{k in j} n_k exp(score_k / T_c)
    log_scale = total.log()[owner] + log_budget - _logsumexp(counts.log() + signal, span_of, num_spans)
    density = torch.where(used, (signal + log_scale[span_of]).exp(), 1.0)
    return density, log_budget.exp().nan_to_num(0.0)[span_of]


def project_density(
    density: Tensor, token_counts: Tensor, trajectory_ids: Tensor, *, lower: float = 0.0, upper: float = 4.0
) -> Tensor:
    """Closest densities inside a box that keep every trajectory's total.

    ``argmin_y sum n (y - x)^2  s.t.  lower <= y <= upper, sum n y = N``, which is ``y = clip(x - nu, lower, upper)``.
    The total falls piecewise linearly in nu; its breakpoints are sorted and nu is solved exactly between the two that
    enclose N.

    Source: AlignOPSD, docs/equations.md#allocation, Eq. (27).

    Args:
        density: ``[E]`` float, x.
        token_counts: ``[E]`` number, n >= 0; elements with n = 0 take no part and keep a clipped x.
        trajectory_ids: ``[E]`` int64 in [0, N).
        lower: in [0, 1].
        upper: at least 1.

    Returns:
        ``[E]`` float64 (float32 on a device without it).

    Raises:
        ValueError: a bound excludes 1 (no density could keep the total), a shape differs or a value is not finite.

    >>> project_density(torch.tensor([3.0, 0.0, 0.0]), torch.ones(3), torch.zeros(3, dtype=torch.long), upper=2.0)
    tensor([2.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    where = "project_density"
    check_range(where, "lower", lower, 0, 1)
    check_range(where, "upper", upper, 1, float("inf"), ")")
    _check_elements(where, trajectory_ids, density=density, token_counts=token_counts)
    x, counts = density.detach().to(wide(density.device)), token_counts.to(wide(density.device))
    x = torch.where(counts > 0, x, 1.0)
    if not bool(torch.isfinite(x).all()) or bool((counts < 0).any()):
        raise ValueError(f"{where}: density must be finite and token_counts >= 0, got other values; check the inputs")
    count = int(trajectory_ids.max()) + 1 if trajectory_ids.numel() else 0
    total, spent = segment_sum(counts, trajectory_ids, count), segment_sum(counts * x, trajectory_ids, count)
    outside = segment_sum((counts * ((x < lower) | (x > upper))).to(x.dtype), trajectory_ids, count)
    unsolved = ((outside > 0) | ((spent - total).abs() > _EXACT * total)) & (total > 0)
    shift = torch.zeros_like(x)
    members = unsolved[trajectory_ids].nonzero().squeeze(1)
    owner = (unsolved.cumsum(0) - 1)[trajectory_ids[members]]
    for chunk, row in _chunks(owner):
        shift[members[chunk]] = _shifts(x[members[chunk]], counts[members[chunk]], row, lower, upper)[row]
    return (x - shift).clamp(lower, upper)


def _shifts(x: Tensor, counts: Tensor, row: Tensor, lower: float, upper: float) -> Tensor:
    """nu of each row, from the sorted breakpoints ``x - upper`` (starts to fall) and ``x - lower`` (has fallen)."""
    sizes = torch.bincount(row)
    if bool((row.diff() < 0).any()):
        order = row.argsort(stable=True)
        x, counts, row = x[order], counts[order], row[order]
    column = torch.arange(row.numel(), device=row.device) - (sizes.cumsum(0) - sizes)[row]
    padded_x, padded_n = x.new_zeros(2, sizes.numel(), int(sizes.max())).unbind(0)
    padded_x[row, column], padded_n[row, column] = x, counts
    points, by_value = torch.cat([padded_x - upper, padded_x - lower], dim=1).sort(dim=1)
    slopes = torch.cat([padded_n, -padded_n], dim=1).gather(1, by_value).cumsum(1)
    total = padded_n.sum(dim=1, keepdim=True)
    fallen = torch.cat([torch.zeros_like(total), (slopes[:, :-1] * points.diff(dim=1)).cumsum(1)], dim=1)
    left = (upper * total - fallen) - total
    reached = left <= 0
    reached[:, -1] = True  # rounding alone can keep lower = 1 from reaching its total
    after = reached.int().argmax(dim=1, keepdim=True)
    before = (after - 1).clamp(min=0)
    slope = slopes.gather(1, before)
    exact = points.gather(1, before) + left.gather(1, before) / slope.masked_fill(slope <= 0, torch.inf)
    return torch.where(after > 0, exact, points[:, :1]).squeeze(1)


def _chunks(ids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Elements in chunks of whole segments, and their segment numbered from 0 in the chunk.

    One chunk, or where padding all segments to the longest is too much, several of about equal length.
    """
    if not ids.numel():
        return
    sizes = torch.bincount(ids)
    if sizes.numel() * int(sizes.max()) <= _CHUNK:
        yield torch.arange(ids.numel(), device=ids.device), ids
        return
    octave = sizes.clamp(min=1).double().log2().floor().long()
    by_octave = octave.argsort(stable=True)
    part = torch.empty_like(octave)
    part[by_octave] = sizes[by_octave].cumsum(0) // _CHUNK
    _, chunk = (octave * (part.max() + 1) + part)[ids].unique(return_inverse=True)
    for members in chunk.argsort(stable=True).split(torch.bincount(chunk).tolist()):
        yield members, ids[members].unique(return_inverse=True)[1]


def _logsumexp(logits: Tensor, ids: Tensor, count: int) -> Tensor:
    """``[count]`` log of the sum of exp of ``[E]`` logits; NaN for a segment of -inf alone."""
    peak = logits.new_full((count,), -torch.inf).scatter_reduce_(0, ids, logits, "amax")
    return segment_sum((logits - peak[ids]).exp(), ids, count).log() + peak


def _check_elements(where: str, trajectory_ids: Tensor, **others: Tensor) -> None:
    for name, tensor in others.items():
        if tensor.shape != trajectory_ids.shape or tensor.ndim != 1:
            raise ValueError(
                f"{where}: {name} must be [E] = {list(trajectory_ids.shape)}, got {list(tensor.shape)}; "
                "give one entry per turn (or token)"
            )
