"""Random credit batches for tests: odd group ids, groups of unequal size, shuffled rows, NaN outside the mask."""

from __future__ import annotations

from dataclasses import fields, replace

import torch

from turncredit.credit import CreditInputs

OPTIONAL = {"teacher_logprobs", "valid_actions", "span_mask", "anchor_ids"}
"""Optional signals that `random_batch` has."""


def random_batch(
    seed: int = 0,
    *,
    groups: int = 3,
    rollouts: int = 4,
    turns: int = 5,
    tokens: int = 6,
    gap: float = 0.5,
    dtype: torch.dtype = torch.float64,
    one_token: bool = False,
) -> CreditInputs:
    """A batch with every optional field but ``correspondence``; ``gap`` is the scale of the teacher's token gaps."""
    draw = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=draw)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    names = torch.randperm(50, generator=draw)[:groups] - 20
    group_ids = torch.cat([names[g].repeat(int(integers(1, rollouts + 1, 1))) for g in range(groups)])
    group_ids = group_ids[torch.randperm(group_ids.numel(), generator=draw)]
    n = group_ids.numel()
    counts = integers(1, turns + 1, n)
    m = int(counts.sum())
    order = torch.randperm(m, generator=draw)
    trajectory = torch.repeat_interleave(counts)[order]
    turn = torch.cat([torch.arange(int(c)) for c in counts])[order]
    mask = torch.rand(m, tokens, generator=draw) < 0.6
    mask[torch.arange(m), integers(0, tokens, m)] = True
    if one_token:
        mask = torch.zeros(m, tokens, dtype=torch.bool)
        mask[torch.arange(m), integers(0, tokens, m)] = True
    span = mask & (torch.rand(m, tokens, generator=draw) < 0.6)
    student = -normal(m, tokens).abs()
    teacher = student + gap * normal(m, tokens)
    success = integers(0, 2, n).to(dtype)
    outside = integers(0, 2, m, tokens).bool() & ~mask
    return CreditInputs(
        response_mask=mask,
        trajectory_ids=trajectory,
        turn_ids=turn,
        group_ids=group_ids,
        rewards=10 * success,
        successes=success,
        student_logprobs=student.masked_fill(outside, torch.nan).to(dtype),
        teacher_logprobs=teacher.masked_fill(outside, -torch.inf).to(dtype),
        valid_actions=integers(0, 2, m).bool(),
        span_mask=span,
        anchor_ids=integers(0, 4, m),
    )


def hand_batch(gaps: list[list[float]], rewards: list[float], **more: torch.Tensor) -> CreditInputs:
    """One group; trajectory i has one-token turns whose gaps are ``gaps[i]``. Rewards are 0 or 1."""
    rows = [(i, k, e) for i, row in enumerate(gaps) for k, e in enumerate(row)]
    teacher = torch.tensor([[e - 1.0] for _, _, e in rows], dtype=torch.float64)
    reward = torch.tensor(rewards, dtype=torch.float64)
    return CreditInputs(
        response_mask=torch.ones(len(rows), 1, dtype=torch.bool),
        trajectory_ids=torch.tensor([i for i, _, _ in rows]),
        turn_ids=torch.tensor([k for _, k, _ in rows]),
        group_ids=torch.zeros(len(rewards), dtype=torch.int64),
        rewards=reward,
        successes=reward,
        student_logprobs=torch.full_like(teacher, -1.0),
        teacher_logprobs=teacher,
        **more,
    )


def tensors_of(inputs: CreditInputs) -> dict[str, torch.Tensor]:
    """The tensors among the fields of a batch."""
    values = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def reorder_rows(inputs: CreditInputs, order: torch.Tensor) -> CreditInputs:
    """The same batch with its rows in another order."""
    per_trajectory = ("group_ids", "rewards", "successes")
    return replace(
        inputs, **{name: value[order] for name, value in tensors_of(inputs).items() if name not in per_trajectory}
    )


def reorder_trajectories(inputs: CreditInputs, order: torch.Tensor) -> CreditInputs:
    """The same batch with its trajectories (and so their groups) numbered in another order."""
    return replace(
        inputs,
        trajectory_ids=torch.argsort(order)[inputs.trajectory_ids],
        group_ids=inputs.group_ids[order],
        rewards=inputs.rewards[order],
        successes=inputs.successes[order],
    )


def trajectories_of(inputs: CreditInputs, keep: torch.Tensor) -> CreditInputs:
    """Some trajectories, ``[N]`` bool, numbered anew."""
    rows = keep[inputs.trajectory_ids]
    values = {
        name: value[keep if name in ("group_ids", "rewards", "successes") else rows]
        for name, value in tensors_of(inputs).items()
    }
    return CreditInputs(**{**values, "trajectory_ids": (keep.cumsum(0) - 1)[inputs.trajectory_ids[rows]]})
