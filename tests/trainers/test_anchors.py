"""The provider of anchors: which observations of a group count as the same state, by option."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from turncredit.rollout import StopReason, Trajectory, Turn
from turncredit.trainers import get_method
from turncredit.trainers.batch import anchor_ids as exact
from turncredit.trainers.batch import make_batch
from turncredit.trainers.encoder import HashingEncoder, embed
from turncredit.trainers.methods.anchors import anchor_ids, normalized_text

RUN = SimpleNamespace(embed=lambda texts, encoder: embed(HashingEncoder(), texts))


def batch(*episodes, groups=None):
    made = []
    for index, seen in enumerate(episodes):
        turns = tuple(
            Turn((k, *map(ord, text[:1])), (1,), (0.0,), (), "r", observation=text) for k, text in enumerate(seen)
        )
        group = groups[index] if groups else 0
        made.append(Trajectory("t", "t", group, index, turns, 0.0, 0.0, StopReason.DONE))
    return make_batch(made)


def classes(ids):
    """Which rows are together, as the smallest row of each."""
    ids = ids.tolist()
    return [ids.index(value) for value in ids]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("You see a mug 2, an apple 1, and a key 3.", "you see  an apple 1, a key 3, and a mug 2.", True),
        ("On it are 3 eggs, 2 cups and 1 pan; go on", "On it are 1 pan, 3 eggs and 2 cups; go on", True),
        ("Step 3 of 15. A hall.", "step 12 of 15. A hall.", True),
        ("A hall. (turn: 2/9)", "A hall. (turn: 7/9)", True),
        ("You have 4 turns left.", "You have 11 turns left.", True),
        ("You arrive at cabinet 4.", "You arrive at cabinet 5.", False),
        ("a mug 2, and an apple 1.", "a mug 1, and an apple 2.", False),
        ("Price: $10.99", "Price: $11.99", False),
        ("Move the mug to the shelf.", "Move the shelf to the mug.", False),
        ("You see a mug 2. You hold an apple 1.", "You see an apple 1. You hold a mug 2.", False),
        ("Page 1 (Total results: 50)", "Page 2 (Total results: 50)", False),
        ("Two steps lead to room 3", "Two steps lead to room 4", False),
    ],
)
def test_what_does_not_matter_is_normalised_away_and_what_matters_stays(one, other, same):
    assert (normalized_text(one) == normalized_text(other)) == same
    assert normalized_text(normalized_text(one)) == normalized_text(one)


def test_a_long_text_that_is_no_list_costs_no_more_than_its_length():
    for text in ("a key" + " and a key" * 22 + " (old), then", "the cat of 1900 " * 4000):
        began = time.perf_counter()
        assert normalized_text(text) == text.strip()
        assert time.perf_counter() - began < 2


def test_the_default_is_the_exact_anchor_bit_for_bit():
    rows = batch(["hall", "Hall", "shelf"], ["hall", "shelf"], ["hall"], groups=[0, 0, 4])
    assert torch.equal(anchor_ids(rows, RUN), exact(rows))
    assert classes(exact(rows)) == [0, 1, 2, 0, 2, 5]
    assert get_method("gigpo").options["anchor"] == "exact"


def test_normalised_anchors_stay_in_their_group():
    rows = batch(["hall", "Hall "], ["HALL"], ["hall"], groups=[0, 0, 4])
    assert classes(anchor_ids(rows, RUN, anchor="normalized")) == [0, 0, 0, 3]


def test_the_prompt_tells_more_states_apart():
    rows = batch(["hall", "shelf"], ["hall", "hut"], ["shelf"])  # a prompt is the turn's number and a first letter
    assert classes(anchor_ids(rows, RUN, anchor="prompt")) == [0, 1, 0, 3, 4]
    assert classes(anchor_ids(rows, RUN)) == [0, 1, 0, 3, 1]


def test_the_situation_is_the_observation_and_what_can_be_done():
    rows = batch(["hall", "hall", "hut"], ["hall", "hall"])
    able = [("go",), ("go", "put"), ("go",), ("go", "put"), ("go",)]
    turns = tuple(replace(turn, admissible_actions=can) for turn, can in zip(rows.turns, able, strict=True))
    rows = replace(rows, turns=turns)
    assert classes(anchor_ids(rows, RUN, anchor="situation")) == [0, 1, 2, 1, 0]
    assert classes(anchor_ids(rows, RUN, anchor="actions")) == [0, 1, 0, 1, 0]


def test_only_observations_that_no_sibling_shares_look_for_a_similar_one():
    """a and b differ in one word of nine and are shared; c, seen twice but by one rollout, is nearer to b."""
    a, b = "one two three four five six seven eight nine", "one two three four five six seven eight ten"
    c, far = f"{b} ten", "something else entirely"
    rows = batch([a, c, c], [a, b, far], [b])
    found = anchor_ids(rows, RUN, anchor="similar", anchor_threshold=0.7)
    assert classes(found) == [0, 1, 1, 0, 1, 5, 1]
    assert classes(anchor_ids(rows, RUN, anchor="similar", anchor_threshold=1.0)) == [0, 1, 1, 0, 4, 5, 4]
    others = batch([a, c, c], [a, b, far], [b], groups=[0, 1, 2])
    assert classes(anchor_ids(others, RUN, anchor="similar", anchor_threshold=0.7))[3:] == [3, 3, 5, 6]


def test_observations_without_text_and_no_rows_at_all():
    rows = batch(["", "hall"], ["hall", ""])
    for anchor in ("exact", "normalized", "similar", "situation", "actions", "prompt"):
        assert anchor_ids(batch(), RUN, anchor=anchor).tolist() == []
        if anchor != "prompt":
            assert classes(anchor_ids(rows, RUN, anchor=anchor)) == [0, 1, 1, 0]


@pytest.mark.parametrize("name", ["gigpo", "posterior", "posterior_anchors"])
def test_options_reach_every_method_that_reads_anchors(name):
    options = get_method(name, anchor="similar", anchor_threshold=0.9, anchor_encoder="hashing").options
    assert (options["anchor"], options["anchor_threshold"], options["anchor_encoder"]) == ("similar", 0.9, "hashing")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (
            {"anchor": "exakt"},
            ValueError,
            "anchor must be one of ('exact', 'normalized', 'similar', 'situation', 'actions', 'prompt'), got 'exakt'",
        ),
        ({"anchor": None}, TypeError, "anchor must be one of"),
        ({"anchor_threshold": 1.5}, ValueError, "anchor_threshold must be a number above -1 and at most 1, got 1.5"),
        ({"anchor_threshold": "0.9"}, TypeError, "write it without quotes"),
        ({"anchor_treshold": 0.9}, TypeError, "did you mean 'anchor_threshold'?"),
        ({"anchors": "similar"}, TypeError, "did you mean 'anchor'?"),
    ],
)
def test_wrong_options_are_named_before_anything_is_played(options, error, says):
    with pytest.raises(error, match=re.escape(says)):
        get_method("gigpo", **options)
    with pytest.raises(TypeError, match="anchor"):
        get_method("grpo", anchor="similar")
