"""A teacher whose weights lag behind the policy's: kept on the CPU, swapped in place while it speaks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .distributed import full_weights, gathered, is_sharded, load_full_weights
from .guard import Terminated


class TeacherSnapshot:
    """Stale or averaged weights of a model's trainable parameters; one copy lives outside the model, on the CPU.

    For a model whose weights are sharded over processes (ZeRO-3) process 0 alone keeps the copy, every method is a
    collective call, and no more than one parameter is whole on a device at a time.

    Args:
        model: the policy; its trainable parameters are copied as they are now, and later swapped. Frozen ones never
            differ.
        kind: ``"stale"``: the policy at the last refresh; ``"ema"``: theta_T <- (1 - rate) theta_T + rate theta.
        refresh_every: updates between refreshes (stale).
        ema_rate: the rate (ema); 0.05 keeps 95%. The average is kept in float32: in bf16 it would not move.
    """

    def __init__(self, model: PreTrainedModel, kind: str, *, refresh_every: int = 10, ema_rate: float = 0.05):
        if kind not in ("stale", "ema"):
            raise ValueError(f'TeacherSnapshot: kind must be "stale" or "ema", got {kind!r}')
        self.model = model
        self.kind, self.refresh_every, self.ema_rate = kind, refresh_every, ema_rate
        self.swapped = False
        self.keeps = not is_sharded(model) or torch.distributed.get_rank() == 0
        self.names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.weights: dict[str, Tensor] = {}
        self.reset()

    def reset(self) -> None:
        """Begin with the weights that the model has now; collective for sharded ones."""
        self.load_state_dict(full_weights(self.model, self.keeps, trainable_only=True))

    def state_dict(self) -> dict[str, Tensor]:
        """The weights."""
        return self.weights

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take weights over, an average in float32."""
        if self.keeps:
            self.weights = {name: value.float() if self.kind == "ema" else value for name, value in state.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Call after every update with the number of updates done."""
        if self.kind == "stale" and step % self.refresh_every:
            return
        rate = 1.0 if self.kind == "stale" else self.ema_rate
        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad:
                continue
            with gathered([parameter]):
                if self.keeps:
                    self.weights[name].lerp_(parameter.detach().to("cpu", self.weights[name].dtype), rate)

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside, the model has the teacher's weights; afterwards its own, bit for bit."""
        own = full_weights(self.model, self.keeps, trainable_only=True)
        self.swapped = True
        try:
            load_full_weights(self.model, self.weights, self.names)
            yield
        finally:
            try:
                load_full_weights(self.model, own, self.names)
            except (
                Terminated
            ):  # SIGTERM in the middle, raised once: a checkpoint follows and needs the policy's weights
                load_full_weights(self.model, own, self.names)
                self.swapped = False
                raise
            self.swapped = False
