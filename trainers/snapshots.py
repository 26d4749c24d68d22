"""A teacher whose weights lag behind the policy's: kept on the CPU, swapped in place while it speaks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


class TeacherSnapshot:
    """Stale or averaged weights of a model; only one copy lives outside the model, on the CPU.

    Args:
        model: the policy; its trainable and frozen parameters are copied as they are now.
        kind: ``"stale"``: the policy at the last refresh; ``"ema"``: theta_T <- (1 - rate) theta_T + rate theta.
        refresh_every: updates between refreshes (stale).
        ema_rate: the rate (ema); 0.05 keeps 95%.
    """

    def __init__(self, model: Any, kind: str, *, refresh_every: int = 10, ema_rate: float = 0.05):
        if kind not in ("stale", "ema"):
            raise ValueError(f'TeacherSnapshot: kind must be "stale" or "ema", got {kind!r}')
        self.kind, self.refresh_every, self.ema_rate = kind, refresh_every, ema_rate
        self.weights: dict[str, Tensor] = {n: p.detach().cpu().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: Any, step: int) -> None:
        """Call before the rollout of every update with the number of updates done."""
        if self.kind == "stale" and step % self.refresh_every:
            return
        rate = 1.0 if self.kind == "stale" else self.ema_rate
        for name, parameter in model.named_parameters():
            current = parameter.detach().to("cpu", self.weights[name].dtype)
            if rate == 1.0:
                self.weights[name].copy_(current)
            elif step:
                self.weights[name].lerp_(current, rate)

    @contextlib.contextmanager
    @torch.no_grad()
    def swapped_in(self, model: Any) -> Iterator[None]:
        """Inside, the model has the teacher's weights; afterwards its own, bit for bit."""
        own = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
        try:
            self._load(model, self.weights)
            yield
        finally:
            self._load(model, own)

    @staticmethod
    @torch.no_grad()
    def _load(model: Any, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
