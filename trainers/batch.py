"""From trajectories to rows: one row per turn, the layout that scoring, credit and the loss share."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..rollout.types import Trajectory, Turn


@dataclass(frozen=True)
class TurnBatch:
    """The turns of N trajectories as M rows, in order; replayed turns have none.

    Args:
        trajectories: N trajectories with at least one turn and no failure.
        turns: M turns.
        trajectory_ids: ``[M]`` int64 in [0, N).
        turn_ids: ``[M]`` int64.
        group_ids: ``[N]`` int64.
        response_mask: ``[M, T]`` bool.
        sampled_logprobs: ``[M, T]`` float32, recorded while sampling; 0 outside the mask.
    """

    trajectories: tuple[Trajectory, ...]
    turns: tuple[Turn, ...]
    trajectory_ids: Tensor
    turn_ids: Tensor
    group_ids: Tensor
    response_mask: Tensor
    sampled_logprobs: Tensor

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """Student prompts, one per row."""
        return [turn.prompt_ids for turn in self.turns]

    @property
    def responses(self) -> list[tuple[int, ...]]:
        """Sampled response ids, one per row."""
        return [turn.response_ids for turn in self.turns]


def usable(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories that may be trained on: those that did not fail, with a turn that was not replayed. A missing
    reward is not a reward of 0."""
    return [t for t in trajectories if t.failure is None and len(t.turns) > t.replayed]


def make_batch(trajectories: Sequence[Trajectory]) -> TurnBatch:
    """Lay out trajectories as rows; failed ones must be left out before (`usable`).

    Raises:
        ValueError: a trajectory failed.
    """
    failed = [trajectory.task_id for trajectory in trajectories if trajectory.failure is not None]
    if failed:
        raise ValueError(
            f"make_batch: trajectories must not be failed ones, got {failed[:3]}; pass usable(trajectories)"
        )
    own = [trajectory.turns[trajectory.replayed :] for trajectory in trajectories]  # others were not sampled here
    turns = tuple(turn for part in own for turn in part)
    counts = torch.tensor([len(part) for part in own], dtype=torch.long)
    width = max((len(turn.response_ids) for turn in turns), default=0)
    lengths = torch.tensor([len(turn.response_ids) for turn in turns], dtype=torch.long)
    mask = torch.arange(width)[None] < lengths[:, None]
    flat = torch.tensor([value for turn in turns for value in turn.logprobs], dtype=torch.float32)
    return TurnBatch(
        trajectories=tuple(trajectories),
        turns=turns,
        trajectory_ids=torch.repeat_interleave(torch.arange(len(counts)), counts),
        turn_ids=torch.tensor([k for part in own for k in range(len(part))], dtype=torch.long),
        group_ids=torch.tensor([trajectory.group_id for trajectory in trajectories], dtype=torch.long),
        response_mask=mask,
        sampled_logprobs=torch.zeros(mask.shape).masked_scatter(mask, flat),
    )


def span_mask(batch: TurnBatch, kind: str) -> Tensor:
    """``[M, T]`` bool: the causal span of every turn.

    Args:
        batch: the rows.
        kind: ``"action_only"`` (the tokens of the action) or ``"clean_step"`` (thinking and action tokens).

    Source: StepOPSD; docs/equations.md#stepopsd. A turn whose action could not be parsed has an empty span.
    """
    if kind not in ("action_only", "clean_step"):
        raise ValueError(f'span_mask: kind must be "action_only" or "clean_step", got {kind!r}')
    columns = torch.arange(batch.response_mask.shape[1])[None]
    mask = torch.zeros_like(batch.response_mask)
    for name in ("action_tokens",) if kind == "action_only" else ("action_tokens", "thinking_tokens"):
        spans = torch.tensor([getattr(turn, name) or (0, 0) for turn in batch.turns], dtype=torch.long).reshape(-1, 2)
        mask |= (columns >= spans[:, :1]) & (columns < spans[:, 1:])
    return mask & batch.response_mask


def anchor_ids(batch: TurnBatch, seen: Sequence[Hashable] | None = None) -> Tensor:
    """``[M]`` int64: equal for rows of the same group that saw the same (GiGPO's anchors).

    Args:
        batch: the rows.
        seen: what each of the M rows saw; None is the suite's anchor, else the observation.
    """
    labels: dict[tuple[int, Hashable], int] = {}
    groups = batch.group_ids[batch.trajectory_ids].tolist()
    seen = [turn.anchor or turn.observation for turn in batch.turns] if seen is None else seen
    rows = zip(groups, seen, strict=True)
    return torch.tensor([labels.setdefault((g, what), len(labels)) for g, what in rows], dtype=torch.long)
