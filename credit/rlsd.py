"""RLSD: each token's weight is the clipped teacher-student ratio, turned by the outcome's sign."""

from __future__ import annotations

import torch

from ._checks import check_range
from ._gaps import row_blocks, token_gaps
from .groups import group_metrics, trajectory_advantages
from .inputs import Credit, CreditInputs
from .registry import register_credit
from .schedules import linear_decay


@register_credit("rlsd", requires=("teacher_logprobs",))
def rlsd(
    inputs: CreditInputs,
    *,
    lam: float = 0.5,
    band: float = 0.2,
    decay_steps: int | None = 100,
    step: int = 0,
    eps: float = 1e-4,
    scale_rewards: bool = True,
    normalization_scope: str = "trajectory",
) -> Credit:
    """Token weights ``w_t = clip(exp(sign(A_i) * delta_t), 1 - band, 1 + band)``, mixed in by a share that decays.

    ``A~_t = A_i * (1 + lam_s * (w_t - 1))``, ``lam_s = lam * max(0, 1 - step / decay_steps)``, with the token gap
    ``delta_t = log pi(y_t | h+) - log pi(y_t | h)``.

    Source: RLSD (arXiv 2604.03128).

    Args:
        inputs: the batch; needs ``teacher_logprobs``.
        lam: share of the weight before the first update, in [0, 1]; 0 is GRPO bit for bit.
        band: half-width of the weight's range, in (0, 1).
        decay_steps: updates until the share is 0; None keeps it.
        step: optimiser updates done.
        eps, scale_rewards, normalization_scope: as in :func:`group_relative_advantages`.

    Returns:
        Credit with ``turn_weights`` = mean of w_t over the turn's tokens. Metrics: ``lam`` = lam_s,
        ``weight_clip_share`` = sampled tokens of trajectories with A_i != 0 whose weight is at an edge of its range /
        all such tokens, and those of :func:`~turncredit.credit.groups.group_metrics`.

    Raises:
        ValueError: an option is out of range, or ``teacher_logprobs`` is None.
    """
    check_range("rlsd", "lam", lam, 0, 1)
    check_range("rlsd", "band", band, 0, 1, "()")
    share = linear_decay(lam, step=step, decay_steps=decay_steps)
    trajectory = trajectory_advantages(
        inputs, scale_rewards=scale_rewards, normalization_scope=normalization_scope, eps=eps
    )
    advantage = trajectory[inputs.trajectory_ids][:, None]
    sign = advantage.sign()
    out = torch.empty(inputs.response_mask.shape, dtype=inputs.dtype, device=advantage.device)
    excess = out.new_empty(inputs.num_rows)
    clipped = torch.zeros((), dtype=torch.int64, device=out.device)
    for rows in row_blocks(out):
        weight = token_gaps(inputs, rows, out[rows]).mul_(sign[rows]).exp_().clamp_(1 - band, 1 + band).sub_(1)
        excess[rows] = weight.sum(-1)
        clipped += (weight.abs() >= band * (1 - 1e-6)).sum()
        weight.mul_(share).add_(1).mul_(advantage[rows]).masked_fill_(~inputs.response_mask[rows], 0)
    counts = inputs.token_counts
    credited = counts[trajectory[inputs.trajectory_ids] != 0].sum()
    metrics = {
        "lam": float(share),
        "weight_clip_share": float(clipped / credited.clamp(min=1)),
        **group_metrics(inputs, trajectory),
    }
    return Credit(out, 1 + excess / counts, metrics)
