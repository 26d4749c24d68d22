"""The policy objective, term by term: pure functions on tensors of response tokens.

Every term returns one value per token; `loss_coefficients` turns them into one number whose value does not depend on
how the rows are cut into micro-batches or spread over processes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..credit.segments import wide

POLICY_LOSSES = ("clip", "cispo")

RATIO_LEVELS = ("token", "turn", "trajectory")

LOSS_TYPES = ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm")

TRL_LOSS_TYPES = {"grpo": "seq-mean-token-mean", "dapo": "token-mean", "dr_grpo": "seq-mean-token-sum-norm"}
"""TRL's names of loss types; its completions are the trajectories here."""


@dataclass(frozen=True)
class PolicyLoss:
    """Per-token policy loss and what the clipping did.

    Args:
        loss: ``[n]`` float, to be minimised.
        ratio: ``[n]`` float, pi / pi_rollout, detached.
        clipped_low, clipped_high, clipped_dual: ``[n]`` bool, where each bound was active.
    """

    loss: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    clipped_dual: Tensor


def clipped_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    epsilon: float = 0.2,
    epsilon_high: float = 0.24,
    delta: float | None = 3.0,
    log_ratio: Tensor | None = None,
) -> PolicyLoss:
    """Clipped surrogate with an asymmetric range and a dual clip for negative advantages.

        r = exp(logprobs - old_logprobs)
        objective = min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A);   for A < 0: max(objective, delta A)

    Source: DAPO (asymmetric range); docs/equations.md#policy-objective for the defaults. loss = -objective.

    Args:
        logprobs: ``[n]`` float, current policy, with gradient.
        old_logprobs: ``[n]`` float, the policy that sampled.
        advantages: ``[n]`` float, detached credit per token.
        epsilon, epsilon_high: clip range below and above 1.
        delta: bound on the ratio where the advantage is negative; None turns it off.
        log_ratio: ``[n]`` float, of the sequence that each token belongs to, see `sequence_log_ratios`, in the place of
            the token's own: GSPO. Its value counts; the gradient is that of the token's log-prob.

    Raises:
        ValueError: shapes differ, a range is negative, or delta does not exceed 1 + epsilon_high.
    """
    _check_shapes("clipped_policy_loss", logprobs, old_logprobs, advantages)
    if epsilon < 0 or epsilon_high < 0:
        raise ValueError(f"clipped_policy_loss: epsilon must not be negative, got {epsilon} and {epsilon_high}")
    if delta is not None and delta <= 1 + epsilon_high:
        raise ValueError(
            f"clipped_policy_loss: delta must exceed 1 + epsilon_high = {1 + epsilon_high}, got {delta}; "
            "use None to turn the dual clip off"
        )
    # beyond e^20 the exact ratio no longer matters (it is clipped or dominated), but inf would poison the gradient
    ratio = (logprobs - old_logprobs).clamp(-20, 20).exp()
    if log_ratio is not None:
        ratio = log_ratio.detach().clamp(-20, 20).exp() * (logprobs - logprobs.detach()).exp()
    bounded = ratio.clamp(1 - epsilon, 1 + epsilon_high)
    objective = torch.minimum(ratio * advantages, bounded * advantages)
    negative = advantages < 0
    dual = torch.zeros_like(negative)
    if delta is not None:
        dual = negative & (objective < delta * advantages)
        objective = torch.where(dual, delta * advantages, objective)
    detached = ratio.detach()
    return PolicyLoss(
        loss=-objective,
        ratio=detached,
        clipped_low=negative & (detached < 1 - epsilon),
        clipped_high=(advantages > 0) & (detached > 1 + epsilon_high),
        clipped_dual=dual,
    )


def cispo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    epsilon_high: float = 0.24,
    log_ratio: Tensor | None = None,
) -> PolicyLoss:
    """REINFORCE with a bounded importance weight: no token is left without a gradient, however far its ratio went.

        objective = min(r, 1 + epsilon_high) A log pi,   r = exp(logprobs - old_logprobs) detached

    Source: CISPO (MiniMax-M1, arXiv 2506.13585), Eq. 4-5, which sets no lower bound either.

    Args:
        logprobs, old_logprobs, advantages, log_ratio: see `clipped_policy_loss`.
        epsilon_high: the weight is at most one more than this.

    Raises:
        ValueError: shapes differ, or `epsilon_high` is negative.
    """
    _check_shapes("cispo_loss", logprobs, old_logprobs, advantages)
    if epsilon_high < 0:
        raise ValueError(f"cispo_loss: epsilon_high must not be negative, got {epsilon_high}; 0 never raises a weight")
    log_ratio = logprobs - old_logprobs if log_ratio is None else log_ratio
    ratio = log_ratio.detach().clamp(-20, 20).exp()
    nothing = torch.zeros_like(ratio, dtype=torch.bool)
    weight = ratio.clamp(max=1 + epsilon_high)
    return PolicyLoss(-weight * advantages * logprobs, ratio, nothing, ratio > 1 + epsilon_high, nothing)


