"""Rows as few sequences: tokens that rows have in common are computed once, and little of a micro-batch is padding."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

Ids = Sequence[int]
Rows = Sequence[Ids]


@dataclass(frozen=True)
class PackedRows:
    """A right-padded micro-batch of sequences that hold prompt + response rows, and where responses are predicted.

    Args:
        input_ids: ``[B, S]`` int64, right-padded. Under causal attention pads never reach a real token, so where no row
            branches off another no mask is needed and positions count from 0.
        positions: ``[u]`` int64 into the flattened ``[B * S]``: the tokens *before* response tokens.
        targets: ``[n]`` int64, the response tokens, row by row.
        lengths: response lengths of the rows; they sum to n.
        picks: ``[n]`` int64, target t is predicted at ``positions[picks[t]]``; None where they go one to one.
        position_ids: ``[B, S]`` int64, depth of every token in its row; None where that is its place.
        ends: ``[B, S]`` int64, token j is visible to token i where ``j <= i < ends[j]``; None under plain causal
            attention.
    """

    input_ids: Tensor
    positions: Tensor
    targets: Tensor
    lengths: tuple[int, ...]
    picks: Tensor | None = None
    position_ids: Tensor | None = None
    ends: Tensor | None = None

    def to(self, device: Any) -> PackedRows:
        """The same on another device."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **tensors)

    def inputs(self, temperature: float, entropy: bool, min_chunks: int, modules: Sequence[str]) -> tuple[Any, ...]:
        """Arguments of `PolicyScorer.forward`, by place, as wrappers around it hand them on."""
        asked = (self.input_ids, self.positions, self.targets, temperature, entropy, min_chunks)
        shared = (self.picks, self.position_ids, self.ends)
        if any(value is not None for value in shared):
            return (*asked, tuple(modules), *shared)
        return (*asked, tuple(modules)) if modules else asked


@dataclass(frozen=True)
class Branch:
    """A row in a sequence, without the tokens that it shares with the branch before it.

    Args:
        shared: tokens that it shares; they lie on the path that the branches before have made.
        length: of the row, tokens.
        rows: the rows that are a beginning of it, and it, the shortest first.
        ids: prompt and response, four big-endian bytes a token.
    """

    shared: int
    length: int
    rows: tuple[int, ...]
    ids: bytes


@dataclass(frozen=True)
class Pack:
    """One micro-batch of a plan.

    Args:
        rows: indices of the rows, in the order of their targets.
        separate: tokens of the rows by themselves.
        tokens: tokens in the sequences.
        size: sequences x longest sequence.
        branches: how many sequences it could be cut into.
        sequences: their branches, depth first; empty where every row is a sequence of its own.
    """

    rows: tuple[int, ...]
    separate: int
    tokens: int
    size: int
    branches: int
    sequences: tuple[tuple[Branch, ...], ...] = ()


def pack_rows(prompts: Rows, responses: Rows, pad_token_id: int, device: Any = "cpu") -> PackedRows:
    """Pack B rows into one right-padded batch; prompts and responses must not be empty."""
    rows = [[*prompt, *response] for prompt, response in zip(prompts, responses, strict=True)]
    width = max(len(row) for row in rows)
    input_ids = torch.tensor([row + [pad_token_id] * (width - len(row)) for row in rows], dtype=torch.long)
    positions = torch.cat(
        [
            torch.arange(len(prompt) - 1, len(prompt) + len(response) - 1) + index * width
            for index, (prompt, response) in enumerate(zip(prompts, responses, strict=True))
        ]
    )
    targets = torch.tensor([token for response in responses for token in response], dtype=torch.long)
    lengths = tuple(len(response) for response in responses)
    return PackedRows(input_ids.to(device), positions.to(device), targets.to(device), lengths)


