"""Sums, means and decayed sums over the members of a segment (turns of a trajectory, trajectories of a group)."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(device: torch.device) -> torch.dtype:
    """The dtype for per-turn and per-group statistics: float64, or float32 where the device has none."""
    return torch.float32 if device.type == "mps" else torch.float64


def segment_sum(values: Tensor, ids: Tensor, count: int) -> Tensor:
    """``[E]`` values and ``[E]`` segment ids in [0, count) to ``[count]`` sums; 0 for an empty segment."""
    return values.new_zeros(count).index_add_(0, ids, values)


def segment_mean(values: Tensor, ids: Tensor, count: int, weights: Tensor | None = None) -> Tensor:
    """``[count]`` (weighted) means; 0 for a segment without members or weight."""
    weights = torch.ones_like(values) if weights is None else weights.to(values.dtype)
    total = segment_sum(weights, ids, count)
    return segment_sum(values * weights, ids, count) / total.masked_fill(total == 0, 1)


def segment_std(values: Tensor, ids: Tensor, count: int) -> Tensor:
    """``[count]`` population standard deviations (ddof = 0); 0 for a segment of one."""
    centred = values - segment_mean(values, ids, count)[ids]
    return segment_mean(centred.square(), ids, count).sqrt()


def sample_std(centred: Tensor, ids: Tensor, count: int, weights: Tensor) -> Tensor:
    """``[count]`` standard deviations (ddof = 1) of values less their segment's mean; 0 for a segment of one."""
    freedom = (segment_sum(weights, ids, count) - 1).clamp(min=1)
    return (segment_sum(weights * centred.square(), ids, count) / freedom).sqrt()


def segment_extremes(values: Tensor, ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """``[count]`` minima and maxima; an empty segment gives (inf, -inf)."""
    low = values.new_full((count,), torch.inf).scatter_reduce_(0, ids, values, "amin")
    high = values.new_full((count,), -torch.inf).scatter_reduce_(0, ids, values, "amax")
    return low, high


def decayed_sums(values: Tensor, gamma: float, block: int = 64) -> Tensor:
    """``c[:, k] = gamma * c[:, k - 1] + values[:, k]`` along the last axis of ``[N, L]``, started from 0.

    Blocks of ``block`` places are one product with a triangular matrix; only block ends are carried in a loop.
    """
    rows, length = values.shape
    block = min(block, length)
    padded = torch.nn.functional.pad(values, (0, -length % block)).view(rows, -1, block)
    places = torch.arange(block, device=values.device)
    lag = places[None, :] - places[:, None]
    decay = torch.tensor(gamma, dtype=values.dtype, device=values.device)
    local = padded @ torch.where(lag >= 0, decay ** lag.clamp(min=0), 0.0)
    fade = decay ** (places + 1)
    for index in range(1, local.shape[1]):
        local[:, index] += local[:, index - 1, -1:] * fade
    return local.reshape(rows, -1)[:, :length]
