"""Padded rows of trajectories to turns and back: by hand, by a plain loop, as inverses, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from turncredit.credit import Credit, CreditInputs, get_credit, gigpo, grpo
from turncredit.credit.sequences import (
    binary_successes,
    sequence_credit,
    sequence_inputs,
    to_sequences,
    turns_from_mask,
)

#               turn 0 ---  env  turn 1  padding
MASK = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 0, 0, 0], [1, 0, 1, 0, 1], [1, 1, 1, 1, 1]]).bool()
REWARDS, GROUPS = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([7, 7, 3, 3])
masks = st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=5)


def values(*shape: int, seed: int = 0) -> Tensor:
    return -torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) - 0.1


def by_loop(mask: Tensor) -> list[tuple[int, int, int, int]]:
    """Sequence, turn, first position and length of each run."""
    found = []
    for row, line in enumerate(mask.tolist()):
        turn, before = -1, False
        for place, sampled in enumerate(line):
            if sampled and not before:
                turn += 1
                found.append([row, turn, place, 0])
            if sampled:
                found[-1][3] += 1
            before = sampled
    return [tuple(run) for run in found]


def test_the_turns_of_a_mask_by_hand() -> None:
    turns = turns_from_mask(MASK)
    assert turns.sequence_ids.tolist() == [0, 0, 1, 2, 2, 2, 3]
    assert turns.turn_ids.tolist() == [0, 1, 0, 0, 1, 2, 0]
    assert turns.starts.tolist() == [0, 3, 1, 0, 2, 4, 0]
    assert turns.response_mask.sum(1).tolist() == [2, 1, 1, 1, 1, 1, 5]
    grid = torch.arange(20.0).reshape(4, 5)
    assert turns.tokens(grid)[:2].tolist() == [[0, 1, 0, 0, 0], [3, 0, 0, 0, 0]]
    assert turns.first(grid).tolist() == [0, 3, 6, 10, 12, 14, 15]
    assert to_sequences(torch.arange(1.0, 8.0), turns)[0].tolist() == [1, 1, 0, 2, 0]


@given(masks)
def test_turns_and_sequences_are_each_other_s_inverse(lines: list[list[bool]]) -> None:
    mask = torch.tensor(lines)
    if not mask.any():
        return
    turns = turns_from_mask(mask)
    places = zip(*(x.tolist() for x in (turns.sequence_ids, turns.turn_ids, turns.starts)), strict=True)
    runs = [(*place, length) for place, length in zip(places, turns.response_mask.sum(1).tolist(), strict=True)]
    assert runs == by_loop(mask)
    assert to_sequences(turns.response_mask, turns).equal(mask)
    grid = values(*mask.shape)
    assert to_sequences(turns.tokens(grid), turns).equal(torch.where(mask, grid, 0.0))
    rows = torch.where(turns.response_mask, values(*turns.response_mask.shape), 0.0)
    assert turns.tokens(to_sequences(rows, turns)).equal(rows)
    assert to_sequences(Credit(rows, rows[:, 0]), turns).equal(to_sequences(rows, turns))
    again = turns_from_mask(to_sequences(turns.response_mask, turns))
    assert all(getattr(again, name).equal(value) for name, value in vars(turns).items())
    one = to_sequences(turns.starts, turns)
    assert turns.first(one).equal(turns.starts)


def test_credit_of_sequences_is_that_of_rows_made_one_by_one() -> None:
    student, teacher = values(4, 5), values(4, 5, seed=1)
    inputs, turns = sequence_inputs(MASK, REWARDS, GROUPS, student, teacher_logprobs=teacher)
    runs = by_loop(MASK)

    def rows(grid: Tensor) -> Tensor:
        out = torch.zeros(len(runs), 5, dtype=grid.dtype)
        for row, (sequence, _, start, length) in enumerate(runs):
            out[row, :length] = grid[sequence, start : start + length]
        return out

    by_hand = CreditInputs(
        response_mask=rows(MASK),
        trajectory_ids=torch.tensor([run[0] for run in runs]),
        turn_ids=torch.tensor([run[1] for run in runs]),
        group_ids=GROUPS,
        rewards=REWARDS,
        successes=REWARDS,
        student_logprobs=rows(student),
        teacher_logprobs=rows(teacher),
    )
    for name in ("agent_opsd", "agent_opsd_token", "rlsd"):
        expected = get_credit(name)(by_hand).advantages
        assert get_credit(name)(inputs).advantages.equal(expected)
        laid_out = torch.zeros(4, 5)
        for row, (sequence, _, start, length) in enumerate(runs):
            laid_out[sequence, start : start + length] = expected[row, :length]
        advantages, _ = sequence_credit(
            get_credit(name), MASK, REWARDS, GROUPS, student, teacher_logprobs=teacher, successes=None
        )
        assert advantages.equal(laid_out)
        assert to_sequences(get_credit(name)(inputs), turns).equal(laid_out)


def test_plain_grpo_gives_each_sampled_token_its_row_s_advantage() -> None:
    advantages, credit = sequence_credit(get_credit("grpo"), MASK, REWARDS, GROUPS, values(4, 5))
    a = 0.5 / (0.5**0.5 + 1e-4)  # rewards 1 and 0: mean 1/2, sample deviation sqrt(1/2)
    torch.testing.assert_close(advantages, MASK * torch.tensor([a, -a, a, -a])[:, None])
    assert len(credit.turn_weights) == 7


def test_padding_order_and_what_lies_outside_the_mask_change_nothing() -> None:
    student, teacher, method = values(4, 5), values(4, 5, seed=1), get_credit("agent_opsd")
    expected, _ = sequence_credit(method, MASK, REWARDS, GROUPS, student, teacher_logprobs=teacher)
    order = torch.tensor([2, 0, 3, 1])
    moved = (x[order] for x in (MASK, REWARDS, GROUPS, student))
    got, _ = sequence_credit(method, *moved, teacher_logprobs=teacher[order])
    torch.testing.assert_close(got, expected[order])
    wide = torch.nn.functional.pad(MASK, (2, 3))
    grids = [
        torch.nn.functional.pad(torch.where(MASK, x, torch.nan), (2, 3), value=torch.nan) for x in (student, teacher)
    ]
    got, _ = sequence_credit(method, wide, REWARDS, GROUPS, grids[0], teacher_logprobs=grids[1])
    assert got[:, 2:-3].equal(expected)
    assert (got[~wide] == 0).all()


def test_signals_of_turns_and_trajectories() -> None:
    anchors = torch.tensor([0, 1, 0, 2, 3, 2, 2])
    inputs, turns = sequence_inputs(MASK, REWARDS, GROUPS, values(4, 5), anchor_ids=anchors)
    grid = to_sequences(anchors, turns)
    from_grid, _ = sequence_inputs(MASK, REWARDS, GROUPS, values(4, 5), anchor_ids=grid, values=grid.float())
    assert from_grid.anchor_ids is not None
    assert from_grid.anchor_ids.equal(anchors)
    assert from_grid.values.equal(anchors.float())
    assert gigpo(from_grid).advantages.equal(gigpo(inputs).advantages)
    shares = torch.tensor([0.2, 0.4, 0.6, 0.8])
    assert sequence_inputs(MASK, 3 * REWARDS, GROUPS, values(4, 5), successes=shares)[0].successes.equal(shares)


def test_a_row_without_a_reward_is_in_no_baseline_and_gets_nothing() -> None:
    rewards, student = torch.tensor([1.0, 0.0, torch.nan, 1.0]), values(4, 5)
    student[2] = torch.nan
    same = torch.tensor([7, 7, 7, 7])
    got, credit = sequence_credit(get_credit("grpo"), MASK, rewards, same, student, successes=rewards)
    kept = torch.tensor([0, 1, 3])
    alone, _ = sequence_credit(get_credit("grpo"), MASK[kept], rewards[kept], same[kept], student[kept])
    assert got[kept].equal(alone)
    assert (got[2] == 0).all()
    assert len(credit.turn_weights) == 4


def test_a_scheduled_method_hears_the_step() -> None:
    heard = []

    class Method:
        def __call__(self, inputs: CreditInputs, *, step: int | None = None) -> Credit:
            heard.append(step)
            return grpo(inputs)

    sequence_credit(Method(), MASK, REWARDS, GROUPS, values(4, 5), step=4)  # type: ignore[arg-type]
    assert heard == [4]


def refused(kind: type[Exception], text: str, *arguments: object, **signals: object) -> None:
    with pytest.raises(kind, match=text):
        sequence_credit(get_credit("grpo"), *arguments, **signals)  # type: ignore[arg-type]


def test_what_is_refused() -> None:
    student, nan = values(4, 5), torch.full((4,), torch.nan)
    with pytest.raises(TypeError, match=r"mask must be a bool tensor, got torch.int64; call .bool()"):
        turns_from_mask(MASK.long())
    with pytest.raises(TypeError, match=r"mask must be a bool tensor, got list"):
        turns_from_mask([[True]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"mask must be \[B, S\], got \[5\]"):
        turns_from_mask(MASK[0])
    with pytest.raises(ValueError, match=r"mask must have a sampled token, got none in \[4, 5\]"):
        turns_from_mask(torch.zeros_like(MASK))
    turns = turns_from_mask(MASK)
    with pytest.raises(ValueError, match=r"to_sequences: credit must have shape \[7, 5\], got \[4, 5\]"):
        to_sequences(student, turns)
    with pytest.raises(TypeError, match="to_sequences: credit must be a tensor, got int"):
        to_sequences(3, turns)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"values must have shape \[4, 5\], got \[4, 4\]"):
        turns.tokens(student[:, :4])
    hole = MASK.clone()
    hole[1] = False
    refused(
        ValueError, "a sampled token in every row, got none in row 1; leave the row out", hole, REWARDS, GROUPS, student
    )
    refused(ValueError, "rewards must be given for some row, got NaN for all", MASK, nan, GROUPS, student)
    refused(
        ValueError,
        "successes must be given where rewards are not all 0 or 1, got a reward of 0.5",
        MASK,
        REWARDS / 2,
        GROUPS,
        student,
    )
    refused(
        ValueError,
        r"anchor_ids must be a tensor \[B\] or \[B, S\]",
        MASK,
        REWARDS,
        GROUPS,
        student,
        anchor_ids=torch.arange(7),
    )
    refused(ValueError, "did you mean 'teacher_logprobs'", MASK, REWARDS, GROUPS, student, teacher_logprob=student)
    refused(ValueError, "student_logprobs must be finite", MASK, REWARDS, GROUPS, student * torch.nan)
    with pytest.raises(TypeError, match="correspondence must be a tensor that a batch of sequences can hold"):
        sequence_inputs(MASK, REWARDS, GROUPS, student, correspondence=student)
    assert binary_successes(REWARDS) is REWARDS
