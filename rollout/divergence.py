"""How far apart two distributions over the vocabulary are, row by row; of a chunk of tokens at a time."""

from __future__ import annotations

import torch
from torch import Tensor

KINDS = ("reverse", "forward", "own_forward", "compare")
OWN = ("own_forward",)
"""Kinds whose teacher is the policy itself, whoever else teaches beside it."""


def divergence(log_p: Tensor, log_q: Tensor, kind: str) -> Tensor:
    """A divergence of every row, nats, with gradient to ``log_p``.

        reverse    KL(p || q) = sum_v p (log p - log q)
        forward    KL(q || p) = sum_v q (log q - log p);   own_forward the same
        compare    [reverse, log p(v_p), log p(v_q), log q(v_p), log q(v_q)], v_p and v_q the likeliest tokens of each

    What p (forward: q) rules out adds 0. What the other one rules out counts as the smallest float.

    Source: LENS-OPD (arXiv 2609.33409), Eq. 1, 2, 10, 11.

    Args:
        log_p: ``[n, V]`` float32, the learner's.
        log_q: ``[n, V]`` float32, the teacher's, detached.
        kind: one of `KINDS`.

    Returns:
        ``[n]``, or ``[n, 5]`` for ``"compare"``.
    """
    lowest = torch.finfo(log_p.dtype).min
    gap = log_p.clamp(min=lowest) - log_q.clamp(min=lowest)
    if kind in ("forward", "own_forward"):
        return -(log_q.exp() * gap).sum(-1)
    reverse = (log_p.exp() * gap).sum(-1)
    if kind == "reverse":
        return reverse
    tops = [log.argmax(-1, keepdim=True) for log in (log_p, log_q)]
    picked = [log.gather(-1, top) for log in (log_p, log_q) for top in tops]
    return torch.cat([reverse[:, None], *picked], 1)
