"""Group-relative advantages: degenerate groups, rounding, any order."""

from __future__ import annotations

import pytest
import torch

from turncredit.credit import group_relative_advantages

BOTH = [torch.float32, torch.float64]


@pytest.mark.parametrize("scope", ["trajectory", "turn"])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("dtype", BOTH)
def test_groups_of_one_and_of_equal_rewards_give_exactly_zero(scope: str, scale: bool, dtype: torch.dtype) -> None:
    rewards = torch.tensor([0.7, 0.1, 0.1, 0.1, -3.0], dtype=dtype)
    got = group_relative_advantages(
        rewards,
        torch.tensor([4, 9, 9, 9, 2]),
        scale_rewards=scale,
        normalization_scope=scope,
        turn_counts=torch.tensor([3, 1, 2, 5, 1]),
    )
    assert got.tolist() == [0.0] * 5
    assert got.dtype == dtype


@pytest.mark.parametrize("eps", [1e-4, 1e-6, 0.0])
@pytest.mark.parametrize("size", [1.0, 1e4, -123.456, 1e-3])
@pytest.mark.parametrize("dtype", BOTH)
def test_rewards_that_differ_by_rounding_give_exactly_zero(size: float, eps: float, dtype: torch.dtype) -> None:
    parts = torch.full((3, 10), size / 10, dtype=dtype)
    first = parts[0].sum()
    second = torch.zeros((), dtype=dtype)
    for part in parts[1]:
        second = second + part
    rewards = torch.stack([first, second, torch.nextafter(first, first * 2)])
    assert rewards.unique().numel() > 1
    got = group_relative_advantages(rewards, torch.zeros(3, dtype=torch.int64), eps=eps)
    assert got.tolist() == [0.0, 0.0, 0.0]


def test_small_true_differences_count() -> None:
    # 1000 and 1001: mean 1000.5, sample std 0.70711
    got = group_relative_advantages(torch.tensor([1000.0, 1001.0]), torch.tensor([0, 0]))
    assert got.tolist() == pytest.approx([-0.70701, 0.70701], abs=1e-4)


def test_groups_go_by_id_not_by_place() -> None:
    rewards, groups = torch.tensor([1.0, 5.0, 0.0, 7.0]), torch.tensor([30, -2, 30, -2])
    got = group_relative_advantages(rewards, groups, scale_rewards=False)
    assert got.tolist() == [0.5, -1.0, -0.5, 1.0]


def test_half_precision_rewards() -> None:
    got = group_relative_advantages(torch.tensor([1.0, 0.0], dtype=torch.bfloat16), torch.tensor([0, 0]))
    assert got.dtype == torch.float32
    assert got.tolist() == pytest.approx([0.70701, -0.70701], abs=1e-5)


def test_advantages_of_a_group_add_up_to_nothing_whatever_the_offset() -> None:
    rewards = torch.tensor([1e6, 1e6 + 1, 1e6 + 3, 1e6 + 8], dtype=torch.float64)
    got = group_relative_advantages(rewards, torch.zeros(4, dtype=torch.int64))
    shifted = group_relative_advantages(rewards - 1e6, torch.zeros(4, dtype=torch.int64))
    torch.testing.assert_close(got, shifted, rtol=0, atol=1e-9)
    assert abs(float(got.sum())) < 1e-12


@pytest.mark.parametrize("value", ["none", "group", None, 2])
def test_scale_rewards_is_a_flag(value):
    with pytest.raises(TypeError, match="scale_rewards must be True or False"):
        group_relative_advantages(torch.tensor([1.0, 0.0]), torch.tensor([7, 7]), scale_rewards=value)
