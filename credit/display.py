"""Batches and credit as people read them: one line, an HTML table, and what looks like a mistake."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .segments import segment_extremes, segment_sum
from .signals import get_signal, list_signals

if TYPE_CHECKING:
    from .inputs import Credit, CreditInputs

_STYLE = "border-collapse:collapse;font:13px system-ui,sans-serif"
_CELL = "padding:2px 8px;border-bottom:1px solid #ddd;text-align:left"


def batch_line(inputs: CreditInputs, obligatory: Sequence[str]) -> str:
    """The batch in a line: its sizes, and the signals it holds beyond the obligatory ones."""
    given = [name for name in list_signals() if name not in obligatory and inputs.signal(name) is not None]
    groups = len(inputs.group_ids.unique())
    return (
        f"CreditInputs({inputs.num_rows} turns of {inputs.num_trajectories} trajectories in {groups} groups, "
        f"{int(inputs.token_counts.sum())} tokens, {inputs.dtype}, {inputs.response_mask.device}; "
        f"{', '.join(given) or 'no optional signals'})"
    )


def credit_line(credit: Credit) -> str:
    """The credit in a line: its sizes, the range of its advantages, the names of metrics and details."""
    low, high = _range(credit.advantages)
    rows, width = credit.advantages.shape
    weights = _range(credit.turn_weights)
    return (
        f"Credit({rows} turns of up to {width} tokens, advantages {low:.3g} .. {high:.3g}, weights {weights[0]:.3g} .. "
        f"{weights[1]:.3g}; metrics {list(credit.metrics)}, details {list(credit.details)})"
    )


def batch_table(inputs: CreditInputs, obligatory: Sequence[str]) -> str:
    """The batch as an HTML table: one row per signal."""
    rows = []
    for name in list_signals():
        value = inputs.signal(name)
        if value is not None:
            rows.append((name, _shape(value), _extent(value, inputs.response_mask), get_signal(name).doc))
    return _table(batch_line(inputs, obligatory), ("signal", "shape", "values", "meaning"), rows)


def credit_table(credit: Credit) -> str:
    """The credit as an HTML table: advantages, weights, metrics and details."""
    rows = [("advantages", _shape(credit.advantages), _span(credit.advantages))]
    rows += [("turns", f"[{len(credit.advantages)}]", _signs(credit.advantages))]
    rows += [("turn_weights", _shape(credit.turn_weights), _span(credit.turn_weights))]
    rows += [(f"metrics[{name!r}]", "", f"{float(value):.4g}") for name, value in credit.metrics.items()]
    rows += [(f"details[{name!r}]", _shape(value), _span(value)) for name, value in credit.details.items()]
    return _table(credit_line(credit), ("what", "shape", "values"), rows)


def _signs(advantages: Tensor) -> str:
    """How many turns are praised, blamed, and neither, by the sum of their tokens' advantages."""
    sums = advantages.detach().double().sum(-1)
    above, below = int((sums > 0).sum()), int((sums < 0).sum())
    return f"{above} praised (credit above 0), {below} blamed (below 0), {len(sums) - above - below} with none"


def _range(values: Tensor) -> tuple[float, float]:
    values = values.detach()
    return (float(values.min()), float(values.max())) if values.numel() else (0.0, 0.0)


def _shape(value: Any) -> str:
    return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}" if isinstance(value, Tensor) else ""


def _extent(value: Any, mask: Tensor) -> str:
    """The range of a signal, inside the mask where it has one value per token."""
    if isinstance(value, Tensor) and value.shape == mask.shape and value.is_floating_point():
        value = value[mask]
    return _span(value)


def _span(value: Any) -> str:
    if not isinstance(value, Tensor) or not value.numel():
        return type(value).__name__ if not isinstance(value, Tensor) else "empty"
    if value.dtype == torch.bool:
        return f"{int(value.sum())} of {value.numel()} true"
    low, high = _range(value)
    return f"{low:.4g} .. {high:.4g}"


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f'<{tag} style="{_CELL}">{escape(cell)}</{tag}>' for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return (
        f'<table style="{_STYLE}"><caption style="text-align:left">{escape(caption)}</caption>'
        f"<thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"
    )


def doubts(inputs: CreditInputs) -> list[str]:
    """What of a batch may be meant but rarely is, a sentence each; see :meth:`CreditInputs.remarks`."""
    found = []
    members = torch.bincount(inputs.group_index)
    if int(members.max()) == 1:
        found.append(
            f"group_ids must give groups more than one trajectory, got {len(members)} groups of one; every "
            "group-relative method gives 0, group by task"
        )
    rewards = inputs.turn_rewards
    if rewards is not None:
        sums = segment_sum(rewards.detach().double(), inputs.trajectory_ids, inputs.num_trajectories)
        off = (sums - inputs.rewards.detach().double()).abs() > 1e-4 * (1 + inputs.rewards.detach().double().abs())
        if bool(off.any()):
            place = int(off.nonzero()[0, 0])
            found.append(
                f"turn_rewards must sum to rewards, got {float(sums[place]):g} for {float(inputs.rewards[place]):g} in "
                f"trajectory {place}, and {int(off.sum())} such trajectories; methods disagree about the return"
            )
    return found


def loses_turn_rewards(inputs: CreditInputs) -> bool:
    """Whether outcomes stand in ``turn_rewards`` only, which many methods ignore: returns are equal in every group, and
    sums of the turns' rewards are not."""
    if inputs.turn_rewards is None:
        return False
    count = int(inputs.group_index.max()) + 1
    sums = segment_sum(inputs.turn_rewards.detach().double(), inputs.trajectory_ids, inputs.num_trajectories)
    return _equal(inputs.rewards.detach().double(), inputs, count) and not _equal(sums, inputs, count)


def _equal(values: Tensor, inputs: CreditInputs, count: int) -> bool:
    low, high = segment_extremes(values, inputs.group_index, count)
    return bool((high - low <= 1e-9 * (1 + high.abs())).all())
