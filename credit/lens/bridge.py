"""Where a teacher's turn is tried in a student's episode, and how well the teacher likes what follows."""

from __future__ import annotations

import torch
from torch import Tensor

from .locate import proposed_turns


def bridge_turns(
    logprobs: Tensor,
    teacher_logprobs: Tensor,
    mask: Tensor,
    trajectory_ids: Tensor,
    turn_ids: Tensor,
    allowed: Tensor,
) -> Tensor:
    """The turn of each trajectory that the teacher finds least likely: ``argmax_t mean_i (log pi - log pi_T)``.

    A trajectory's last turn is left out, as nothing follows it to compare with.

    Source: FutureBridge-OPD (arXiv 2608.01953), docs/equations.md#futurebridge; of equal ones the first.

    Args:
        logprobs, teacher_logprobs: ``[M, T]`` float, nats, of the sampled tokens.
        mask: ``[M, T]`` bool, True where a response token stands.
        trajectory_ids: ``[M]`` int64 in [0, N).
        turn_ids: ``[M]`` int64.
        allowed: ``[M]`` bool, turns that may be replaced.

    Returns:
        ``[N]`` int64, the row; -1 where a trajectory has none.
    """
    count = int(trajectory_ids.max()) + 1 if len(mask) else 0
    last = turn_ids.new_full((count,), -1).scatter_reduce_(0, trajectory_ids, turn_ids, "amax")
    open_rows = allowed & (turn_ids < last[trajectory_ids])
    return proposed_turns(logprobs - teacher_logprobs, mask & open_rows[:, None], trajectory_ids, turn_ids)


def preferred_share(logprobs: Tensor, teacher_logprobs: Tensor, mask: Tensor, owners: Tensor, count: int) -> Tensor:
    """The share of a continuation's tokens that the teacher finds likelier than the student: ``log pi_T > log pi``.

    Source: FutureBridge-OPD (arXiv 2608.01953), docs/equations.md#futurebridge.

    Args:
        logprobs, teacher_logprobs: ``[M, T]`` float, nats.
        mask: ``[M, T]`` bool.
        owners: ``[M]`` int64 in [0, count): the continuation of each turn; -1 where a turn belongs to none.
        count: P, continuations.

    Returns:
        ``[P]`` float64 in [0, 1]; NaN where a continuation has no token.
    """
    inside = owners >= 0
    liked = (mask & (teacher_logprobs > logprobs)).sum(1)[inside].double()
    tokens = mask.sum(1)[inside].double()
    sums = torch.zeros(2, count, dtype=torch.float64).index_add_(1, owners[inside], torch.stack([liked, tokens]))
    return sums[0] / sums[1]
