"""Rows that share prefixes in every way there is, and plain loops that say what sharing them must come to."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Ids = tuple[int, ...]
LOW, HIGH = 2, 22
"""Token ids that the toy tokenizer has and that mean nothing special."""


@dataclass(frozen=True)
class Rows:
    """M prompts with their responses, and the trajectory of each row."""

    prompts: list[Ids]
    responses: list[Ids]
    slots: list[int]

    def __len__(self) -> int:
        return len(self.prompts)

    def whole(self) -> list[Ids]:
        return [(*prompt, *response) for prompt, response in zip(self.prompts, self.responses, strict=True)]

    def __add__(self, other: Rows) -> Rows:
        """Both, the slots of the second behind those of the first."""
        first = max(self.slots, default=-1) + 1
        slots = [*self.slots, *(first + slot for slot in other.slots)]
        return Rows([*self.prompts, *other.prompts], [*self.responses, *other.responses], slots)

    def shuffled(self, seed: int = 0) -> Rows:
        return self.select(random.Random(seed).sample(range(len(self)), len(self)))

    def select(self, index: Sequence[int]) -> Rows:
        columns = (self.prompts, self.responses, self.slots)
        return Rows(*([column[i] for i in index] for column in columns))


def draw(rng: random.Random, low: int, high: int | None = None, vocabulary: tuple[int, int] = (LOW, HIGH)) -> Ids:
    """Random ids; as many as `low`, or between `low` and `high`."""
    return tuple(rng.randrange(*vocabulary) for _ in range(low if high is None else rng.randint(low, high)))


def from_pairs(pairs: Sequence[tuple[Ids, Ids]], slots: Sequence[int] | None = None) -> Rows:
    return Rows([p for p, _ in pairs], [r for _, r in pairs], list(slots) if slots else list(range(len(pairs))))


def chains(seed: int = 0, trajectories: int = 3, turns: int = 4, observation: int = 6, response: int = 4) -> Rows:
    """Append-only histories: every prompt is all that came before and one more observation."""
    rng = random.Random(seed)
    pairs, slots = [], []
    for slot in range(trajectories):
        history: Ids = ()
        for _ in range(rng.randint(2, turns)):
            history += draw(rng, 1, observation)
            said = draw(rng, 1, response)
            pairs.append((history, said))
            slots.append(slot)
            history += said
    return from_pairs(pairs, slots)


def siblings(seed: int = 0, groups: int = 2, size: int = 4, prefix: int = 24, turns: int = 2) -> Rows:
    """Rollouts of one task: the same first prompt, then histories of their own, append-only."""
    rng = random.Random(seed)
    pairs, slots = [], []
    for group in range(groups):
        first = draw(rng, prefix)
        for member in range(size):
            history = first
            for _ in range(turns):
                said = draw(rng, 1, 5)
                pairs.append((history, said))
                slots.append(group * size + member)
                history += said + draw(rng, 1, 4)
    return from_pairs(pairs, slots)


def windowed(seed: int = 0, trajectories: int = 3, turns: int = 4, system: int = 12) -> Rows:
    """A system prompt, then only the last two turns of the history, so that prompts do not continue each other."""
    rng = random.Random(seed)
    instructions = draw(rng, system)
    pairs, slots = [], []
    for slot in range(trajectories):
        past: list[Ids] = []
        for _ in range(turns):
            past.append(draw(rng, 2, 5))
            said = draw(rng, 1, 4)
            pairs.append((instructions + sum(past[-3:], ()), said))
            slots.append(slot)
            past[-1] += said
    return from_pairs(pairs, slots)


def duplicates(seed: int = 0) -> Rows:
    """Whole rows twice and three times, one prompt with several responses, one row cut elsewhere into its halves."""
    rng = random.Random(seed)
    prompt, said = draw(rng, 14), draw(rng, 5)
    pairs = [
        (prompt, said),
        (prompt, said),
        (prompt, draw(rng, 5)),
        (prompt, said[:2]),  # ends within another's response
        (prompt, (*said[:2], said[2] + 1, 4)),
        (prompt + said[:3], said[3:]),  # the same ids, cut elsewhere
        (prompt[:6], prompt[6:] + said),  # all of it a response
        (prompt, said),
    ]
    return from_pairs(pairs)


def prompts_only(seed: int = 0) -> Rows:
    """Rows that are the beginning of another's prompt and nothing else, the shortest with one token each."""
    rng = random.Random(seed)
    ids = draw(rng, 20)
    return from_pairs([(ids[:1], ids[1:2]), (ids[:1], ids[1:8]), (ids[:8], ids[8:12]), (ids[:15], ids[15:])])


def shortest(seed: int = 0) -> Rows:
    """Prompts and responses of one token, some of them equal."""
    rng = random.Random(seed)
    return from_pairs([((rng.randrange(3, 6),), (rng.randrange(3, 6),)) for _ in range(12)])


def trie(seed: int = 0, count: int = 24, vocabulary: tuple[int, int] = (3, 6), longest: int = 12) -> Rows:
    """Rows over three letters: they share all kinds of prefixes, and all kinds of places are targets."""
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        ids = draw(rng, 2, longest, vocabulary)
        if pairs and rng.random() < 0.7:  # on from somewhere within an earlier row
            earlier = sum(rng.choice(pairs), ())
            ids = earlier[: rng.randint(1, len(earlier))] + ids
        cut = rng.randint(1, len(ids) - 1)
        pairs.append((ids[:cut], ids[cut:]))
    return from_pairs(pairs, [rng.randrange(6) for _ in pairs])


def unrelated(seed: int = 0, count: int = 9) -> Rows:
    """No two rows begin alike."""
    rng = random.Random(seed)
    return from_pairs([((LOW + row, *draw(rng, 0, 9)), draw(rng, 1, 6)) for row in range(count)])


def mixed(seed: int = 0) -> Rows:
    """Some of everything, in no order."""
    kinds = (chains, siblings, windowed, duplicates, prompts_only, shortest, trie, unrelated)
    rows = Rows([], [], [])
    for kind in kinds:
        rows += kind(seed)
    return rows.shuffled(seed)


WORKLOADS: dict[str, Callable[[int], Rows]] = {
    "chains": chains,
    "siblings": siblings,
    "windowed": windowed,
    "duplicates": duplicates,
    "prompts only": prompts_only,
    "shortest": shortest,
    "trie": trie,
    "unrelated": unrelated,
    "mixed": mixed,
    "one row": lambda seed: from_pairs([((5, 6, 7), (8, 9))]),
}


def trie_nodes(rows: Sequence[Ids]) -> int:
    """How many different prefixes the rows have: the tokens that are left when every one is computed once."""
    return len({row[:length] for row in rows for length in range(1, len(row) + 1)})


def prefix_tokens(rows: Rows) -> int:
    """Tokens that are left when only rows that another one begins with are merged into it."""
    whole = set(rows.whole())
    inside = {ids[:length] for ids in whole for length in range(1, len(ids))}
    return sum(len(ids) for ids in whole if ids not in inside)
