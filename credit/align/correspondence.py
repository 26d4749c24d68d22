"""AlignOPSD stage 1, part one: which turns of sibling rollouts face the same decision.

A similarity block per task, ``[source, target]``: how close the privileged teacher's thinking at turn ``v`` (source)
is to the student's thinking at turn ``u`` (target) of a sibling rollout. Blocks are never joined into one ``[M, M]``
matrix: P tasks of m turns each cost P x m^2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..checks import check_bool, check_shape
from ..signals import register_signal
from .rectification import Sources, check_pairs

if TYPE_CHECKING:
    from ..inputs import CreditInputs

_ROUNDING = 1e-3


@dataclass(frozen=True)
class TaskBlock:
    """The turns of one task and their similarities.

    Args:
        rows: ``[m]`` int64, the batch row of each turn of the task, ordered by (trajectory, turn).
        trajectory_ids: ``[m]`` int64, the trajectory of each of these turns, ascending.
        turn_ids: ``[m]`` int64, the place of each turn in its trajectory, ascending within a trajectory.
        similarity: ``[m, m]`` float in [-1, 1], cosine of teacher thinking (source) and student thinking (target).
        eligible: ``[m, m]`` bool, whether the source may supervise the target; False within one trajectory.

    Raises:
        ValueError: a shape differs, the rows are out of order, a similarity of an eligible pair is not finite or
            outside [-1, 1], or a turn is eligible for a turn of its own rollout.
    """

    rows: Tensor
    trajectory_ids: Tensor
    turn_ids: Tensor
    similarity: Tensor
    eligible: Tensor

    def __post_init__(self) -> None:
        m = self.rows.numel()
        for name, shape in (("rows", (m,)), ("trajectory_ids", (m,)), ("turn_ids", (m,))):
            check_shape("TaskBlock", name, getattr(self, name), shape)
        for name in ("similarity", "eligible"):
            check_shape("TaskBlock", name, getattr(self, name), (m, m))
        check_bool("TaskBlock", "eligible", self.eligible)
        step = self.trajectory_ids.diff()
        if bool(((step < 0) | ((step == 0) & (self.turn_ids.diff() <= 0))).any()):
            raise ValueError(
                "TaskBlock: rows must be ordered by (trajectory, turn) without duplicates, got "
                f"{list(zip(self.trajectory_ids.tolist(), self.turn_ids.tolist(), strict=True))[:8]} ..; "
                "build blocks with build_correspondence or correspondence_from_similarity"
            )
        worst = torch.where(self.eligible, self.similarity.detach(), 0.0)
        if m and not bool((worst.abs() <= 1 + _ROUNDING).all()):
            value = worst.flatten()[(~(worst.abs() <= 1 + _ROUNDING)).flatten().int().argmax()].item()
            raise ValueError(
                f"TaskBlock: similarity must lie in [-1, 1] for eligible pairs, got {value}; "
                "give cosines of finite embeddings"
            )
        own = self.trajectory_ids[:, None] == self.trajectory_ids[None, :]
        if bool((self.eligible & own).any()):
            raise ValueError(
                "TaskBlock: eligible must be False between turns of one rollout, got True; "
                "mask it with trajectory_ids[:, None] != trajectory_ids[None, :]"
            )

    def to(self, device: torch.device | str) -> TaskBlock:
        """The same block with every tensor on ``device``."""
        return TaskBlock(*(getattr(self, field.name).to(device) for field in fields(self)))


@dataclass(frozen=True)
class Correspondence:
    """Similarities per task, and the selected pairs with their cross scores once they are known.

    Args:
        blocks: one ``TaskBlock`` per task; a batch row lies in at most one of them.
        sources: the selected pairs, or None before ``select_sources``.
        cross_logprobs: ``[P, T]`` float, nats: the target's response tokens under the *source's* privileged context
            followed by the target's own earlier tokens; or None before scoring.
    """

    blocks: tuple[TaskBlock, ...]
    sources: Sources | None = None
    cross_logprobs: Tensor | None = None

    def __post_init__(self) -> None:
        rows = torch.cat([block.rows for block in self.blocks]) if self.blocks else torch.empty(0, dtype=torch.long)
        if rows.unique().numel() != rows.numel():
            raise ValueError(
                "Correspondence: blocks must share no batch row, got a row in two blocks; give one block per task"
            )
        if self.cross_logprobs is not None:
            pairs = -1 if self.sources is None else self.sources.source.numel()
            if self.cross_logprobs.ndim != 2 or self.cross_logprobs.shape[0] != pairs:
                raise ValueError(
                    f"Correspondence: cross_logprobs must have one row per pair in sources ({max(pairs, 0)}), got "
                    f"{tuple(self.cross_logprobs.shape)}; score the pairs of select_sources in their order"
                )

    def to(self, device: torch.device | str) -> Correspondence:
        """The same correspondence with every tensor on ``device``."""
        scores = self.cross_logprobs
        return Correspondence(
            tuple(block.to(device) for block in self.blocks),
            None if self.sources is None else self.sources.to(device),
            None if scores is None else scores.to(device),
        )

    def with_scores(self, sources: Sources, cross_logprobs: Tensor) -> Correspondence:
        """Return this correspondence with the selected pairs and their ``[P, T]`` scores attached."""
        return replace(self, sources=sources, cross_logprobs=cross_logprobs.detach())


def build_correspondence(
    teacher_embeddings: Tensor,
    student_embeddings: Tensor,
    trajectory_ids: Tensor,
    turn_ids: Tensor,
    group_ids: Tensor,
    source_valid: Tensor,
    target_valid: Tensor,
    *,
    protocols: Tensor | None = None,
) -> Correspondence:
    """Compare the thinking of every pair of turns of one task that belong to different rollouts.

    ``H[v, u] = cos(E(teacher thinking of v), E(student thinking of u))``;
    ``eligible(v, u) = same group, different trajectory, v and u valid, same protocol``.

    Source: AlignOPSD, docs/equations.md#correspondence, Eq. (11) and (12).

    Args:
        teacher_embeddings: ``[M, D]`` float, a row per turn; rows of invalid sources may hold anything.
        student_embeddings: ``[M, D]`` float; rows of invalid targets may hold anything.
        trajectory_ids: ``[M]`` int64 in [0, N).
        turn_ids: ``[M]`` int64, the place of each row in its trajectory.
        group_ids: ``[N]`` int64, the task of each trajectory.
        source_valid: ``[M]`` bool, whether the teacher's thinking text is non-empty.
        target_valid: ``[M]`` bool, whether the student's thinking text is non-empty.
        protocols: ``[M]`` int64, turns of different protocols are never matched; None: all share one.

    Returns:
        Correspondence: blocks in ascending order of group, float32 (float64 for float64 embeddings), detached.
        A group of one rollout has a block without an eligible pair.

    Raises:
        ValueError: shapes differ or the embedding of a valid row is zero or not finite.
    """
    name = "build_correspondence"
    teacher = _unit_rows(name, "teacher_embeddings", teacher_embeddings, source_valid, trajectory_ids)
    student = _unit_rows(name, "student_embeddings", student_embeddings, target_valid, trajectory_ids)
    if teacher.shape[1] != student.shape[1]:
        raise ValueError(
            f"{name}: student_embeddings must have the width of teacher_embeddings ({teacher.shape[1]}), got "
            f"{student.shape[1]}; embed both with one encoder"
        )
    return _blocks(
        name,
        lambda rows: (teacher[rows] @ student[rows].T).clamp(-1, 1),
        trajectory_ids, turn_ids, group_ids, source_valid, target_valid, protocols,
    )  # fmt: skip


def correspondence_from_similarity(
    similarity: Tensor,
    trajectory_ids: Tensor,
    turn_ids: Tensor,
    group_ids: Tensor,
    source_valid: Tensor,
    target_valid: Tensor,
    *,
    protocols: Tensor | None = None,
) -> Correspondence:
    """Build the blocks from cosines that are known already.

    Args:
        similarity: ``[M, M]`` float ``[source, target]`` over the batch's rows (entries between tasks are not read);
            for small batches and tests, as it costs M^2.
        trajectory_ids: ``[M]`` int64 in [0, N).
        turn_ids: ``[M]`` int64.
        group_ids: ``[N]`` int64.
        source_valid: ``[M]`` bool.
        target_valid: ``[M]`` bool.
        protocols: ``[M]`` int64 or None.

    Raises:
        ValueError: shapes differ, or a similarity of an eligible pair is not finite or outside [-1, 1].
    """
    name = "correspondence_from_similarity"
    m = trajectory_ids.numel()
    check_shape(name, "similarity", similarity, (m, m))
    return _blocks(
        name, lambda rows: similarity[rows][:, rows],
        trajectory_ids, turn_ids, group_ids, source_valid, target_valid, protocols,
    )  # fmt: skip


def check_correspondence(correspondence: Any, inputs: CreditInputs) -> None:
    """Raise unless blocks and scored pairs describe the rows of this batch.

    Raises:
        TypeError: it is no Correspondence.
        ValueError: a row, a trajectory, a turn, a device or a shape differs from the batch, a block mixes tasks, or a
            cross score is not finite on a sampled token.
    """
    where = "CreditInputs"
    if not isinstance(correspondence, Correspondence):
        raise TypeError(
            f"{where}: correspondence must be a Correspondence, got {type(correspondence).__name__}; "
            "call build_correspondence"
        )
    device, rows = inputs.response_mask.device, inputs.num_rows
    for block in correspondence.blocks:
        if block.rows.device != device:
            raise ValueError(
                f"{where}: correspondence must be on the device of the batch ({device}), got {block.rows.device}; "
                f"call correspondence.to('{device}')"
            )
    if correspondence.blocks:
        row, trajectory, turn = (
            torch.cat([getattr(block, name) for block in correspondence.blocks])
            for name in ("rows", "trajectory_ids", "turn_ids")
        )
        outside = (row < 0) | (row >= rows)
        wrong = outside | (inputs.trajectory_ids[row.clamp(0, rows - 1)] != trajectory)
        wrong |= inputs.turn_ids[row.clamp(0, rows - 1)] != turn
        if bool(wrong.any()):
            bad = int(wrong.int().argmax())
            raise ValueError(
                f"{where}: correspondence must name the rows of this batch, got row {int(row[bad])} as turn "
                f"{int(turn[bad])} of trajectory {int(trajectory[bad])}; build it from the same trajectory_ids and "
                "turn_ids, in the same order of rows"
            )
        task = inputs.group_ids[trajectory]
        sizes = torch.tensor([block.rows.numel() for block in correspondence.blocks], device=device)
        first = (sizes.cumsum(0) - sizes).clamp(max=max(task.numel() - 1, 0)).repeat_interleave(sizes)
        if bool((task != task[first]).any()):
            raise ValueError(
                f"{where}: correspondence must hold one task per block, got several group_ids in one; build it from "
                "the group_ids of the batch"
            )
    if correspondence.sources is not None and correspondence.cross_logprobs is not None:
        check_pairs(where, correspondence.sources, correspondence.cross_logprobs, inputs)


register_signal(
    "correspondence",
    axes="",
    fix="compare the thinking of teacher and student turns of each task",
    check=check_correspondence,
    doc="similarities between turns of one task, and cross scores of the selected pairs",
)


def _blocks(
    name: str,
    similarity: Callable[[Tensor], Tensor],
    trajectory_ids: Tensor,
    turn_ids: Tensor,
    group_ids: Tensor,
    source_valid: Tensor,
    target_valid: Tensor,
    protocols: Tensor | None,
) -> Correspondence:
    m = trajectory_ids.numel()
    for label, tensor in (
        ("trajectory_ids", trajectory_ids), ("turn_ids", turn_ids), ("source_valid", source_valid),
        ("target_valid", target_valid), ("protocols", protocols),
    ):  # fmt: skip
        if tensor is not None:
            check_shape(name, label, tensor, (m,))
    check_bool(name, "source_valid", source_valid)
    check_bool(name, "target_valid", target_valid)
    if m and (int(trajectory_ids.min()) < 0 or int(trajectory_ids.max()) >= group_ids.numel()):
        raise ValueError(
            f"{name}: trajectory_ids must index group_ids ({group_ids.numel()} trajectories), got "
            f"{int(trajectory_ids.min())} .. {int(trajectory_ids.max())}; give one group id per trajectory"
        )
    order = turn_ids.argsort(stable=True)
    order = order[trajectory_ids[order].argsort(stable=True)]
    task = group_ids[trajectory_ids[order]]
    order = order[task.argsort(stable=True)]
    _, sizes = group_ids[trajectory_ids[order]].unique_consecutive(return_counts=True)
    blocks = []
    for rows in order.split(sizes.tolist()):
        trajectories = trajectory_ids[rows]
        eligible = source_valid[rows][:, None] & target_valid[rows] & (trajectories[:, None] != trajectories)
        if protocols is not None:
            eligible &= protocols[rows][:, None] == protocols[rows]
        cosine = similarity(rows).detach()
        cosine = cosine.to(torch.promote_types(cosine.dtype, torch.float32))
        blocks.append(TaskBlock(rows, trajectories, turn_ids[rows], cosine, eligible))
    return Correspondence(tuple(blocks))


def _unit_rows(name: str, label: str, embeddings: Tensor, valid: Tensor, trajectory_ids: Tensor) -> Tensor:
    if embeddings.ndim != 2 or embeddings.shape[0] != trajectory_ids.numel():
        raise ValueError(
            f"{name}: {label} must have shape [M, D] with M = {trajectory_ids.numel()}, got "
            f"{tuple(embeddings.shape)}; embed one text per row"
        )
    wide = embeddings.detach().to(torch.promote_types(embeddings.dtype, torch.float32))
    norm = wide.norm(dim=-1, keepdim=True)
    bad = valid & ~((norm > 0) & norm.isfinite()).squeeze(-1)
    if bool(bad.any()):
        row = int(bad.int().argmax())
        raise ValueError(
            f"{name}: {label} must be finite and non-zero on valid rows, got norm {norm[row].item()} in row {row}; "
            "mark rows with empty thinking as invalid"
        )
    return torch.where(valid[:, None], wide / norm, 0.0)
