"""StepOPSD: the teacher's gap weights the tokens of a turn's causal span, and turns are brought to equal strength."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import check_range
from .groups import group_metrics, trajectory_advantages
from .inputs import Credit, CreditInputs
from .metrics import Mean, deviation
from .registry import register_credit
from .schedules import linear_decay
from .segments import segment_mean, segment_sum
from .tokens import mean_factor, scale_and_fill_, spread, weigh_tokens

_STEP_EPS = 1e-6
_STEP_RANGE = (0.5, 2.0)


@register_credit("step_opsd", requires=("span_mask", "teacher_logprobs"))
def step_opsd(
    inputs: CreditInputs,
    *,
    lam: float = 0.2,
    band: float = 0.2,
    step_normalization: bool = True,
    decay_steps: int | None = 50,
    step: int = 0,
    eps: float = 1e-4,
    scale_rewards: bool = True,
    normalization_scope: str = "trajectory",
    outcome_discount: float = 1.0,
) -> Credit:
    """Weight span tokens by ``w = clip(2 sigmoid(sign(A_i) * delta), 1 - band, 1 + band)``, then equalise turns.

    ``A~ = A_i * (1 + lam_s * (w - 1))`` with ``delta = 0`` outside ``span_mask`` and
    ``lam_s = lam * max(0, 1 - step / decay_steps)``. Step normalisation, for trajectories with two spans or more:
    ``m_k`` = mean of |A~| over the span tokens of turn k, ``coef_k = clip(mean_k m_k / (m_k + 1e-6), 1/2, 2)``
    multiplies the span tokens of turn k.

    Source: StepOPSD (arXiv 2605.27140), docs/equations.md#stepopsd. Where lam_s is 0 all m_k are equal and the
    normalisation is left out, so that the end of the schedule is GRPO bit for bit.

    Args:
        inputs: the batch; needs ``teacher_logprobs`` (a stale snapshot under hindsight) and ``span_mask``
            (``action_only`` or ``clean_step`` tokens). A row may have an empty span.
        lam: share of the weight before the first update, in [0, 1].
        band: half-width a of the weight's range, in (0, 1).
        step_normalization: equalise the turns of a trajectory.
        decay_steps: updates until the share is 0; None keeps it.
        step: optimiser updates done.
        eps, scale_rewards, normalization_scope: as in :func:`group_relative_advantages`.
        outcome_discount: in (0, 1], fades every return, see :func:`~turncredit.credit.groups.faded`.

    Returns:
        Credit with ``turn_weights`` = mean of A~ / A_i over the turn's tokens (1 where A_i = 0) and
        ``details["step_coefficients"]`` ``[M]``, coef_k (1 where none applies). Metrics: ``lam`` = lam_s,
        ``span_share`` = span tokens / sampled tokens, ``step_coefficient_std`` = population standard deviation of
        coef_k over turns, and those of
        :func:`~turncredit.credit.groups.group_metrics`.

    Raises:
        ValueError: an option is out of range, or ``teacher_logprobs`` or ``span_mask`` is None.
    """
    check_range("step_opsd", "lam", lam, 0, 1)
    check_range("step_opsd", "band", band, 0, 1, "()")
    share = linear_decay(lam, step=step, decay_steps=decay_steps)
    trajectory = trajectory_advantages(
        inputs,
        scale_rewards=scale_rewards,
        normalization_scope=normalization_scope,
        eps=eps,
        outcome_discount=outcome_discount,
    )
    advantage = trajectory[inputs.trajectory_ids]
    assert inputs.span_mask is not None  # required by the registration
    mask, span = inputs.response_mask, inputs.span_mask
    sizes, counts = inputs.span_counts, inputs.token_counts
    coefficients, mean = torch.ones_like(advantage), advantage
    if share == 0:
        credit = spread(advantage, mask)
    else:
        # In the span A (1 + share (w - 1)) is 2 share |A| times this, as sigmoid(-x) = 1 - sigmoid(x).
        def weigh(gaps: Tensor, shift: Tensor) -> Tensor:
            return gaps.sigmoid_().clamp_((1 - band) / 2, (1 + band) / 2).add_(shift)

        shifted, sums = weigh_tokens(inputs, weigh, advantage.sign() / (2 * share) - 0.5, mask=span)
        size = 2 * share * advantage.abs()
        if step_normalization:
            strength = size * sums.abs() / sizes.clamp(min=1)
            coefficients = step_coefficients(strength, sizes > 0, inputs.trajectory_ids, inputs.num_trajectories)
        scale = size * coefficients
        credit = scale_and_fill_(shifted, scale, advantage, mask ^ span)
        mean = (scale * sums + advantage * (counts - sizes)) / counts
    metrics = {
        "lam": share,
        "span_share": Mean(int(sizes.sum()) / int(counts.sum()), int(counts.sum())),
        "step_coefficient_std": deviation(coefficients),
        **group_metrics(inputs, trajectory),
    }
    return Credit(credit, mean_factor(mean, advantage), metrics, {"step_coefficients": coefficients})


def step_coefficients(strength: Tensor, has_span: Tensor, trajectory_ids: Tensor, count: int) -> Tensor:
    """``coef_k = clip(mean_k m_k / (m_k + 1e-6), 1/2, 2)`` per trajectory with two spans or more, else 1.

    Args:
        strength: ``[M]`` m_k, mean |A~| over the span tokens of each turn.
        has_span: ``[M]`` bool, whether the turn has span tokens; others neither count nor change.
        trajectory_ids: ``[M]`` int64 in [0, count).
        count: number of trajectories.

    Returns:
        ``[M]`` coefficients.
    """
    mean = segment_mean(strength, trajectory_ids, count, weights=has_span)
    spans = segment_sum(has_span.to(strength.dtype), trajectory_ids, count)
    applies = has_span & (spans >= 2)[trajectory_ids]
    return torch.where(applies, (mean[trajectory_ids] / (strength + _STEP_EPS)).clamp(*_STEP_RANGE), 1.0)