def sequence_log_ratios(log_ratios: Tensor, sequences: Tensor) -> Tensor:
    """``[n]`` mean log-ratio of each token's sequence: ``(1 / |y|) sum_t log pi / pi_old``, detached.

    Source: GSPO (arXiv 2507.18071), Eq. 7, the log of its ratio.

    Args:
        log_ratios: ``[n]`` float, of every token.
        sequences: ``[n]`` int64, any labels: equal for tokens of one sequence.

    >>> sequence_log_ratios(torch.tensor([0.1, 0.3, 0.5]), torch.tensor([4, 4, 7]))
    tensor([0.2000, 0.2000, 0.5000])
    """
    labels, index = torch.unique(sequences, return_inverse=True)
    values = log_ratios.detach().to(wide(log_ratios.device))
    sums = values.new_zeros(len(labels)).index_add_(0, index, values)
    return (sums / torch.bincount(index, minlength=len(labels)).clamp(min=1))[index].to(log_ratios.dtype)


def _check_shapes(where: str, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> None:
    if not logprobs.shape == old_logprobs.shape == advantages.shape:
        shapes = [tuple(x.shape) for x in (logprobs, old_logprobs, advantages)]
        raise ValueError(f"{where}: logprobs, old_logprobs and advantages must agree in shape, got {shapes}")


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Per-token estimate of KL(policy || reference): exp(d) - d - 1 with d = log ref - log policy.

    Source: GRPO, Eq. 4 ("k3", low variance); never negative. As a loss its gradient is that of the reverse KL in the
    first order, while that of k1 has zero expectation. d is clamped to [-20, 20].

    Args:
        logprobs: ``[n]`` float, current policy, with gradient.
        ref_logprobs: ``[n]`` float, frozen reference.
    """
    difference = (ref_logprobs - logprobs).clamp(-20, 20)
    return difference.exp() - difference - 1


def loss_coefficients(
    response_mask: Tensor,
    trajectory_ids: Tensor,
    active: Tensor,
    *,
    loss_type: str = "seq-mean-token-mean",
    max_completion_length: int = 512,
) -> tuple[Tensor, Tensor]:
    """The weight of every row's tokens, and this process's share of the denominator.

    The loss of an optimiser step is ``sum_rows coefficient * sum_tokens term / denominator``, the denominator summed
    over processes: the same number however rows are cut or spread.

        seq-mean-token-mean      coefficient 1 / n_i, denominator: number of active trajectories (AgentOPSD, Eq. 12)
        token-mean               coefficient 1, denominator: number of active tokens (AlignOPSD, DAPO)
        seq-mean-token-sum-norm  coefficient 1 / max_completion_length, denominator: active trajectories (Dr.GRPO)

    with n_i the response tokens of trajectory i over all its turns.

    Args:
        response_mask: ``[M, T]`` bool.
        trajectory_ids: ``[M]`` int64, any labels.
        active: ``[M]`` bool, rows that take part (False for rows of zero-variance groups).
        loss_type: one of `LOSS_TYPES`, or TRL's name of one.
        max_completion_length: the constant of ``seq-mean-token-sum-norm``, tokens.

    Returns:
        ``coefficients [M]`` float32 (0 where not active) and ``denominator []`` float32.

    Raises:
        ValueError: `loss_type` is unknown.
    """
    loss_type = TRL_LOSS_TYPES.get(loss_type, loss_type)
    if loss_type not in LOSS_TYPES:
        known = (*LOSS_TYPES, *TRL_LOSS_TYPES)
        raise ValueError(f"loss_coefficients: loss_type must be one of {known}, got {loss_type!r}; correct its name")
    tokens = response_mask.sum(1).float() * active
    labels, index = torch.unique(trajectory_ids, return_inverse=True)
    per_trajectory = torch.zeros(len(labels)).index_add_(0, index, tokens)
    trajectories = (per_trajectory > 0).sum().float()
    if loss_type == "token-mean":
        return active.float(), tokens.sum()
    if loss_type == "seq-mean-token-sum-norm":
        return active.float() / max_completion_length, trajectories
    return torch.where(active, 1 / per_trajectory[index].clamp(min=1), torch.zeros(())), trajectories


def sdar_loss(logprobs: Tensor, teacher_logprobs: Tensor, student_logprobs: Tensor, *, beta: float = 5.0) -> Tensor:
    """Gated distillation: -g * log pi with g = sigmoid(beta * delta) detached, delta the teacher's token gap.

    Source: SDAR; docs/equations.md#auxiliary-losses, Eq. (37). beta = 0 gives the ungated OPSD term (g = 1/2).

    Args:
        logprobs: ``[n]`` float, current policy, with gradient.
        teacher_logprobs, student_logprobs: ``[n]`` float, the same tokens with and without privileged context.
    """
    gate = torch.sigmoid(beta * (teacher_logprobs - student_logprobs)).detach()
    return gate * (teacher_logprobs.detach() - logprobs)


def skill_sd_loss(logprobs: Tensor, teacher_logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Importance-weighted k3 towards the teacher: rho * (exp(-l) - 1 + l), l = log pi - log pi_T.

    Source: Skill-SD; docs/equations.md#auxiliary-losses. rho = exp(log pi - log pi_old), its log capped at 10, the
    exponent at 20.

    Args:
        logprobs: ``[n]`` float, current policy, with gradient.
        teacher_logprobs: ``[n]`` float, detached.
        old_logprobs: ``[n]`` float, the sampling policy.
    """
    gap = logprobs - teacher_logprobs.detach()
    ratio = (logprobs - old_logprobs).clamp(max=10).exp()
    return ratio * ((-gap).clamp(max=20).exp() - 1 + gap)
