"""A key-value cache whose rows begin and end independently: every row has its own length, and nothing is padded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from .limits import text_config

_CHUNK = 64
"""The cache grows by at least so many tokens a row, and a quarter, since growing copies it."""


@dataclass
class Pass:
    """One forward pass over some rows of the cache.

    Args:
        rows: ``[B]`` rows of the cache; None for the first B.
        columns: ``[B, Q]`` where the keys of the pass are written.
        width: how many columns are attended to.
    """

    rows: Tensor | None
    columns: Tensor
    width: int
    places: dict[int, Tensor] = field(default_factory=dict)

    def places_of(self, heads: int, capacity: int) -> Tensor:
        """``[B * heads * Q]`` indices into a cache ``[rows * heads * capacity, D]``; the same for all layers."""
        if heads not in self.places:
            batch = len(self.columns)
            rows = torch.arange(batch, device=self.columns.device) if self.rows is None else self.rows
            lines = rows[:, None] * heads + torch.arange(heads, device=rows.device)
            self.places[heads] = (lines[:, :, None] * capacity + self.columns[:, None, :]).flatten()
        return self.places[heads]


@dataclass
class Room:
    """How large the cache is, and the pass that uses it; what its layers share."""

    rows: int
    capacity: int
    now: Pass


class SlotLayer(CacheLayerMixin):
    """One layer of a `SlotCache`: keys and values ``[rows, heads, capacity, D]``."""

    is_sliding = False

    def __init__(self, room: Room):
        super().__init__()
        self.room = room

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make room; what is never written must be finite, since it is multiplied by 0."""
        shape = (self.room.rows, key_states.shape[1], self.room.capacity)
        self.keys = key_states.new_zeros(*shape, key_states.shape[-1])
        self.values = value_states.new_zeros(*shape, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new keys and values where the pass says, and return those it attends to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        now = self.room.now
        return self._write(self.keys, key_states, now), self._write(self.values, value_states, now)

    def _write(self, kept: Tensor | None, states: Tensor, now: Pass) -> Tensor:
        assert kept is not None
        places = now.places_of(kept.shape[1], kept.shape[2])
        kept.view(-1, kept.shape[3]).index_copy_(0, places, states.reshape(-1, kept.shape[3]))
        seen = kept[:, :, : now.width]
        return seen[: len(states)] if now.rows is None else seen.index_select(0, now.rows)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that are attended to, from the first on."""
        return self.room.now.width, 0

    def get_seq_length(self) -> int:
        """Tokens before those of the pass, in its longest row."""
        return self.room.now.width - self.room.now.columns.shape[1]

    def get_max_length(self) -> int:
        """No limit."""
        return -1


class SlotCache(Cache):
    """A cache of rows that hold texts of different lengths, each from its first column on.

    The last column is nobody's: what is to be written nowhere is written there.

    Args:
        model: a causal language model.

    Raises:
        ValueError: it has layers that keep something else than keys and values of every token.
    """

    def __init__(self, model: Any):
        self.room = Room(0, 0, Pass(None, torch.zeros(1, 1, dtype=torch.long), 1))
        config = text_config(model)
        kinds = DynamicCache(config=config).layers
        for kind in kinds:
            if type(kind) not in (DynamicLayer, DynamicSlidingWindowLayer):
                raise ValueError(
                    f"SlotCache: layers must keep keys and values, got {type(kind).__name__}; generate in batches"
                )
        self.slots = [SlotLayer(self.room) for _ in kinds or range(config.num_hidden_layers)]
        super().__init__(layers=list(self.slots))

    @property
    def trash(self) -> int:
        """The column that nobody reads."""
        return self.room.capacity - 1

    def reserve(self, rows: int, width: int) -> None:
        """Make room for `rows` rows of `width` tokens."""
        room = self.room
        if rows <= room.rows and width < room.capacity:
            return
        if width >= room.capacity:
            room.capacity = (max(width, room.capacity * 5 // 4) // _CHUNK + 1) * _CHUNK
        room.rows = max(rows, room.rows)
        for layer in self.slots:
            layer.keys, layer.values = (self._grown(part) for part in (layer.keys, layer.values))

    def _grown(self, part: Tensor | None) -> Tensor | None:
        if part is None:
            return None
        grown = part.new_zeros(self.room.rows, part.shape[1], self.room.capacity, part.shape[3])
        grown[: part.shape[0], :, : part.shape[2]] = part
        return grown

    def copy(self, sources: Tensor, targets: Tensor, width: int) -> None:
        """Copy the first `width` columns of some rows to others; all are read before one is written."""
        for layer in self.slots:
            for part in (layer.keys, layer.values):
                if part is not None:
                    seen = part[:, :, :width]
                    seen[targets] = seen[sources]
