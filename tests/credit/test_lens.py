"""LENS-OPD's decisions: equations 2 to 4, 7, 11 and 12 by hand, and what must hold for every batch."""

from __future__ import annotations

import math

import pytest
import torch

from turncredit.credit.lens import (
    DepthController,
    bridge_turns,
    focus_weights,
    frontier_compatibility,
    gates,
    preferred_share,
    proposed_turns,
    token_focus,
)


def test_frontier_compatibility_by_hand():
    # trajectory 0 reaches turn 2 with a = .2 / .4 and .5 / .5: mean 3/4; 1 has one turn; 2 has no token there
    teachers = torch.tensor([[0.1, 0.1], [0.2, 0.5], [0.1, 0.1], [0.3, 0.3], [0.3, 0.3]]).log()
    own = torch.tensor([[0.9, 0.9], [0.4, 0.5], [0.9, 0.9], [0.3, 0.3], [0.3, 0.3]]).log()
    mask = torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0], [0, 0]]).bool()
    owners, turns = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 1, 0, 0, 1])
    assert frontier_compatibility(teachers, own, mask, owners, turns, 2).tolist() == pytest.approx([0.75])
    first = frontier_compatibility(teachers, own, mask, owners, turns, 1).tolist()
    assert first == pytest.approx([1 / 9, 1 / 9, 1.0])
    assert frontier_compatibility(teachers, own, mask, owners, turns, 3).tolist() == []


def test_pace_by_hand():
    # eta 3. entry at C .5: v 1; C .75: (.5 / .25) -> 1.5; C .25: .5 / .75 = 2/3: e = 3.167: K 2, e .167, a new entry
    control = DepthController(4, eta=3.0, eps=1e-12)
    assert [control.update(c) for c in (0.5, 0.75, 0.25)] == pytest.approx([1.0, 1.5, 2 / 3])
    assert (control.depth, control.elapsed) == (2, pytest.approx(1 / 6))
    assert math.isnan(control.entry)
    assert control.update(None) == 1.0  # nobody reached depth 2
    assert math.isnan(control.entry)
    assert control.update(0.9) == 1.0
    assert control.update(0.0) == 0.5  # .1 / 1, clipped
    assert control.entry == pytest.approx(0.1)


def test_a_fixed_clock_and_the_largest_depth():
    control = DepthController(3, eta=2.0, fixed_clock=True)
    depths = []
    for c in (0.1, 0.9, 0.1, 0.9, 0.1, 0.9):
        assert control.update(c) == 1.0
        depths.append(control.depth)
    assert depths == [1, 2, 2, 3, 3, 3]
    assert control.elapsed < 2.0


def test_depth_never_falls_and_its_state_comes_back():
    draw = torch.Generator().manual_seed(0)
    control, before = DepthController(9), 1
    for step in range(60):
        values = torch.rand(2, generator=draw).tolist()
        again = DepthController(9)
        again.load_state_dict(control.state_dict())
        compatibility = values[0] if values[1] < 0.8 else None
        assert control.update(compatibility) == again.update(compatibility), step
        assert before <= control.depth <= 9
        before = control.depth
    assert before > 3


def test_proposals_by_hand():
    # means: .3, .6 | .5, .5 (the first) | no token
    kl = torch.tensor([[0.1, 0.5], [0.6, 9.0], [0.5, 0.5], [0.5, 0.5], [9.0, 9.0]])
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1], [0, 0]]).bool()
    owners, turns = torch.tensor([0, 0, 1, 1, 2]), torch.tensor([0, 1, 1, 0, 0])
    assert proposed_turns(kl, mask, owners, turns).tolist() == [1, 3, -1]
    assert proposed_turns(kl, mask, owners, turns, last=True).tolist() == [1, 2, -1]
    order = torch.tensor([4, 2, 0, 3, 1])
    moved = proposed_turns(kl[order], mask[order], owners[order], turns[order]).tolist()
    assert [order[row].item() if row >= 0 else -1 for row in moved] == [1, 3, -1]


def test_a_failed_pair_is_left_out():
    gains, opened = gates(torch.tensor([-1.0, -1.0, math.nan, -1.0]), torch.tensor([-0.5, -1.0, 0.0, math.nan]))
    assert gains[:2].tolist() == [0.5, 0.0]
    assert gains[2:].isnan().all()
    assert opened.tolist() == [True, False, False, False]


def test_focus_by_hand():
    # [log .6 - log .3]_+ sigmoid(log .8 - log .2) = ln 2 x 4/5; and a student that already says v_T: 0
    scores = token_focus(*(torch.tensor(v).log() for v in ([0.6, 0.5], [0.3, 0.5], [0.8, 0.8], [0.2, 0.2])))
    assert scores.tolist() == pytest.approx([0.8 * math.log(2), 0.0])
    # rbar = 1 + 2 s capped at 3: 2, 3 (of 5), mean 2.5: 0.8 and 1.2; an unfocused turn keeps 1
    weights = focus_weights(
        torch.tensor([[0.5, 2.0, 7.0], [0.5, 2.0, 7.0]]),
        torch.tensor([[1, 1, 0], [1, 1, 1]]).bool(),
        torch.tensor([True, False]),
        beta=2.0,
        cap=3.0,
        eps=0.0,
    )
    assert weights.tolist() == [pytest.approx([0.8, 1.2, 1.0]), [1.0, 1.0, 1.0]]


