"""The state of the rows that are generated together, on the model's device: what they said, and how far they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .generator import GenerationRequest
from .sampling import response_uniforms


class SlotState:
    """One entry per row.

    Attributes:
        last: ``[R]`` the token that was sampled last.
        length: ``[R]`` tokens in the cache.
        count: ``[R]`` tokens sampled.
        budget: ``[R]`` tokens to sample, at most.
        done: ``[R]`` bool, whether the row only keeps its place.
        uniforms: ``[R, T]`` float64, one per token that may be sampled.
        ids: ``[R, T + 1]`` the tokens sampled, rubbish behind them.
        logprobs: ``[R, T + 1]`` float32.
    """

    def __init__(self, device: Any):
        whole = {"dtype": torch.long, "device": device}
        self.last, self.length, self.count, self.budget = (torch.zeros(0, **whole) for _ in range(4))
        self.done = torch.ones(0, dtype=torch.bool, device=device)
        self.uniforms = torch.zeros(0, 0, dtype=torch.float64, device=device)
        self.ids = torch.zeros(0, 1, **whole)
        self.logprobs = torch.zeros(0, 1, device=device)
        self.order = torch.arange(0, device=device)

    _NAMES = ("last", "length", "count", "budget", "done", "uniforms", "ids", "logprobs")

    def reserve(self, rows: int, budget: int) -> None:
        """Make room for `rows` rows of `budget` tokens."""
        rows, budget = max(rows, len(self.last)), max(budget, self.uniforms.shape[1])
        if (rows, budget) == self.uniforms.shape:
            return
        for name in self._NAMES:
            old = getattr(self, name)
            more = () if old.dim() == 1 else (budget + (name != "uniforms"),)
            new = old.new_full((rows, *more), name == "done")
            new[tuple(slice(size) for size in old.shape)] = old
            setattr(self, name, new)
        self.order = torch.arange(rows, device=self.last.device)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Rows `sources` become rows `targets`."""
        if sources:
            source, target = (torch.tensor(rows, device=self.last.device) for rows in (sources, targets))
            for name in self._NAMES:
                part = getattr(self, name)
                part[target] = part[source]

    def start(self, requests: dict[int, GenerationRequest]) -> None:
        """Begin these requests, by row."""
        rows = torch.tensor(list(requests), device=self.last.device)
        draws = np.zeros((len(requests), self.uniforms.shape[1]))
        for line, request in enumerate(requests.values()):
            draws[line, : request.budget] = response_uniforms(request.seed, request.budget)
        sizes = torch.tensor([(len(request.prompt), request.budget) for request in requests.values()])
        self.length[rows], self.budget[rows] = sizes.to(rows.device).unbind(1)
        self.uniforms[rows] = torch.from_numpy(draws).to(rows.device)
        self.count[rows], self.done[rows] = 0, False

    def accept(self, rows: Tensor, token: Tensor, logprob: Tensor) -> Tensor:
        """Take the next token ``[n]`` of ``rows [n]``; returns ``[n]`` bool: those still running."""
        count = self.count[rows]
        self.ids[rows, count] = token
        self.logprobs[rows, count] = logprob
        running = ~self.done[rows]
        self.count[rows] = count + running
        self.last[rows] = token
        return running
