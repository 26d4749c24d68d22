"""The decoding loop of `ContinuousGenerator`: rows end and join while the others go on."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .attention import attention_masks
from .generator import Feed, GenerationRequest, GenerationStats
from .joins import PrefillPass, plan_prefills, text_key
from .sampling import Sample, Sampler, SamplingConfig, StopStrings, TokenPicker
from .scoring import Agree
from .slot_cache import Pass, SlotCache
from .slots import SlotState
from .types import StopReason


@dataclass(frozen=True)
class LoopSettings:
    """What a loop runs with.

    Args:
        sampler: tokenizer, stop strings and stop ids.
        sampling: temperature, top-k and top-p.
        slots: rows at a time.
        agree: see `turncredit.rollout.RolloutCollector`.
        multiples: rows and columns of a decode step are rounded up to multiples of these.
    """

    sampler: Sampler
    sampling: SamplingConfig
    slots: int
    agree: Agree | None = None
    multiples: tuple[int, int] = (1, 1)


class DecodingLoop:
    """One stream of requests through a model; its `run` is a ``custom_generate`` of transformers."""

    def __init__(self, settings: LoopSettings, feed: Feed, stats: GenerationStats):
        self.settings, self.feed, self.stats = settings, feed, stats
        sampler = settings.sampler
        self.device = sampler.model.get_input_embeddings().weight.device
        self.pick = TokenPicker(settings.sampling)
        self.stop_strings = StopStrings(sampler.decode, sampler.stop_strings)
        self.eos = frozenset(sampler.eos_token_ids)
        self.may_end = sampler.ends_stop_string.to(self.device).clone()
        self.may_end[[token for token in self.eos if token < len(self.may_end)]] = True
        self.state = SlotState(self.device)
        self.requests: dict[int, GenerationRequest] = {}  # by row, running or ended
        self.ended: dict[int, StopReason] = {}
        self.waiting: deque[GenerationRequest] = deque()
        self.known: dict[int, bytes] = {}  # key of the text whose keys and values a row holds
        self.lineages: dict[Hashable, int] = {}
        self.longest = 0  # tokens in the cache of the longest row that runs
        self.idled = 0  # steps that ended rows have waited, added up
        self.ran = False

    def run(self, model: Any, input_ids: Tensor, **kwargs: Any) -> Tensor:
        """Decode until nothing runs and nothing joins."""
        self.ran = True
        self.model, self.cache = model, SlotCache(model)
        accepted = inspect.signature(model.forward).parameters
        self.cache_name = "cache" if "cache" in accepted else "past_key_values"
        self.options = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        passes = self._join()
        while True:
            count, running = self._agreed(len(passes), int(self.running > 0))
            if not count and not running:
                return input_ids
            for number in range(count):
                self._prefill(passes[number]) if number < len(passes) else self._idle()
            if self.running:
                self._decode()
            elif running and self.settings.agree is not None:
                self._idle()
            passes = self._join() if self._due() else []

    @property
    def running(self) -> int:
        """Rows that are not ended."""
        return len(self.requests) - len(self.ended)

    def _agreed(self, *counts: int) -> Sequence[int]:
        return counts if self.settings.agree is None else self.settings.agree(counts)

    def _due(self) -> bool:
        """Whether ended rows have idled for two steps of all rows, about what a pass that lets others join costs."""
        self.idled += len(self.ended)
        return bool(self.ended) and (not self.running or self.idled >= 2 * len(self.requests))

    # ---- who leaves, who joins

    def _join(self) -> list[PrefillPass]:
        """Hand over what has ended, take what comes, and give it rows."""
        for request in self.feed(self._leave()):
            if not request.prompt or request.budget < 1:
                raise ValueError(
                    f"ContinuousGenerator: requests must have a prompt and a positive budget, got "
                    f"{len(request.prompt)} tokens and {request.budget}; leave such a request out"
                )
            self.waiting.append(request)
        joining = [self.waiting.popleft() for _ in range(min(len(self.waiting), self.settings.slots - self.running))]
        rows = len(self.requests) + len(joining)
        moved, placed = self._place(joining, rows)
        self.longest = max(
            [0, *(len(request.prompt) for request in joining), *self._lengths(self.requests)]  # moved rows included
        )
        if not rows:
            return []
        self._reserve(rows, max(request.budget for request in [*joining, *self.requests.values()]))
        passes = plan_prefills({row: request.prompt for row, request in placed.items()}, self.known)
        self._move(moved, passes, rows)
        if placed:
            self.state.start(placed)
        self.requests |= placed
        for row, request in placed.items():
            self.known[row] = text_key(request.prompt)
        self.lineages = {name: row for name, row in self.lineages.items() if row not in self.requests}
        return passes

    def _leave(self) -> list[tuple[GenerationRequest, Sample]]:
        """The responses that have ended; their rows are free, their cache stays known."""
        if not self.ended:
            return []
        rows = sorted(self.ended)
        index = torch.tensor(rows, device=self.device)
        lengths = self.state.count[index].tolist()
        ids = self.state.ids[index, : max(lengths)].tolist()
        logprobs = self.state.logprobs[index, : max(lengths)].tolist()
        answers = []
        for line, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            request = self.requests.pop(row)
            said = tuple(ids[line][:length])
            answers.append((request, Sample(said, tuple(logprobs[line][:length]), self.ended[row])))
            self.known[row] += text_key(said[:-1])
            if request.lineage is not None:
                self.lineages[request.lineage] = row
        self.ended.clear()
        self.idled = 0
        return answers

    def _lengths(self, rows: dict[int, GenerationRequest]) -> list[int]:
        return self.state.length[torch.tensor(list(rows), device=self.device)].tolist() if rows else []

    def _place(
        self, joining: Sequence[GenerationRequest], rows: int
    ) -> tuple[dict[int, int], dict[int, GenerationRequest]]:
        """The first `rows` rows are filled: rows that move (old -> new), and requests by row, their own where free."""
        free = [row for row in range(rows) if row not in self.requests]
        own = {self.lineages.get(request.lineage): request for request in joining if request.lineage is not None}
        placed = {row: own[row] for row in free if row in own}
        free = [row for row in free if row not in placed]
        moved = dict(zip((row for row in sorted(self.requests) if row >= rows), free, strict=False))
        kept = {id(request) for request in placed.values()}
        others = [request for request in joining if id(request) not in kept]
        return moved, {**placed, **dict(zip(free[len(moved) :], others, strict=True))}

    def _reserve(self, rows: int, budget: int) -> None:
        multiple = self.settings.multiples[0]
        self.padded_rows = -(-rows // multiple) * multiple
        self.state.reserve(self.padded_rows, budget)
        self.cache.reserve(self.padded_rows, self._width(self.longest + 1))

    def _width(self, width: int) -> int:
        multiple = self.settings.multiples[1]
        return -(-width // multiple) * multiple

    def _move(self, moved: dict[int, int], passes: Sequence[PrefillPass], rows: int) -> None:
        """Close the gaps, and copy what the first prompts find in other rows, before anything is overwritten."""
        copies = [(old, new, self.longest) for old, new in moved.items()]
        if passes:
            copies, passes[0].copies = copies + passes[0].copies, []
        self._copy(copies)
        self.state.move(list(moved), list(moved.values()))
        self.state.done[rows:] = True
        for old, new in moved.items():
            self.requests[new] = self.requests.pop(old)
            self.known[new] = self.known[old]

    def _copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        if copies:
            sources, targets, widths = zip(*copies, strict=True)
            first, second = (torch.tensor(part, device=self.device) for part in (sources, targets))
            self.cache.copy(first, second, max(widths))

    # ---- forward passes

    def _prefill(self, batch: PrefillPass) -> None:
        """Compute what the cache does not hold of some prompts, and sample their first tokens."""
        self._copy(batch.copies)
        count, length = len(batch.prefills), max(prefill.tokens for prefill in batch.prefills)
        ids = np.full((count, length), self.settings.sampler.tokenizer.pad_token_id)
        positions, columns = np.zeros_like(ids), np.full_like(ids, self.cache.trash)
        for line, prefill in enumerate(batch.prefills):  # padded to the left: the last token is the last column
            ids[line, length - prefill.tokens :] = prefill.prompt[prefill.kept :]
            positions[line, length - prefill.tokens :] = np.arange(prefill.kept, len(prefill.prompt))
            columns[line, length - prefill.tokens :] = np.arange(prefill.kept, len(prefill.prompt))
        ids, positions, columns = (torch.from_numpy(part).to(self.device) for part in (ids, positions, columns))
        rows = torch.tensor([prefill.rows[0] for prefill in batch.prefills], device=self.device)
        width = max(len(prefill.prompt) for prefill in batch.prefills)
        logits = self._forward(ids, positions, Pass(rows, columns, width))
        self._copy([(p.rows[0], row, len(p.prompt)) for p in batch.prefills for row in p.rows[1:]])
        sharing = [(line, row) for line, prefill in enumerate(batch.prefills) for row in prefill.rows]
        lines, rows = torch.tensor(sharing, device=self.device).unbind(1)
        self._take(rows, logits[lines])
        computed = sum(prefill.tokens for prefill in batch.prefills)
        self.stats.prefill_tokens += computed
        self.stats.prefill_saved += sum(len(p.prompt) * len(p.rows) for p in batch.prefills) - computed

    def _decode(self) -> None:
        """One more token for every row."""
        width = self._width(self.longest + 1)
        self.cache.reserve(self.padded_rows, width)
        rows, state = self.padded_rows, self.state
        columns = state.length[:rows, None].clone()
        logits = self._forward(state.last[:rows, None], columns, Pass(None, columns, width))
        state.length[:rows] += ~state.done[:rows]
        self.longest += 1
        self._take(state.order[:rows], logits)
        self.stats.decode_steps += 1
        self.stats.decoded_rows += rows

    def _forward(self, ids: Tensor, positions: Tensor, now: Pass) -> Tensor:
        """``[B, V]`` logits behind the last token of every row."""
        self.cache.room.now = now
        keys = torch.arange(now.width, device=self.device)
        visible = keys <= positions[:, None, :, None]
        mask = attention_masks(self.model, visible, positions, keys.expand(len(ids), -1))
        made = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{self.cache_name: self.cache},
            **self.options,
        )
        return made.logits[:, -1]

    def _idle(self) -> None:
        """A pass for nobody, where processes keep in step."""
        token = self.settings.sampler.tokenizer.pad_token_id
        self.model(input_ids=torch.tensor([[token]], device=self.device), use_cache=False)

    def _take(self, rows: Tensor, logits: Tensor) -> None:
        """Sample the next token of `rows` from ``logits [n, V]``, and see who ends with it."""
        state = self.state
        draws = state.uniforms[rows, state.count[rows].clamp(max=state.uniforms.shape[1] - 1)]
        token, logprob = (part.squeeze(-1) for part in self.pick(logits, draws[:, None]))
        running = state.accept(rows, token, logprob)
        suspects = rows[running & (self.may_end[token] | (state.count[rows] >= state.budget[rows]))]
        for row in suspects.tolist():
            reason = self._reason(row)
            if reason is not None:
                self.ended[row] = reason
                state.done[row] = True

    def _reason(self, row: int) -> StopReason | None:
        """Why a row ends with its last token, if it does."""
        count = int(self.state.count[row])
        if int(self.state.last[row]) in self.eos:
            return StopReason.EOS
        if self.stop_strings.end(self.state.ids[row, :count]):
            return StopReason.STOP_STRING
        return StopReason.LENGTH if count >= self.requests[row].budget else None
