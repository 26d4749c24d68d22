"""What tests of shared prefixes compare, and a scorer whose branching is settled as that of a run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from helpers.prefix_cases import Rows
from turncredit.rollout import PolicyScorer
from turncredit.trainers.rows import TrainRows


def scorer_of(model: Any, modules: Any = None, *, chunk_tokens: int = 4096, branches: bool | None = None) -> Any:
    """A scorer that has tried whether its model may branch; ``branches=False`` forbids it afterwards."""
    scorer = PolicyScorer(model, modules, chunk_tokens=chunk_tokens)
    scorer.settle_branches()
    if branches is not None:
        assert scorer.branches
        scorer.branches = branches
    return scorer


def apart(got: Tensor, want: Tensor, floor: float = 1e-12) -> float:
    """Relative distance of two tensors, by their norms."""
    return float((got.double() - want.double()).norm() / want.double().norm().clamp(min=floor))


def close(got: Tensor, want: Tensor, tolerance: float = 1e-5) -> bool:
    """Whether every entry agrees, in nats or relative where it is larger than one."""
    return bool(((got - want).abs() <= tolerance * want.abs().clamp(min=1.0)).all())


def weight_gradients(scorer: Any) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in scorer.named_parameters() if p.grad is not None}


@torch.no_grad()
def weights_of(model: Any) -> dict[str, Tensor]:
    return {name: p.clone() for name, p in model.named_parameters()}


def train_rows(rows: Rows, seed: int = 0, dead_slots: Collection[int] = ()) -> TrainRows:
    """These rows with advantages, recorded log-probs and signals of their own, also where their tokens are equal."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([len(response) for response in rows.responses], dtype=torch.long)
    mask = torch.arange(int(lengths.max()) if len(rows) else 0)[None] < lengths[:, None]
    noise = torch.randn(4, *mask.shape, generator=generator)
    active = torch.tensor([slot not in dead_slots for slot in rows.slots], dtype=torch.bool)
    signals = {
        "ref_logprobs": (noise[2] * 0.3 - 3.0) * mask,
        "teacher_logprobs": (noise[3] * 0.3 - 3.0) * mask,
        "target": (noise[2] - noise[3]) * mask,
        "strength": noise[3, :, 0].exp() if len(rows) else noise.new_zeros(0),
    }
    return TrainRows(
        rows.prompts,
        rows.responses,
        mask,
        torch.tensor(rows.slots, dtype=torch.long),
        active,
        noise[0] * mask * active[:, None],
        (noise[1] * 0.3 - 3.0) * mask,
        signals,
    )
