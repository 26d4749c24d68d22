"""Fields of a batch out of trajectories: anything with the attributes of the library's own records will do."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

_WHERE = "CreditInputs.from_trajectories"
_ROUNDING = 1e-3  # of a log-softmax in bfloat16


def fields_of(trajectories: Iterable[Any]) -> dict[str, Any]:
    """Every field of :class:`~turncredit.credit.inputs.CreditInputs` that the records fill; one row per turn, in order.

    Args:
        trajectories: N records with ``turns``, ``group_id``, ``reward``, ``success``; of a turn ``response_ids`` and
            ``logprobs`` are read, and where there are any ``teacher_logprobs``, ``valid``, ``action_tokens``,
            ``anchor`` or ``observation``, ``reward``. Turns that were replayed have no row.

    Raises:
        ValueError: no trajectory, a failed one, a turn without ids or log-probs, or a teacher for some turns only.
    """
    trajectories = list(trajectories)
    parts = [tuple(t.turns)[getattr(t, "replayed", 0) :] for t in trajectories]
    turns = [turn for part in parts for turn in part]
    _check(trajectories, parts, turns)
    counts = torch.tensor([len(part) for part in parts])
    lengths = torch.tensor([len(turn.response_ids) for turn in turns])
    mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
    owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
    groups = torch.tensor([int(t.group_id) for t in trajectories])
    return {
        "response_mask": mask,
        "trajectory_ids": owner,
        "turn_ids": torch.tensor([place for part in parts for place in range(len(part))]),
        "group_ids": groups,
        "rewards": torch.tensor([float(t.reward) for t in trajectories]),
        "successes": torch.tensor([float(t.success) for t in trajectories]),
        "student_logprobs": _padded("logprobs", [turn.logprobs for turn in turns], mask),
        "teacher_logprobs": _teacher(turns, mask),
        "valid_actions": torch.tensor([bool(getattr(turn, "valid", True)) for turn in turns]),
        "span_mask": _spans([getattr(turn, "action_tokens", None) for turn in turns], mask),
        "anchor_ids": _anchors(groups[owner].tolist(), [_seen(turn) for turn in turns]),
        "turn_rewards": torch.tensor([float(getattr(turn, "reward", 0.0)) for turn in turns]),
    }


def _check(trajectories: Sequence[Any], parts: Sequence[Sequence[Any]], turns: Sequence[Any]) -> None:
    if not trajectories:
        raise ValueError(f"{_WHERE}: trajectories must not be empty, got none; collect or load some first")
    for place, (trajectory, part) in enumerate(zip(trajectories, parts, strict=True)):
        what = f"{place} (task {getattr(trajectory, 'task_id', None)!r})"
        failure = getattr(trajectory, "failure", None)
        if failure is not None:
            raise ValueError(
                f"{_WHERE}: trajectories must not be failed ones, got {failure!r} for {what}; leave them out, a "
                "missing reward is not a reward of 0"
            )
        if not part:
            raise ValueError(f"{_WHERE}: trajectories must have turns of their own, got none in {what}; leave it out")
        if any(not turn.response_ids for turn in part):
            raise ValueError(
                f"{_WHERE}: trajectories must have token ids, got a turn without any in {what}; imported ones get them "
                "by score_traces(trajectories, model, tokenizer)"
            )
    imported = [turn for turn in turns if getattr(turn, "message", None) is not None]
    if imported and not any(value for turn in imported for value in turn.logprobs):
        raise ValueError(
            f"{_WHERE}: trajectories must have log-probs, got 0 for every token of the imported turns; score them, "
            "score_traces(trajectories, model, tokenizer)"
        )


def _padded(name: str, values: Sequence[Sequence[float]], mask: Tensor) -> Tensor:
    """``[M, T]`` float32, 0 outside the mask.

    Raises:
        ValueError: a log-prob above 0.
    """
    flat = torch.tensor([value for row in values for value in row], dtype=torch.float32)
    above = (flat > _ROUNDING).nonzero()
    if len(above):
        place = int(above[0])
        row = int((mask.sum(1).cumsum(0) <= place).sum())
        raise ValueError(
            f"{_WHERE}: {name} must be at most 0, got {float(flat[place]):g} in row {row}; give logarithms of "
            "probabilities, not losses or probabilities"
        )
    return torch.zeros(mask.shape).masked_scatter(mask, flat)


def _teacher(turns: Sequence[Any], mask: Tensor) -> Tensor | None:
    """``[M, T]`` of the teacher; None where no turn has any.

    Raises:
        ValueError: some have.
    """
    given = [getattr(turn, "teacher_logprobs", None) for turn in turns]
    told = [row for row in given if row is not None]
    if not told:
        return None
    if len(told) < len(given):
        raise ValueError(
            f"{_WHERE}: trajectories must have teacher_logprobs in all turns or in none, got them in {len(told)} of "
            f"{len(given)}; score all with one context"
        )
    return _padded("teacher_logprobs", told, mask)


def _spans(spans: Sequence[tuple[int, int] | None], mask: Tensor) -> Tensor | None:
    """``[M, T]`` bool, the tokens of the actions; None where no turn has any."""
    if all(span is None for span in spans):
        return None
    ends = torch.tensor([span or (0, 0) for span in spans])
    columns = torch.arange(mask.shape[1])[None]
    return (columns >= ends[:, :1]) & (columns < ends[:, 1:]) & mask


def _seen(turn: Any) -> Hashable:
    return getattr(turn, "anchor", "") or getattr(turn, "observation", "")


def _anchors(groups: Sequence[int], seen: Sequence[Hashable]) -> Tensor | None:
    """``[M]`` int64, equal for rows of a group that saw the same; None where nothing was recorded."""
    if not any(seen):
        return None
    labels: dict[tuple[int, Hashable], int] = {}
    return torch.tensor([labels.setdefault(row, len(labels)) for row in zip(groups, seen, strict=True)])
