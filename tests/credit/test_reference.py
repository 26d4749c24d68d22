"""Every method against its plain loop, over options and random batches with holes, NaN padding and shuffled rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import reference
import torch
from credit_cases import random_batch

from turncredit.credit import _masks, agent_opsd, gigpo, grpo, rlsd, step_opsd

GROUPS = [{}, {"scale_rewards": False}, {"normalization_scope": "turn"}]
AGENT = [
    {},
    {"gamma": 1.0, "lam": 1.0, "band": 0.9},
    {"gamma": 0.3, "eps": 1e-2},
    {"granularity": "token"},
    {"granularity": "token", "revision": "gap", "evidence_centering": "group"},
    {"revision": "gap"},
    {"signed": False},
    {"prior": "none"},
    {"evidence_reduction": "mean"},
    {"evidence_centering": "trajectory"},
    {"evidence_centering": "group", "evidence_scale": "group_std"},
    {"evidence_scale": 3.0},
    {"evidence_scale": "group_std"},
    {"normalization_scope": "turn", "scale_rewards": False},
]


def check(got: torch.Tensor, expected: list, atol: float = 1e-10) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=0, atol=atol)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", GROUPS)
def test_grpo(seed: int, options: dict) -> None:
    inputs = random_batch(seed)
    check(grpo(inputs, **options).advantages, reference.grpo(inputs, **options))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", AGENT)
def test_agent_opsd(seed: int, options: dict) -> None:
    inputs = random_batch(seed, gap=(0.05, 0.5, 2.0, 0.5)[seed])
    credit = agent_opsd(inputs, **options)
    advantages, weights = reference.agent_opsd(inputs, **options)
    check(credit.advantages, advantages)
    check(credit.turn_weights, weights)


def test_agent_opsd_over_long_trajectories() -> None:
    inputs = random_batch(5, groups=1, rollouts=2, turns=200, tokens=3, gap=0.1)
    assert int(inputs.turn_counts.max()) > 64
    for options in ({}, {"granularity": "token", "gamma": 0.99}):
        check(agent_opsd(inputs, **options).advantages, reference.agent_opsd(inputs, **options)[0])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", [{}, {"lam": 1.0, "band": 0.05}, {"lam": 0.3, "scale_rewards": False}])
def test_rlsd(seed: int, options: dict) -> None:
    inputs = random_batch(seed)
    check(rlsd(inputs, **options).advantages, reference.rlsd(inputs, **options))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "options",
    [{}, {"lam": 1.0, "band": 0.9}, {"step_normalization": False}, {"lam": 0.7, "normalization_scope": "turn"}],
)
def test_step_opsd(seed: int, options: dict) -> None:
    inputs = random_batch(seed, gap=3.0)
    check(step_opsd(inputs, **options).advantages, reference.step_opsd(inputs, **options))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", [{}, {"normalization": "mean_std"}, {"discount": 0.5, "step_weight": 2.0}])
@pytest.mark.parametrize("own_rewards", [False, True])
def test_gigpo(seed: int, options: dict, own_rewards: bool) -> None:
    inputs = random_batch(seed)
    if own_rewards:
        draw = torch.Generator().manual_seed(seed)
        inputs = replace(inputs, turn_rewards=torch.randn(inputs.num_rows, generator=draw, dtype=torch.float64))
    check(gigpo(inputs, **options).advantages, reference.gigpo(inputs, **options))


def test_large_batches_are_read_in_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_masks, "_CPU_BLOCK", 13)
    inputs = random_batch(3, gap=0.05)
    assert len(list(_masks.row_blocks(inputs.response_mask))) > 2
    check(grpo(inputs).advantages, reference.grpo(inputs))
    check(rlsd(inputs).advantages, reference.rlsd(inputs))
    check(step_opsd(inputs).advantages, reference.step_opsd(inputs))
    check(agent_opsd(inputs).advantages, reference.agent_opsd(inputs)[0])
    check(agent_opsd(inputs, granularity="token").advantages, reference.agent_opsd(inputs, granularity="token")[0])
