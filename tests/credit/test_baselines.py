"""RLOO, MT-GRPO, HGPO, HCAPO and the methods on the graph of states: hand tables, plain loops, identities, errors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import reference_baselines as reference
from helpers.credit_cases import hand_batch, random_batch

from turncredit.credit import get_credit, grpo
from turncredit.credit.baselines import (
    g2po,
    gagpo,
    graphgpo,
    hcapo,
    hgpo,
    mt_grpo,
    rewardflow,
    rloo,
    tree_grpo,
    vineppo,
)
from turncredit.credit.baselines.graphs import best_values, goal_distances
from turncredit.credit.states import following, preceding, state_ids

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "rloo": [{}, {"outcome_discount": 0.9}],
    "mt_grpo": [{}, {"step_weight": 0.3, "eps": 1e-2, "outcome_discount": 0.9}],
    "hgpo": [{}, {"history": 0}, {"history": 4, "alpha": 0.0, "discount": 0.8}, {"alpha": 2.0, "eps": 1e-2}],
    "graphgpo": [{}, {"normalization": "mean", "goal": 2.0}, {"discount": 1.0, "step_weight": 0.5}],
    "g2po": [{}, {"normalization": "mean"}, {"discount": 0.7, "step_weight": 2.0, "outcome_discount": 0.9}],
    "gagpo": [{}, {"normalization": "mean", "gae_lambda": 0.0}, {"gae_lambda": 1.0, "discount": 1.0}],
    "rewardflow": [{}, {"normalization": "mean", "episode_weight": 0.5}, {"discount": 0.7, "outcome_discount": 0.9}],
    "hcapo": [
        {},
        {"scope": "trajectory", "hindsight_temperature": 1.0},
        {"ratio_low": 0.0, "ratio_high": 9.0, "step_weight": 0.5, "discount": 0.8, "outcome_discount": 0.9},
    ],
}
CASES = [(name, options) for name, choices in OPTIONS.items() for options in choices]


def near(got: torch.Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(got.double(), torch.tensor(expected).double(), rtol=0, atol=1e-4)


def turns_of(credit) -> torch.Tensor:
    return credit.advantages.sum(-1)


def maze(**more: Any):
    """Two trajectories of one group: A B C and wins, A C and loses; anchors A 0, B 1, C 2."""
    inputs = hand_batch([[0.0, 0.0, 0.0], [0.0, 0.0]], [1.0, 0.0])
    return replace(inputs, anchor_ids=torch.tensor([0, 1, 2, 0, 2]), **more)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "options"), CASES)
def test_plain_loops(name: str, options: dict[str, Any], seed: int) -> None:
    inputs = random_batch(seed, groups=2, rollouts=5, gap=2.0)
    if name == "mt_grpo" or seed == 2:
        draw = torch.Generator().manual_seed(seed)
        inputs = replace(inputs, turn_rewards=torch.randn(inputs.num_rows, generator=draw, dtype=torch.float64))
    got = get_credit(name, **options)(inputs).advantages
    expected = torch.tensor(getattr(reference, name)(inputs, **options), dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)


def test_rloo_by_hand() -> None:
    # 1 - (0 + 0.5) / 2, 0 - (1 + 0.5) / 2, 0.5 - 0.5
    inputs = hand_batch([[0.0], [0.0], [0.0]], [1.0, 0.0, 0.5])
    near(turns_of(rloo(inputs)), [0.75, -0.75, 0.0])
    near(turns_of(rloo(hand_batch([[0.0]], [1.0]))), [0.0])


def test_mt_grpo_by_hand() -> None:
    # A = +-(1/2) / sqrt(1/2); the first turns earned 2 and 0: z the same; the last turns have none
    inputs = hand_batch([[0.0, 0.0], [0.0, 0.0]], [1.0, 0.0], turn_rewards=torch.tensor([2.0, 1.0, 0.0, 0.0]).double())
    a = 0.5 / (math.sqrt(0.5) + 1e-4)
    near(turns_of(mt_grpo(inputs)), [a + 1 / (math.sqrt(2) + 1e-4), a, -a - 1 / (math.sqrt(2) + 1e-4), -a])


def test_hgpo_by_hand() -> None:
    # returns .9025, .95, 1 / 0, 0. Depth 1: A (.9025, 0), C (1, 0): z +-1; depth 2: A again, as both begin there, C not
    # (B before, A before); depth 3: A. B is alone: GRPO's (1/2) / sqrt(1/2)
    credit = hgpo(maze(), eps=0.0)
    near(turns_of(credit), [1.0, 0.5 / (math.sqrt(0.5) + 1e-4), 1.0, -1.0, -1.0])
    assert credit.metrics["clustered_turn_share"] == pytest.approx(4 / 5)
    assert credit.metrics["mean_cluster_depth"] == pytest.approx((3 + 1 + 3 + 1) / 4)


def test_hgpo_weighs_depths() -> None:
    # A B / A B / C B: returns of B 1, 1/2, 0. Depth 1: deviation sqrt(1/6); depth 2: (1, 1/2): +-1.
    inputs = hand_batch([[0.0, 0.0]] * 3, [1.0, 0.5, 0.0])
    inputs = replace(inputs, anchor_ids=torch.tensor([0, 1, 0, 1, 2, 1]))
    got = turns_of(hgpo(inputs, history=1, alpha=2.0, eps=0.0))[[1, 3, 5]]
    z = 0.5 / math.sqrt(1 / 6)
    near(got, [(4 * z + 9) / 13, (0 - 9) / 13, -z])


def test_goal_distances_by_hand() -> None:
    # A -> B -> C -> won; A -> C -> lost. From C a success is one turn away, so A -> C has 1 to go, A -> B two.
    inputs = maze()
    assert goal_distances(inputs, state_ids(inputs)).tolist() == [2.0, 1.0, 0.0, 1.0, math.inf]
    values = best_values(inputs, state_ids(inputs), torch.tensor([0.0, 0, 1, 0, 0]).double(), 0.5)
    near(values, [0.25, 0.5, 1.0, 0.5, 0.0])


def test_graphgpo_by_hand() -> None:
    # at A: 10 * .81 and 10 * .9; at C: 10 and 0; B alone. Less their means, and A_i = +-1/2.
    credit = graphgpo(maze(), discount=0.9, normalization="mean")
    near(turns_of(credit), [0.5 - 0.45, 0.5, 0.5 + 5, -0.5 + 0.45, -0.5 - 5])
    z = 1 / math.sqrt(2)
    near(turns_of(graphgpo(maze(), discount=0.9)), [z - z, z, z + z, -z + z, -z - z])


def test_g2po_by_hand() -> None:
    # gamma 1/2: visits A 1/8 and 0, B 1/4, C 1/2 and 0: V = 1/16, 1/4, 1/4. U: 1/4, 1/4, 1, 1/4, 0.
    # U - V: 3/16, 0, 3/4, 3/16, -1/4, mean 7/40; at A no difference, at C +-1/2.
    credit = g2po(maze(), discount=0.5, normalization="mean")
    moved = [x - 7 / 40 for x in (3 / 16, 0, 3 / 4, 3 / 16, -1 / 4)]
    near(turns_of(credit), [0.5 + moved[0], 0.5 + moved[1], 1 + moved[2], -0.5 + moved[3], -1 + moved[4]])
    near(credit.details["state_values"], [1 / 16, 1 / 4, 1 / 4, 1 / 16, 1 / 4])


def test_gagpo_by_hand() -> None:
    # gamma 1/2: V = A 1/8, B 1/2, C 1/2. delta: 1/8, -1/4, 1/2 / 1/8, -1/2; lambda 1: A = 1/8, 0, 1/2 / -1/8, -1/2
    near(turns_of(gagpo(maze(), discount=0.5, gae_lambda=1.0, normalization="mean")), [0.125, 0, 0.5, -0.125, -0.5])
    near(turns_of(gagpo(maze(), discount=0.5, gae_lambda=0.0, normalization="mean")), [0.125, -0.25, 0.5, 0.125, -0.5])


def test_rewardflow_by_hand() -> None:
    # q: 1/4, 1/2, 1 / 1/2, 0; A: -+1/8, C: +-1/2
    credit = rewardflow(maze(), discount=0.5, normalization="mean")
    near(turns_of(credit), [-0.125, 0.0, 0.5, 0.125, -0.5])
    near(turns_of(rewardflow(maze(), discount=0.5, normalization="mean", episode_weight=1.0))[1:2], [0.5])


def test_hcapo_by_hand() -> None:
    # p = exp(teacher / T): turns of trajectory 0 with log p 0 and -ln 3 at T = 1: p 1 and 1/3, mean 2/3: ratios 3/2,
    # 1/2, kept 1.2 and 0.8. Q = 1, 1 (no discount): 1.2, .8; trajectory 1 lost: 0, 0. z over the four.
    inputs = hand_batch([[1.0, 1 - math.log(3)], [1.0, 1.0]], [1.0, 0.0])
    credit = hcapo(inputs, hindsight_temperature=1.0, discount=1.0, eps=0.0)
    near(credit.details["hindsight_ratios"], [1.2, 0.8, 1.0, 1.0])
    values = [1.2, 0.8, 0.0, 0.0]
    std = math.sqrt(sum((v - 0.5) ** 2 for v in values) / 3)
    a = 1 / math.sqrt(2)
    near(turns_of(credit), [a + 0.7 / std, a + 0.3 / std, -a - 0.5 / std, -a - 0.5 / std])
    assert credit.metrics["clipped_ratio_share"] == 0.5


def test_vineppo_by_hand() -> None:
    # the advantages as they were measured; scaled by the deviation of returns 1 and 0, sqrt(1/2)
    measured = torch.tensor([0.5, 0.25, -0.5, 0.0]).double()
    inputs = hand_batch([[0.0, 0.0], [0.0, 0.0]], [1.0, 0.0], extras={"branch_advantages": measured})
    near(turns_of(vineppo(inputs)), measured.tolist())
    near(turns_of(vineppo(inputs, scale_rewards=True)), (measured / (math.sqrt(0.5) + 1e-4)).tolist())
    equal = replace(inputs, rewards=torch.ones(2).double())
    near(turns_of(vineppo(equal, scale_rewards=True)), measured.tolist())


def test_tree_grpo_by_hand() -> None:
    # trees {1, 0} and {1, 1}, group 1 0 1 1: mean 3/4, deviation 1/2. The first turn of the first tree has both leaves
    # behind it: L = 1/2: 0 within and -1/4 over 1/2; its second: +-(1/2) / sqrt(1/2) and (L - 3/4) / (1/2).
    leaves = torch.tensor([0.5, 1.0, 0.0, 1.0, 1.0]).double()
    inputs = hand_batch([[0.0, 0.0], [0.0], [0.0], [0.0]], [1.0, 0.0, 1.0, 1.0])
    inputs = replace(inputs, extras={"leaf_returns": leaves, "tree_ids": torch.tensor([0, 0, 1, 1])})
    z = 1 / math.sqrt(2)
    near(turns_of(tree_grpo(inputs, eps=0.0)), [-0.5, z + 0.5, -z - 1.5, 0.5, 0.5])
    near(turns_of(tree_grpo(inputs, scale_rewards=False)), [-0.25, 0.75, -1.25, 0.25, 0.25])


def test_neighbours() -> None:
    inputs = random_batch(2)
    rows = torch.arange(inputs.num_rows)
    after, before = following(inputs, rows, -1), preceding(inputs, rows, -1)
    for m, n in enumerate(after.tolist()):
        if n >= 0:
            assert inputs.trajectory_ids[m] == inputs.trajectory_ids[n]
            assert inputs.turn_ids[n] == inputs.turn_ids[m] + 1
            assert before[n] == m
    assert int((after < 0).sum()) == int((before < 0).sum()) == inputs.num_trajectories


@pytest.mark.parametrize("name", ["mt_grpo", "graphgpo", "g2po", "hcapo"])
def test_without_step_credit_it_is_grpo(name: str) -> None:
    inputs = random_batch(4)
    inputs = replace(inputs, turn_rewards=torch.randn(inputs.num_rows, dtype=torch.float64))
    eps = get_credit(name).options["eps"]
    credit = get_credit(name, step_weight=0.0)(inputs)
    assert torch.equal(credit.advantages, grpo(inputs, eps=eps).advantages)
    assert bool((credit.turn_weights == 1).all())


def test_a_loop_of_penalties_comes_to_an_end() -> None:
    # a state that leads to itself at a cost of 1 a turn: best values rise towards 0 and are cut off
    inputs = hand_batch([[0.0] * 4, [0.0] * 4], [0.0, 0.0], turn_rewards=-torch.ones(8).double())
    inputs = replace(inputs, rewards=-4 * torch.ones(2).double(), anchor_ids=torch.zeros(8, dtype=torch.long))
    assert bool(torch.isfinite(rewardflow(inputs).advantages).all())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hgpo", {"history": -1}, "history must be a whole number of at least 0, got -1"),
        ("hgpo", {"history": 1.5}, "history must be a whole number"),
        ("hgpo", {"alpha": -1.0}, "alpha"),
        ("graphgpo", {"goal": 0.0}, "goal"),
        ("graphgpo", {"normalization": "std"}, "normalization"),
        ("g2po", {"discount": 0.0}, "discount"),
        ("gagpo", {"gae_lambda": 1.1}, "gae_lambda"),
        ("rewardflow", {"episode_weight": -0.1}, "episode_weight"),
        ("hcapo", {"hindsight_temperature": 0.0}, "hindsight_temperature"),
        ("hcapo", {"scope": "batch"}, "scope"),
        ("hcapo", {"ratio_low": 1.1}, "ratio_low"),
        ("mt_grpo", {"step_weight": -1.0}, "step_weight"),
        ("rloo", {"outcome_discount": 0.0}, "outcome_discount"),
    ],
)
def test_options_out_of_range(name: str, options: dict[str, Any], message: str) -> None:
    inputs = replace(random_batch(0), turn_rewards=torch.zeros(random_batch(0).num_rows))
    with pytest.raises(ValueError, match=message):
        get_credit(name, **options)(inputs)
