"""Which turns of a group count as the same state: by observation, by what matters in it, by likeness, by prompt."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from ...credit.gigpo import join_alike
from ...rollout.options import number, text
from ..batch import TurnBatch
from ..batch import anchor_ids as anchors_of
from .providers import provides
from .run import Run

_UNIT = r"(?:steps?|turns?|rounds?|attempts?)"
_LEFT = r"(?:left|remaining|taken|so far)"
_COUNTER = re.compile(
    rf"\b{_UNIT}(?: (?:number|{_LEFT}))?[ :#=]{{0,3}}\d+(?: ?(?:/|of|out of) ?\d+)?\b"
    rf"|\b\d+ (?:more )?{_UNIT}\b(?: {_LEFT}\b)?"
)
_BEGUN = r"(?:an?|the|\d+) [^\s,.;:]"
# nowhere can a thing end but before the next: a text that is no list after all is not tried in every other way
_ITEM = rf"{_BEGUN}(?:(?! and {_BEGUN})[^,.;:\n]){{0,80}}?"
_LISTED = re.compile(rf"\b{_ITEM}(?:(?:,? and |, ){_ITEM})+(?=[.;:\n]|$)")
_BETWEEN = re.compile(r",? and |, ")


def normalized_text(observation: str) -> str:
    """An observation without what makes equal states look different; numbers of things stay, as they name them.

    Case and blanks are evened out, counters of the episode itself become ``#`` ("step 3 of 15", "2 turns left"), and
    things that are listed with an article or a number each are sorted ("a mug 2, an apple 1, and a key 3").

    >>> normalized_text("Step 3/15. You see  a mug 2, an apple 1, and a mug 1.")
    '#. you see a mug 1, a mug 2, an apple 1.'
    """
    counted = _COUNTER.sub("#", observation.casefold())
    listed = _LISTED.sub(lambda found: ", ".join(sorted(_BETWEEN.split(found[0]))), counted)
    return " ".join(listed.split())


def _start(run: Run, *, anchor: str, anchor_encoder: str, **others: Any) -> None:
    if anchor == "similar":
        run.embed([], anchor_encoder)


@provides(
    "anchor_ids",
    start=_start,
    rules={
        "anchor": text("exact", "normalized", "similar", "situation", "actions", "prompt"),
        "anchor_threshold": number(-1.0, 1.0, above=True),
        "anchor_encoder": text(),
    },
)
def anchor_ids(
    batch: TurnBatch,
    run: Run,
    *,
    anchor: str = "exact",
    anchor_threshold: float = 0.95,
    anchor_encoder: str = "hashing",
) -> Tensor:
    """``[M]`` int64: equal for rows of a group that count as the same state; docs/methods.md#anchors.

    Args:
        batch: M rows.
        run: the run.
        anchor: ``"exact"``, the suite's anchor or else the observation is equal; ``"normalized"``, it is equal by
            `normalized_text`; ``"similar"``, one that by this no other rollout of the group saw joins the most similar
            one, at a cosine of at least `anchor_threshold`; ``"situation"``, it and the admissible actions are equal;
            ``"actions"``, they are equal, where they are listed; ``"prompt"``, all that the policy read is equal.
        anchor_threshold: in (-1, 1].
        anchor_encoder: a SentenceTransformer's name or folder, or ``"hashing"`` (shared words, no model).
    """
    if anchor == "exact":
        return anchors_of(batch)
    if anchor == "situation":
        return anchors_of(batch, [(turn.anchor or turn.observation, turn.admissible_actions) for turn in batch.turns])
    if anchor == "actions":
        return anchors_of(batch, [turn.admissible_actions or turn.anchor or turn.observation for turn in batch.turns])
    if anchor == "prompt":
        return anchors_of(batch, batch.prompts)
    texts = [normalized_text(turn.anchor or turn.observation) for turn in batch.turns]
    equal = anchors_of(batch, texts)
    if anchor == "normalized" or not texts:
        return equal
    count = int(equal.max()) + 1
    first = torch.full((count,), len(texts)).scatter_reduce(0, equal, torch.arange(len(texts)), "amin")
    visits = torch.stack([equal, batch.trajectory_ids]).unique(dim=1)[0]  # one for each anchor and trajectory
    visitors = torch.bincount(visits, minlength=count)
    vectors = run.embed([texts[row] or "(empty)" for row in first.tolist()], anchor_encoder)
    groups = batch.group_ids[batch.trajectory_ids][first]
    return join_alike(groups, vectors, threshold=anchor_threshold, lonely=(visitors < 2))[equal]
