"""Fidelity against measured advantages: by hand, its corrections for noise, and what it cannot judge."""

from __future__ import annotations

import math

import pytest
import torch

from turncredit.credit.lab.measured import measured_fidelity


def judge(credit, advantages, errors, halves=None, owners=None, **options):
    advantages = torch.tensor(advantages)
    owners = torch.zeros(len(advantages), dtype=torch.long) if owners is None else torch.tensor(owners)
    turns = torch.tensor([int((owners[:k] == owner).sum()) for k, owner in enumerate(owners)])
    halves = (advantages, advantages) if halves is None else halves
    return measured_fidelity(torch.tensor(credit), owners, turns, advantages, torch.tensor(errors), halves, **options)


def test_by_hand() -> None:
    # errors .1 of every value: of a turn .141, of a difference .2, of neighbours' sqrt(.06) = .245
    errors = [[0.1, 0.1]] * 3
    found = judge([1.0, 0.0, 0.5], [0.6, 0.0, 0.3], errors)
    # apart by two errors: 0.6 and 0.0 (neighbours: .6 > .49); 0.6 and 0.3: .3 < .4; 0.0 and 0.3: .3 < .49
    assert (found.pairs, found.pair_accuracy) == (1, 1.0)
    # sizes above .283: .6 and .3
    assert (found.turns, found.sign_errors) == (2, 0.0)
    assert found.correlation == pytest.approx(1.0)  # .5 of 1 as .3 of .6


def test_neighbours_share_the_value_between_them() -> None:
    # .45 apart: more than two errors of .2, less than two of sqrt(.1^2 + 4 * .1^2 + .1^2) = .245
    errors = [[0.1, 0.1]] * 3
    assert judge([1.0, 0.0, 0.0], [0.45, 0.0, 0.2], errors).pairs == 0
    assert judge([1.0, 0.0, 0.0], [0.45, 0.2, 0.0], errors).pairs == 1


def test_ties_count_one_half_and_signs_of_nothing_are_wrong() -> None:
    found = judge([0.5, 0.5], [0.6, -0.6], [[0.0, 0.0]] * 2)
    assert (found.pair_accuracy, found.sign_errors) == (0.5, 0.5)
    nothing = judge([0.0, 0.0], [0.6, -0.6], [[0.0, 0.0]] * 2)
    assert (nothing.pair_accuracy, nothing.sign_errors, nothing.correlation) == (0.5, 1.0, 0.0)


def test_the_correlation_is_that_with_the_truth_whatever_the_noise() -> None:
    draw = torch.Generator().manual_seed(0)
    truth = torch.randn(400, 10, generator=draw).double()
    noise = torch.randn(2, 400, 10, generator=draw).double()
    credit = truth + torch.randn(400, 10, generator=draw).double()  # correlation sqrt(1/2) with the truth
    one, two = truth + 1.5 * noise[0], truth + 1.5 * noise[1]
    owners, turns = torch.arange(400).repeat_interleave(10), torch.arange(10).repeat(400)
    flat = [value.flatten() for value in (credit, (one + two) / 2, one, two)]
    errors = torch.full((4000, 2), 1.5 / 2)
    found = measured_fidelity(flat[0], owners, turns, flat[1], errors, (flat[2], flat[3]))
    assert found.correlation == pytest.approx(math.sqrt(0.5), abs=0.03)
    order = torch.randperm(4000, generator=draw)
    moved = measured_fidelity(
        flat[0][order], owners[order], turns[order], flat[1][order], errors, (flat[2][order], flat[3][order])
    )
    assert moved.correlation == pytest.approx(found.correlation)
    assert moved.pair_accuracy == pytest.approx(found.pair_accuracy)


def test_what_was_not_measured_is_left_out() -> None:
    found = judge([1.0, 0.0], [math.nan, 0.5], [[math.nan, 0.0], [0.0, 0.0]])
    assert (found.pairs, found.turns) == (0, 1)
    assert math.isnan(found.pair_accuracy)
    assert math.isnan(judge([1.0], [0.0], [[1.0, 1.0]]).sign_errors)
    with pytest.raises(ValueError, match="credit must be finite"):
        judge([math.inf], [0.0], [[1.0, 1.0]])
    with pytest.raises(ValueError, match="resolution"):
        judge([1.0], [0.0], [[1.0, 1.0]], resolution=-1.0)
