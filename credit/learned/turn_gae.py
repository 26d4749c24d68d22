"""Turn-level generalised advantage estimation: a value head says what each turn was expected to earn."""

from __future__ import annotations

import torch

from ..checks import check_range
from ..inputs import Credit, CreditInputs
from ..metrics import Mean
from ..registry import register_credit
from ..segments import wide
from ..states import discounted
from ..tokens import spread
from .turns import earned, edge_weights, following


@register_credit("turn_ppo", requires=("values",))
def turn_gae(inputs: CreditInputs, *, discount: float = 1.0, trace: float = 0.95) -> Credit:
    """GAE over turns: ``A_k = delta_k + discount * trace * A_{k+1}`` for every token of turn k.

        delta_k = r_k + discount * V_{k+1} - V_k,   V = 0 after the last turn

    Source: Turn-PPO (arXiv 2512.17008), docs/equations.md#turn-ppo. The turn is the action, so V is read once a turn,
    before its first token, and is constant over it. The rewards r_k are ``turn_rewards``, and the last turn has what
    the return has beyond them: an episode that was cut off keeps its terminal reward. Not relative to a group: a group
    of one, or with equal rewards, has the advantage that the values leave, which is 0 where they foretell the return.

    Args:
        inputs: the batch; needs ``values``.
        discount: gamma, in (0, 1].
        trace: lambda, in [0, 1]; 1 is the return less V_k, 0 the one-step error delta_k.

    Returns:
        Credit with ``turn_weights`` all 1 and details: ``turn_returns [M]`` = A_k + V_k, the target of the value,
        ``old_values [M]`` = V_k, ``value_tokens [M, T]``, where the value's loss stands, so that it is the mean over
        trajectories of the mean over turns. Metrics: ``mean_value``, ``mean_abs_value_error`` of A_k, over turns.

    Raises:
        ValueError: an option is out of range, or ``values`` is None.
    """
    check_range("turn_gae", "discount", discount, 0, 1, "(")
    check_range("turn_gae", "trace", trace, 0, 1)
    values = inputs.values.detach().to(wide(inputs.values.device))
    deltas = earned(inputs) + discount * following(inputs, values) - values
    advantages = discounted(inputs, deltas, discount * trace)
    rows = advantages.to(inputs.dtype)
    counts = inputs.turn_counts[inputs.trajectory_ids].float()[:, None]
    details = {
        "turn_returns": (advantages + values).to(inputs.dtype),
        "old_values": values.to(inputs.dtype),
        "value_tokens": edge_weights(inputs, last=False) / counts,
    }
    metrics: dict[str, float] = {
        "mean_value": Mean(float(values.mean()), values.numel()),
        "mean_abs_value_error": Mean(float(advantages.abs().mean()), values.numel()),
    }
    return Credit(spread(rows, inputs.response_mask), torch.ones_like(rows), metrics, details)