def plan_micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group rows of similar length so that rows x longest row stays within `max_tokens`; longest first.

    A row longer than `max_tokens` gets a micro-batch of its own. Every index appears exactly once; the plan is a pure
    function of its arguments.
    """
    if max_tokens < 1:
        raise ValueError(f"plan_micro_batches: max_tokens must be at least 1, got {max_tokens}")
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    plan: list[list[int]] = []
    for index in order:
        if plan and lengths[plan[-1][0]] * (len(plan[-1]) + 1) <= max_tokens:
            plan[-1].append(index)
        else:
            plan.append([index])
    return plan


def plan_packs(
    prompts: Rows,
    responses: Rows,
    max_tokens: int,
    *,
    branches: bool,
    attention_cost: float,
    max_rows: int | None = None,
    max_padding: float = 0.1,
    share: bool = True,
) -> list[Pack]:
    """Group rows into micro-batches so that little is computed twice; every row stands in exactly one.

    A row that is the beginning of another, prompt and response together, lies inside that one's sequence. Rows that
    part after a common beginning become a tree in one sequence where that costs less: a sequence of W tokens costs
    ``W * (1 + attention_cost * W)`` with a mask, and half the second part without one (a single row). A pure function
    of its arguments.

    Args:
        prompts, responses: M token-id sequences each, none of them empty.
        max_tokens: sequences x longest sequence of a micro-batch; a single row may be longer by itself.
        branches: whether rows may become trees (`PolicyScorer.branches`).
        attention_cost: of one more key, where everything else that a token costs is 1.
        max_rows: rows of a micro-batch; those that lie inside one sequence without a branch may be more by themselves.
        max_padding: share of a micro-batch that may be padding.
        share: False computes every row by itself and pads as it comes.

    Raises:
        ValueError: `max_tokens` below 1, or ids that no vocabulary has.
    """
    if max_tokens < 1:
        raise ValueError(f"plan_packs: max_tokens must be at least 1, got {max_tokens}; one row always fits")
    if not share:
        lengths = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
        plan = plan_micro_batches(lengths, max_tokens)
        step = max_rows or len(lengths) + 1
        return [_separate(batch[i : i + step], lengths) for batch in plan for i in range(0, len(batch), step)]
    leaves = _trie(prompts, responses)
    trees = _cheapest_trees(leaves, max_tokens, max_rows, attention_cost) if branches else [(leaf,) for leaf in leaves]
    trees = [(_opened(tree[0]), *tree[1:]) for tree in trees]
    lengths = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
    buckets = []
    for masked in (False, True):
        chosen = [tree for tree in trees if (len(tree) > 1) == masked]
        buckets += _buckets(chosen, max_tokens, max_rows, max_padding)
    packs = [_pack_of(bucket, lengths) for bucket in buckets]
    return sorted(packs, key=lambda pack: -pack.size // len(pack.sequences))


def pack(entry: Pack, prompts: Rows, responses: Rows, pad_token_id: int, device: Any = "cpu") -> PackedRows:
    """The tensors of one entry of a plan; prompts and responses are those that were planned."""
    if not entry.sequences:
        own = entry.rows
        return pack_rows([prompts[i] for i in own], [responses[i] for i in own], pad_token_id, device)
    width = entry.size // len(entry.sequences)
    masked = any(len(sequence) > 1 for sequence in entry.sequences)
    layout = _Layout(len(entry.sequences), width, pad_token_id)
    places = [
        place
        for number, sequence in enumerate(entry.sequences)
        for place in layout.lay(number, sequence, prompts, responses)
    ]
    every = np.concatenate(places)
    positions, picks = np.unique(every, return_inverse=True)
    if len(positions) == len(every):
        positions, picks = every, None
    lengths = tuple(map(len, places))
    chosen = itertools.chain.from_iterable(responses[row] for row in entry.rows)
    return PackedRows(
        torch.from_numpy(layout.input_ids),
        torch.from_numpy(positions),
        torch.from_numpy(np.fromiter(chosen, np.int64, len(every))),
        lengths,
        None if picks is None else torch.from_numpy(picks),
        torch.from_numpy(layout.position_ids) if masked else None,
        torch.from_numpy(layout.ends) if masked else None,
    ).to(device)


_NO_WASTE = {"padding_share": 0.0, "shared_share": 0.0}


def waste(size: float, tokens: float, separate: float) -> dict[str, float]:
    """Metrics of packs whose counts were added up (see `Pack`): the share that is padding, the share that was saved."""
    return {"padding_share": 1 - tokens / size, "shared_share": 1 - tokens / separate} if size else _NO_WASTE


class _Layout:
    """Arrays ``[B, S]`` that trees are written into, depth first."""

    def __init__(self, rows: int, width: int, pad_token_id: int):
        self.input_ids = np.full((rows, width), pad_token_id, np.int64)
        self.position_ids = np.zeros((rows, width), np.int64)
        self.ends = np.tile(np.arange(1, width + 1), (rows, 1))  # a pad sees itself

    def lay(self, number: int, sequence: tuple[Branch, ...], prompts: Rows, responses: Rows) -> list[np.ndarray]:
        """Write one sequence; the flat places at which each row's response is predicted."""
        ids, depths, ends = self.input_ids[number], self.position_ids[number], self.ends[number]
        path = np.zeros(max(branch.length for branch in sequence), np.int64)  # depth -> place, of the present branch
        edges: list[tuple[int, int, int]] = []  # those of the path: first depth, depth behind, first place
        found, place = [], 0
        for branch in sequence:
            new = branch.length - branch.shared
            ids[place : place + new] = np.frombuffer(branch.ids, ">u4")[branch.shared :]
            depths[place : place + new] = np.arange(branch.shared, branch.length)
            path[branch.shared : branch.length] = np.arange(place, place + new)
            _leave(edges, branch.shared, place, ends)
            edges.append((branch.shared, branch.length, place))
            place += new
            for row in branch.rows:
                before = len(prompts[row]) - 1
                found.append(path[before : before + len(responses[row])] + number * len(ids))
        _leave(edges, 0, place, ends)
        return found


def _leave(edges: list[tuple[int, int, int]], depth: int, place: int, ends: np.ndarray) -> None:
    """Cut the path off at `depth`: what lay below it is visible to nothing from `place` on."""
    while edges and edges[-1][1] > depth:
        first, behind, start = edges.pop()
        if first < depth:
            edges.append((first, depth, start))
        kept = max(depth - first, 0)
        ends[start + kept : start + behind - first] = place


