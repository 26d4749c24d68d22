"""RLOO: a rollout against the mean of the others of its group."""

from __future__ import annotations

from ..groups import faded, group_metrics, leave_one_out
from ..inputs import Credit, CreditInputs
from ..registry import register_credit
from ..tokens import spread


@register_credit("rloo")
def rloo(inputs: CreditInputs, *, outcome_discount: float = 1.0) -> Credit:
    """One advantage for the whole trajectory, ``A_i = R_i - mean of the other R_j of the group``, not divided.

    Source: RLOO, as LOOP (arXiv 2502.01600) has it for agents; docs/equations.md#rloo.

    Args:
        inputs: the batch.
        outcome_discount: in (0, 1], fades every return, see :func:`~turncredit.credit.groups.faded`.

    Returns:
        Credit with ``turn_weights`` of 1 and the metrics of :func:`~turncredit.credit.groups.group_metrics`. A group
        of one, or of equal returns, has credit of exactly 0.

    Raises:
        ValueError: the discount is out of range.
    """
    outcomes = faded(inputs.rewards, inputs.turn_counts, outcome_discount)
    advantages = leave_one_out(outcomes, inputs.group_ids, tolerance=1e-7).to(inputs.dtype)
    rows = advantages[inputs.trajectory_ids]
    return Credit(spread(rows, inputs.response_mask), rows.new_ones(len(rows)), group_metrics(inputs, advantages))
