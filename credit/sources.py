"""AlignOPSD stage 1, part two: the few sibling turns whose privileged context may score a turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .correspondence import Correspondence, TaskBlock


@dataclass(frozen=True)
class Sources:
    """Selected (source, target) pairs, ordered by target row and, for one target, best first.

    Args:
        source: ``[P]`` int64, the batch row whose privileged context scores the target's response.
        target: ``[P]`` int64, the batch row that is scored.
        similarity: ``[P]`` float, their cosine.
        similarity_threshold: the gamma_H they were selected with.
        top_k: the largest number of sources of a target.

    Raises:
        ValueError: the three tensors differ in length, or the targets are not in ascending order.
    """

    source: Tensor
    target: Tensor
    similarity: Tensor
    similarity_threshold: float
    top_k: int

    def __post_init__(self) -> None:
        for name in ("target", "similarity"):
            require_shape("Sources", name, getattr(self, name), tuple(self.source.shape))
        if bool((self.target.diff() < 0).any()):
            raise ValueError(
                f"Sources: target must be in ascending order, got {self.target[:8].tolist()} ..; sort by it"
            )

    def keep(self, mask: Tensor) -> Sources:
        """Return the pairs where ``mask [P]`` (bool) is True: an action filter's verdict, say.

        A dropped pair is not replaced by the next best one.

        Raises:
            ValueError: ``mask`` is not a bool tensor of shape [P].
        """
        require_shape("Sources.keep", "mask", mask, (self.source.numel(),))
        require_bool("Sources.keep", "mask", mask)
        return replace(self, source=self.source[mask], target=self.target[mask], similarity=self.similarity[mask])

    def to(self, device: torch.device | str) -> Sources:
        """The same pairs with every tensor on ``device``."""
        return replace(
            self, source=self.source.to(device), target=self.target.to(device), similarity=self.similarity.to(device)
        )


def select_sources(correspondence: Correspondence, *, similarity_threshold: float = 0.8, top_k: int = 3) -> Sources:
    """Pick, for every turn, the sibling turns whose privileged context may score it.

    ``sources(u) = {v eligible, H[v, u] >= gamma_H}``, at most the best of each sibling rollout, then the K best.
    Ties: the smaller (rollout, turn) wins.

    Source: AlignOPSD, stage 1 (METHODS.md section 2.1).

    Args:
        correspondence: blocks per task.
        similarity_threshold: gamma_H in [-1, 1).
        top_k: K >= 1.

    Returns:
        Sources: P pairs ordered by target row, best first; P may be 0.

    Raises:
        ValueError: an option is out of range.
    """
    check_selection("select_sources", similarity_threshold, top_k)
    parts = [_select_in_block(block, similarity_threshold, top_k) for block in correspondence.blocks]
    if not parts:
        empty = torch.empty(0, dtype=torch.long)
        return Sources(empty, empty, torch.empty(0), similarity_threshold, top_k)
    source, target, similarity = (torch.cat(column) for column in zip(*parts, strict=True))
    order = target.argsort(stable=True)
    return Sources(source[order], target[order], similarity[order], similarity_threshold, top_k)


def action_similarity(sources: Sources, teacher_actions: Tensor, student_actions: Tensor) -> Tensor:
    """Cosine of the teacher's action at the source and the student's action at the target of each pair.

    The published filter keeps a pair where it is at least 0.80:
    ``sources.keep(action_similarity(sources, teacher, student) >= 0.80)``.

    Args:
        sources: P pairs.
        teacher_actions: ``[M, D]`` float, embedding of the teacher's action at each row.
        student_actions: ``[M, D]`` float, embedding of the student's action at each row.

    Returns:
        ``[P]`` float in [-1, 1]; a zero embedding has cosine 0.

    Raises:
        ValueError: the two shapes differ.
    """
    if teacher_actions.ndim != 2 or teacher_actions.shape != student_actions.shape:
        raise ValueError(
            f"action_similarity: student_actions must have the shape of teacher_actions {tuple(teacher_actions.shape)}"
            f", got {tuple(student_actions.shape)}; embed the actions of every row, [M, D]"
        )
    teacher, student = teacher_actions[sources.source], student_actions[sources.target]
    return torch.nn.functional.cosine_similarity(teacher.detach().float(), student.detach().float(), dim=-1)


def check_selection(function: str, similarity_threshold: float, top_k: int) -> None:
    """Raise ValueError unless -1 <= similarity_threshold < 1 and top_k >= 1."""
    if not -1 <= similarity_threshold < 1:
        raise ValueError(
            f"{function}: similarity_threshold must lie in [-1, 1), got {similarity_threshold}; the paper uses 0.8"
        )
    if isinstance(top_k, bool) or top_k < 1 or top_k != int(top_k):
        raise ValueError(f"{function}: top_k must be a whole number >= 1, got {top_k}; the paper uses 3")


def _select_in_block(block: TaskBlock, threshold: float, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    m, device = block.rows.numel(), block.rows.device
    _, sibling = block.trajectory_ids.unique_consecutive(return_inverse=True)
    siblings = int(sibling[-1]) + 1 if m else 0
    score = block.similarity.masked_fill(~block.eligible | (block.similarity < threshold), -torch.inf)
    to_sibling = sibling[:, None].expand(m, m)
    best = score.new_full((siblings, m), -torch.inf).scatter_reduce(0, to_sibling, score, "amax")
    is_best = (score == best[sibling]) & (score > -torch.inf)
    place = torch.where(is_best, torch.arange(m, device=device)[:, None], m)
    first = place.new_full((siblings, m), m).scatter_reduce(0, to_sibling, place, "amin")
    ranked, by_rank = best.sort(dim=0, descending=True, stable=True)
    first, ranked = first.gather(0, by_rank)[:top_k].T, ranked[:top_k].T
    target, rank = (ranked > -torch.inf).nonzero(as_tuple=True)
    return block.rows[first[target, rank]], block.rows[target], ranked[target, rank]


def require_shape(function: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{function}: {name} must be a tensor, got {type(tensor).__name__}; pass torch.as_tensor(..)")
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f"{function}: {name} must have shape {list(shape)}, got {list(tensor.shape)}; give one entry per turn"
        )


def require_bool(function: str, name: str, tensor: Tensor) -> None:
    if tensor.dtype != torch.bool:
        raise TypeError(f"{function}: {name} must be bool, got {tensor.dtype}; pass {name}.bool()")
