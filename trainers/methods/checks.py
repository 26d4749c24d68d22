"""What a method and its suite must agree on before the first rollout, and what a method returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...envs import Task, TaskSuite
from ...rollout.contexts import context_text
from ..batch import TurnBatch
from .contexts import CONTEXTS
from .method import Method


def check_contexts(method: Method, suite: TaskSuite, tasks: Sequence[Task]) -> None:
    """Raise unless some task has the contexts that the method reads.

    Raises:
        ValueError: none has; the method would silently train without.
    """
    for who, name in method.contexts.items():
        if name in CONTEXTS or any(context_text(suite, task, name) is not None for task in tasks):
            continue
        raise ValueError(
            f"GRPOTrainer: suite must have a context {name!r} for {method.name}, whose {who} reads it, got None for "
            f"all {len(tasks)} tasks of {suite.name}; let the suite make one, or choose another {who}_context"
        )


def check_signal(owner: str, name: str, value: Any, batch: TurnBatch) -> None:
    """Raise unless a signal fits the batch: one number per turn or per token, finite where a token was sampled.

    Raises:
        TypeError: no tensor.
        ValueError: another shape, or a number that is not finite.
    """
    if not isinstance(value, Tensor):
        return
    mask = batch.response_mask
    if tuple(value.shape) not in ((len(batch.turns),), tuple(mask.shape)):
        raise ValueError(
            f"{owner} must give {name!r} as [M] = {[len(batch.turns)]} or [M, T] = {list(mask.shape)}, got "
            f"{list(value.shape)}; give one value per turn or per sampled token"
        )
    inside = value[mask] if value.ndim == 2 else value
    if value.is_floating_point() and not bool(torch.isfinite(inside).all()):
        raise ValueError(f"{owner} must give {name!r} as finite numbers, got nan or inf; check how it is computed")