def _trie(prompts: Rows, responses: Rows) -> list[Branch]:
    """The leaves of the rows' trie from left to right, each with what it shares with the one before."""
    # big-endian bytes sort like the ids; shorter ones come before those that continue them
    try:
        texts = [struct.pack(f">{len(p) + len(r)}I", *p, *r) for p, r in zip(prompts, responses, strict=True)]
    except struct.error as error:
        raise ValueError(
            f"plan_packs: prompts and responses must hold ids from 0 to 2**32 - 1, got others ({error}); look there"
        ) from error
    order = sorted(range(len(texts)), key=texts.__getitem__)
    leaves: list[Branch] = []
    shared, rows, ids = 0, [], None
    for index, row in enumerate(order):
        ids = np.frombuffer(texts[row], np.uint32) if ids is None else ids
        rows.append(row)
        behind = None if index + 1 == len(order) else np.frombuffer(texts[order[index + 1]], np.uint32)
        common = 0 if behind is None else _common(ids, behind)
        if behind is None or common < len(ids):
            leaves.append(Branch(shared, len(ids), tuple(rows), texts[row]))
            shared, rows = common, []
        ids = behind
    return leaves


def _common(first: np.ndarray, second: np.ndarray) -> int:
    length = min(len(first), len(second))
    differs = first[:length] != second[:length]
    place = int(differs.argmax())
    return place if differs[place] else length


def _opened(branch: Branch) -> Branch:
    """A branch that begins a sequence and shares nothing."""
    return replace(branch, shared=0) if branch.shared else branch


def _cheapest_trees(
    leaves: Sequence[Branch], max_tokens: int, max_rows: int | None, attention_cost: float
) -> list[tuple[Branch, ...]]:
    """Cut the leaves into runs of neighbours so that the sequences cost least in all."""
    lengths = np.array([leaf.length for leaf in leaves], np.int64)
    ends = np.cumsum(lengths - np.array([leaf.shared for leaf in leaves], np.int64))
    lead = lengths - ends  # a run from i to j is lead[i] + ends[j] wide
    counts = [0, *itertools.accumulate(len(leaf.rows) for leaf in leaves)]
    most, widths, stops = max_rows or counts[-1], lead.tolist(), ends.tolist()
    best = np.zeros(len(leaves) + 1)
    begins, first, cost = [0] * (len(leaves) + 1), 0, 0.0
    for last, leaf in enumerate(leaves):
        first = first if leaf.shared else last
        while first < last and (stops[last] + widths[first] > max_tokens or counts[last + 1] - counts[first] > most):
            first += 1
        cost += leaf.length * (1 + attention_cost / 2 * leaf.length)
        begins[last + 1] = last
        if first < last:
            width = lead[first:last] + stops[last]
            costs = best[first:last] + width * (1 + attention_cost * width)
            choice = int(costs.argmin())
            if costs[choice] < cost:
                cost, begins[last + 1] = float(costs[choice]), first + choice
        best[last + 1] = cost
    trees, stop = [], len(leaves)
    while stop:
        trees.append(tuple(leaves[begins[stop] : stop]))
        stop = begins[stop]
    return trees[::-1]


def _width(tree: Sequence[Branch]) -> int:
    return sum(branch.length - branch.shared for branch in tree)


def _buckets(
    trees: Sequence[tuple[Branch, ...]], max_tokens: int, max_rows: int | None, max_padding: float
) -> list[list[tuple[Branch, ...]]]:
    """Trees of similar width together, the widest first, within the limits."""
    widths = [_width(tree) for tree in trees]
    buckets: list[list[tuple[Branch, ...]]] = []
    widest = total = rows = 0
    for index in sorted(range(len(trees)), key=lambda i: (-widths[i], i)):
        tree, width = trees[index], widths[index]
        own = sum(len(branch.rows) for branch in tree)
        size = widest * (len(buckets[-1]) + 1) if buckets else 0
        fits = size <= max_tokens and size - total - width <= max_padding * size
        if buckets and fits and (max_rows is None or rows + own <= max_rows):
            buckets[-1].append(tree)
            total, rows = total + width, rows + own
        else:
            buckets.append([tree])
            widest, total, rows = width, width, own
    return buckets


def _pack_of(bucket: Sequence[tuple[Branch, ...]], lengths: Sequence[int]) -> Pack:
    rows = tuple(row for tree in bucket for branch in tree for row in branch.rows)
    widths = [_width(tree) for tree in bucket]
    separate = sum(lengths[row] for row in rows)
    branches = sum(map(len, bucket))
    return Pack(rows, separate, sum(widths), len(bucket) * max(widths), branches, tuple(bucket))


def _separate(rows: Sequence[int], lengths: Sequence[int]) -> Pack:
    tokens = sum(lengths[row] for row in rows)
    return Pack(tuple(rows), tokens, tokens, len(rows) * max(lengths[row] for row in rows), len(rows))
