"""Every method against its plain loop, over options and random batches with holes, NaN padding and shuffled rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers import reference
from helpers.credit_cases import random_batch

from turncredit.credit import agent_opsd, gigpo, grpo, rlsd, step_opsd, tokens

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
    monkeypatch.setattr(tokens, "_CPU_BLOCK", 13)
    inputs = random_batch(3, gap=0.05)
    assert len(list(tokens.row_blocks(inputs.response_mask))) > 2
    check(grpo(inputs).advantages, reference.grpo(inputs))
    check(rlsd(inputs).advantages, reference.rlsd(inputs))
    check(step_opsd(inputs).advantages, reference.step_opsd(inputs))
    check(agent_opsd(inputs).advantages, reference.agent_opsd(inputs)[0])
    check(agent_opsd(inputs, granularity="token").advantages, reference.agent_opsd(inputs, granularity="token")[0])


@pytest.mark.parametrize("options", [{}, {"evidence_centering": "group", "evidence_scale": "group_std"}])
def test_tokens_are_revised_in_parts_of_whole_groups(monkeypatch: pytest.MonkeyPatch, options: dict) -> None:
    inputs = random_batch(4, groups=6, gap=0.3)
    whole = agent_opsd(inputs, granularity="token", **options)
    monkeypatch.setattr(tokens, "_PART", 1)
    parts = list(tokens.whole_groups(inputs))
    assert len(parts) == 6
    assert sorted(torch.cat(parts).tolist()) == list(range(inputs.num_rows))
    credit = agent_opsd(inputs, granularity="token", **options)
    torch.testing.assert_close(credit.advantages, whole.advantages, rtol=0, atol=1e-12)
    check(credit.advantages, reference.agent_opsd(inputs, granularity="token", **options)[0])
    assert credit.metrics == pytest.approx(whole.metrics)
    for name, value in whole.details.items():
        torch.testing.assert_close(credit.details[name], value, rtol=0, atol=1e-12)


def test_token_metrics_against_their_formulas() -> None:
    inputs = random_batch(6, groups=3, gap=0.3)
    inputs = replace(inputs, group_ids=torch.zeros_like(inputs.group_ids))
    inputs = replace(inputs, rewards=torch.arange(inputs.num_trajectories).double() ** 3)  # nobody is at the mean
    metrics = agent_opsd(inputs, granularity="token", lam=1.0).metrics
    advantages, _ = reference.agent_opsd(inputs, granularity="token", lam=1.0)
    plain = torch.tensor(reference.grpo(inputs), dtype=torch.float64)[inputs.response_mask]
    weights = torch.tensor(advantages, dtype=torch.float64)[inputs.response_mask] / plain
    assert metrics["weight_std"] == pytest.approx(float(weights.std(correction=0)))
    clipped = ((weights - 1).abs() > 0.2 - 1e-12).double().mean()
    assert 0 < metrics["weight_clip_share"] == pytest.approx(float(clipped))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("method", "loop"), [(rlsd, reference.rlsd), (step_opsd, reference.step_opsd)])
def test_turn_weights_are_mean_factors(method, loop, seed: int) -> None:
    inputs = random_batch(seed, gap=1.0)
    plain = reference.trajectory_advantages(reference.Batch(inputs))
    expected = []
    for row, (values, sampled) in enumerate(zip(loop(inputs), inputs.response_mask.tolist(), strict=True)):
        kept = [value for value, real in zip(values, sampled, strict=True) if real]
        advantage = plain[int(inputs.trajectory_ids[row])]
        expected.append(1.0 if advantage == 0 else sum(kept) / len(kept) / advantage)
    check(method(inputs).turn_weights, expected)