def test_a_focused_turn_keeps_its_budget():
    draw = torch.Generator().manual_seed(1)
    mask = torch.rand(20, 7, generator=draw) < 0.7
    mask[:, 0] = True
    weights = focus_weights(3 * torch.rand(20, 7, generator=draw), mask, torch.arange(20) % 2 == 0)
    torch.testing.assert_close((weights * mask).sum(1), mask.sum(1).float(), rtol=0, atol=1e-5)
    none = focus_weights(3 * torch.rand(20, 7, generator=draw), mask, torch.zeros(20, dtype=torch.bool))
    assert bool((none == 1).all())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DepthController(2, k_start=3), "k_max must be a whole number of at least k_start"),
        (lambda: DepthController(2, eta=0.0), "eta"),
        (lambda: DepthController(2).update(1.5), "compatibility"),
        (lambda: token_focus(*[torch.zeros(1)] * 4, tau=0.0), "tau"),
        (lambda: focus_weights(torch.zeros(1, 1), torch.ones(1, 1).bool(), torch.ones(1).bool(), cap=0.5), "cap"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_bridges_by_hand():
    # mean gaps: trajectory 0: .5, 2 (not allowed), 9 (last); 1: .1, .3, 0 (last); 2: one turn
    student = torch.tensor([[-1.0, -1.0], [-1, -1], [-1, -1], [-1, 0], [-1, 0], [-1, 0], [-1, -1]])
    gap = torch.tensor([[0.2, 0.8], [2, 2], [9, 9], [0.1, 7], [0.3, 7], [0.0, 7], [5, 5]])
    mask = torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0], [1, 0], [1, 0], [1, 1]]).bool()
    owners, turns = torch.tensor([0, 0, 0, 1, 1, 1, 2]), torch.tensor([0, 1, 2, 3, 4, 5, 0])
    allowed = torch.tensor([1, 0, 1, 1, 1, 1, 1]).bool()
    assert bridge_turns(student, student - gap, mask, owners, turns, allowed).tolist() == [0, 4, -1]
    order = torch.tensor([5, 2, 6, 0, 4, 1, 3])
    found = bridge_turns(*(t[order] for t in (student, student - gap, mask, owners, turns, allowed)))
    assert [int(order[row]) if row >= 0 else -1 for row in found.tolist()] == [0, 4, -1]
    nothing = torch.zeros(0, 0)
    empty = torch.zeros(0, dtype=torch.long)
    assert bridge_turns(nothing, nothing, nothing.bool(), empty, empty, empty.bool()).tolist() == []


def test_preferred_share_by_hand():
    # continuation 0 has rows 0 and 2: 2 of 3 tokens are likelier under the teacher, an equal one is not; 1 has none
    student = torch.tensor([[-1.0, -2.0], [-1, -1], [-3, -1]])
    teacher = torch.tensor([[-0.5, -2.0], [-0.1, -0.1], [-1, -0.5]])
    mask = torch.tensor([[1, 1], [1, 1], [1, 0]]).bool()
    shares = preferred_share(student, teacher, mask, torch.tensor([0, -1, 0]), 2)
    assert shares[0].item() == pytest.approx(2 / 3)
    assert bool(shares[1].isnan())


def test_bounds_hold_where_the_likeliest_token_is_not_the_likeliest():
    # log-probs of two passes may disagree by rounding: support is at most 1, agreement is no disagreement
    teachers, own = torch.tensor([[0.5, 0.2]]).log(), torch.tensor([[0.4, 0.4]]).log()
    mask, zero = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, dtype=torch.long)
    assert frontier_compatibility(teachers, own, mask, zero, zero, 1).tolist() == pytest.approx([(1 + 0.5) / 2])
    focus = token_focus(own, teachers, torch.zeros(1, 2), torch.zeros(1, 2), tau=1.0)
    assert focus[0].tolist() == pytest.approx([0.0, math.log(2) * 0.5])


def test_proposals_go_by_means_and_leave_out_turns_without_a_token():
    # trajectory 0: means 3 and 2, sums 3 and 4; trajectory 1: -1 and no token; 2: no token at all
    gaps = torch.tensor([[3.0, 9.0], [2, 2], [-1, -1], [9, 9], [9, 9]])
    mask = torch.tensor([[1, 0], [1, 1], [1, 1], [0, 0], [0, 0]]).bool()
    owners, turns = torch.tensor([0, 0, 1, 1, 2]), torch.tensor([0, 1, 0, 1, 0])
    assert proposed_turns(gaps, mask, owners, turns).tolist() == [0, 2, -1]


def test_the_temperature_of_the_focus_by_hand():
    # sigmoid(ln 4 / 2) = 2 / 3; the order of the arguments: own and teacher's token under the student, then the teacher
    own, teachers = torch.tensor([[0.8]]).log(), torch.tensor([[0.4]]).log()
    sure, theirs = torch.tensor([[0.8]]).log(), torch.tensor([[0.2]]).log()
    focus = token_focus(own, teachers, sure, theirs, tau=2.0)
    assert focus.item() == pytest.approx(math.log(2) * 2 / 3)
