"""Which prompts are computed when they join a running batch, from which token on, and which are copied."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

_WORTH_COPY = 8
"""Tokens by which another row's cache must hold more of a prompt than the row's own, so that it is copied."""
_WORTH_PASS = 64
"""Tokens that two prompts must share, so that one of them waits for the other's pass."""
_SMALL, _LARGE = 512, 16384
"""Tokens up to which prompts of any lengths share a pass, and prompts of similar lengths."""


@dataclass
class Prefill:
    """A prompt that is computed once.

    Args:
        prompt: token ids.
        rows: whose prompt it is; the first is computed, the others get its copy.
        kept: how many of its tokens are in the cache already.
        source: the row that holds them.
    """

    prompt: tuple[int, ...]
    rows: list[int]
    kept: int = 0
    source: int = 0

    @property
    def tokens(self) -> int:
        """How many are computed."""
        return len(self.prompt) - self.kept


@dataclass
class PrefillPass:
    """Prompts that are computed together, after copies ``(source, target, width)`` between rows."""

    prefills: list[Prefill]
    copies: list[tuple[int, int, int]] = field(default_factory=list)


def text_key(ids: Iterable[int]) -> bytes:
    """Token ids as bytes that sort and compare as the ids do."""
    return np.asarray(list(ids), dtype=">u4").tobytes()


def common_tokens(one: bytes, other: bytes) -> int:
    """How many tokens two keys have in common at their beginning."""
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return size // 4
    differ = np.frombuffer(one, ">u4", size // 4) != np.frombuffer(other, ">u4", size // 4)
    return int(differ.argmax())


def plan_prefills(joining: Mapping[int, tuple[int, ...]], known: Mapping[int, bytes]) -> list[PrefillPass]:
    """Passes by which the prompts of some rows get into the cache; a pure function of its arguments.

    Args:
        joining: prompt by row.
        known: key of the text that a row's cache holds now, by row; joining rows included.
    """
    held = sorted((key, row) for row, key in known.items())
    groups: dict[bytes, Prefill] = {}
    for row, prompt in joining.items():
        groups.setdefault(text_key(prompt), Prefill(prompt, [])).rows.append(row)
    first: list[Prefill] = []
    second: list[Prefill] = []
    leader: tuple[bytes, Prefill] | None = None
    for key, prefill in sorted(groups.items()):
        _find_source(key, prefill, held, known)
        shared = common_tokens(leader[0], key) if leader is not None else 0
        if leader is not None and shared - prefill.kept >= _WORTH_PASS:
            prefill.kept, prefill.source = min(shared, len(prefill.prompt) - 1), leader[1].rows[0]
            second.append(prefill)
        else:
            leader = key, prefill
            first.append(prefill)
    return [*_passes(first), *_passes(second)]


def _find_source(key: bytes, prefill: Prefill, held: Sequence[tuple[bytes, int]], known: Mapping[int, bytes]) -> None:
    """The row that holds most of the prompt: one of the prompt's own, unless another holds clearly more."""
    own = {row: common_tokens(known.get(row, b""), key) for row in prefill.rows}
    prefill.source = max(own, key=lambda row: (own[row], -row))
    prefill.rows.sort(key=lambda row: (row != prefill.source, row))
    prefill.kept = own[prefill.source]
    # among sorted keys the nearest ones have most in common
    place = bisect.bisect_left(held, (key, -1))
    for other, row in held[max(place - 1, 0) : place + 1]:
        shared = common_tokens(other, key)
        if shared - prefill.kept >= _WORTH_COPY:
            prefill.kept, prefill.source = shared, row
    prefill.kept = min(prefill.kept, len(prefill.prompt) - 1)  # the last token's logits are needed


def _passes(prefills: Sequence[Prefill]) -> list[PrefillPass]:
    """Prompts of similar lengths together; the copies that all of them need come before the first."""
    passes: list[PrefillPass] = []
    for prefill in sorted(prefills, key=lambda prefill: (-prefill.tokens, prefill.rows[0])):
        if passes:
            rows, longest = len(passes[-1].prefills) + 1, passes[-1].prefills[0].tokens
            if rows * longest <= (_LARGE if 2 * prefill.tokens >= longest else _SMALL):
                passes[-1].prefills.append(prefill)
                continue
        passes.append(PrefillPass([prefill]))
    if passes:
        passes[0].copies = [(p.source, p.rows[0], p.kept) for p in prefills if p.kept and p.source != p.rows[0]]
    return passes
