"""Similarity anchors: clusters by cosine within a group, whatever the order of the rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.credit_cases import hand_batch, random_batch, reorder_rows

from turncredit.credit import gigpo
from turncredit.credit.gigpo import similarity_anchors


def at_degrees(*angles: float) -> torch.Tensor:
    radians = torch.deg2rad(torch.tensor(angles))
    return torch.stack([radians.cos(), radians.sin()], dim=1)


def test_turns_that_look_alike_share_an_anchor_also_through_a_third() -> None:
    # cos 10 degrees = 0.985, cos 20 = 0.940: rows 0-1-2 are a chain, row 3 stands alone
    inputs = hand_batch([[0.0, 0.0], [0.0, 0.0]], [1.0, 0.0])
    assert similarity_anchors(inputs, at_degrees(0, 10, 20, 60), threshold=0.95).tolist() == [0, 0, 0, 3]
    assert similarity_anchors(inputs, at_degrees(0, 10, 20, 60), threshold=0.99).tolist() == [0, 1, 2, 3]


def test_groups_do_not_share_anchors() -> None:
    inputs = replace(hand_batch([[0.0], [0.0]], [1.0, 0.0]), group_ids=torch.tensor([0, 1]))
    assert similarity_anchors(inputs, at_degrees(0, 0)).tolist() == [0, 1]


def test_identical_embeddings_are_exact_anchors() -> None:
    inputs = random_batch(11, groups=2, rollouts=6)
    assert inputs.anchor_ids is not None
    corners = torch.eye(4)[inputs.anchor_ids] * 3
    alike = replace(inputs, anchor_ids=similarity_anchors(inputs, corners, threshold=1.0))
    assert torch.equal(gigpo(alike).advantages, gigpo(inputs).advantages)


@pytest.mark.parametrize("seed", range(5))
def test_long_chains_and_any_row_order(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    inputs = random_batch(seed, groups=1, rollouts=6, turns=12)
    m = inputs.num_rows
    places = torch.randperm(m, generator=draw)
    vectors = at_degrees(*(4.0 * places).tolist())
    assert similarity_anchors(inputs, vectors, threshold=0.99).unique().tolist() == [0]
    order = torch.randperm(m, generator=draw)
    cut = similarity_anchors(inputs, at_degrees(*(4.0 * places + 40 * (places >= m // 2)).tolist()), threshold=0.99)
    moved = similarity_anchors(
        reorder_rows(inputs, order),
        at_degrees(*(4.0 * places + 40 * (places >= m // 2)).tolist())[order],
        threshold=0.99,
    )
    assert torch.equal(cut[:, None] == cut[None, :], (places[:, None] >= m // 2) == (places[None, :] >= m // 2))
    assert torch.equal(moved[:, None] == moved[None, :], (cut[:, None] == cut[None, :])[order][:, order])
