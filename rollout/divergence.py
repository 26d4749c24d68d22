"""How far apart two distributions over the vocabulary are, row by row; of a chunk of tokens at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOSSES = ("reverse", "forward", "own_forward")
KINDS = (*LOSSES, "compare")
OWN = ("own_forward",)
"""Kinds whose teacher is the policy itself, whoever else teaches beside it."""


def divergence(log_p: Tensor, log_q: Tensor, kind: str, targets: Tensor | None = None) -> Tensor:
    """A divergence of every row, nats, with gradient to ``log_p``.

        reverse    KL(p || q) = sum_v p (log p - log q)
        forward    KL(q || p) = sum_v q (log q - log p);   own_forward the same
        compare    reverse, and what else `Comparison` holds

    What p (forward: q) rules out adds 0. What the other one rules out counts as the smallest float.

    Source: LENS-OPD (arXiv 2609.33409), Eq. 1, 2, 10, 11.

    Args:
        log_p: ``[n, V]`` float32, the learner's.
        log_q: ``[n, V]`` float32, the teacher's, detached.
        kind: one of `KINDS`.
        targets: ``[n]`` int64, the sampled tokens; for ``"compare"``.

    Returns:
        ``[n]``, or ``[n, 8]`` for ``"compare"``, see `Comparison.of`.
    """
    lowest = torch.finfo(log_p.dtype).min
    gap = log_p.clamp(min=lowest) - log_q.clamp(min=lowest)
    if kind in ("forward", "own_forward"):
        return -(log_q.exp() * gap).sum(-1)
    reverse = (log_p.exp() * gap).sum(-1)
    if kind == "reverse":
        return reverse
    assert targets is not None
    tops = [log.argmax(-1, keepdim=True) for log in (log_p, log_q)]
    picked = [log.gather(-1, top) for log in (log_p, log_q) for top in tops]
    return torch.cat([reverse[:, None], log_q.gather(-1, targets[:, None]), *picked, *tops], 1)


@dataclass(frozen=True)
class Comparison:
    """Student and teacher before each of the tokens of M responses, without gradient; 0 outside of `mask`.

    The last axis of three fields is the token: first the student's likeliest, then the teacher's.

    Args:
        mask: ``[M, T]`` bool, True where a response token stands.
        kl: ``[M, T]`` float32, KL(pi || pi_T) over the whole vocabulary, nats.
        logprobs: ``[M, T]`` float32, the student's of the response.
        teacher_logprobs: ``[M, T]`` float32, the teacher's.
        top: ``[M, T, 2]`` int64, both likeliest tokens.
        top_logprobs: ``[M, T, 2]`` float32, the student's of both.
        teacher_top_logprobs: ``[M, T, 2]`` float32, the teacher's of both.
    """

    mask: Tensor
    kl: Tensor
    logprobs: Tensor
    teacher_logprobs: Tensor
    top: Tensor
    top_logprobs: Tensor
    teacher_top_logprobs: Tensor

    @classmethod
    def of(cls, mask: Tensor, logprobs: Tensor, values: Tensor) -> Comparison:
        """From the student's log-probs and ``values [M, T, 8]``: KL, the teacher's log-prob of the response, the
        student's of both likeliest tokens, the teacher's of both, and the tokens, which float32 holds exactly."""
        values = values if len(mask) else torch.zeros(*mask.shape, 8)
        return cls(
            mask,
            values[..., 0],
            logprobs,
            values[..., 1],
            values[..., 6:8].long(),
            values[..., 2:4],
            values[..., 4:6],
        )
