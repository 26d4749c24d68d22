"""Learning with credit: one step by hand, the gradient against autograd, pairing by random numbers, and the script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from turncredit.credit import Credit, CreditInputs, get_credit, register_credit, registry
from turncredit.credit.lab.learning import learn, policy_gradient
from turncredit.credit.lab.synthetic import (
    TEACHERS,
    DecisionProcess,
    detour,
    exact_values,
    key_door,
    lock_chain,
    misleading_evidence,
    synthetic_batch,
)

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "compare_learning.py"


def coin() -> DecisionProcess:
    """One decision: action 0 wins, action 1 loses."""
    transitions = torch.zeros(3, 2, 3, dtype=torch.float64)
    transitions[0, 0, 1] = transitions[0, 1, 2] = 1.0
    transitions[1, :, 1] = transitions[2, :, 2] = 1.0
    zeros, whole = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.long)
    return DecisionProcess(
        "coin", transitions, torch.full((3, 2), 0.5, dtype=torch.float64), torch.tensor([0.0, 1, 0]).double(),
        torch.tensor([False, True, True]), 0, 1, whole, whole, zeros, torch.zeros(3, 2, dtype=torch.float64),
    )  # fmt: skip


def logistic(difference: float) -> float:
    return float(torch.tensor(difference, dtype=torch.float64).sigmoid())


def test_one_step_by_hand() -> None:
    """Two rollouts, one won, one lost: A = +-0.5 (Dr.GRPO). Their score functions are (1/2, -1/2) and (-1/2, 1/2), so
    the gradient is 1/2 [0.5 (1/2, -1/2) - 0.5 (-1/2, 1/2)] = (1/4, -1/4); two equal outcomes give no gradient."""
    options = {"learning_rate": 2.0, "updates": 1, "groups": 1, "group_size": 2, "features": "tabular"}
    plain = {learn(coin(), "dr_grpo", seed=seed, step="sgd", **options)[1] for seed in range(8)}
    fixed = {learn(coin(), "dr_grpo", seed=seed, step="norm", **options)[1] for seed in range(8)}
    assert sorted(plain) == pytest.approx([0.5, logistic(2 * (1 / 4 + 1 / 4))])
    assert sorted(fixed) == pytest.approx([0.5, logistic(2 * (2**-0.5 + 2**-0.5))])


def test_gradient_is_that_of_credit_weighted_log_probs() -> None:
    torch.manual_seed(0)
    features = torch.randn(13, 5, dtype=torch.float64)
    weights = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    policy = (features @ weights).softmax(-1)
    process = replace(key_door(), policy=policy.detach())
    batch = synthetic_batch(process, groups=2, group_size=4, generator=torch.Generator().manual_seed(1))
    credit = torch.randn(batch.inputs.num_rows, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for row, (trajectory, turn) in enumerate(zip(*batch.episodes.turns, strict=True)):
        state, action = batch.episodes.states[trajectory, turn], batch.episodes.actions[trajectory, turn]
        total = total + credit[row] * policy[state, action].log() / 8
    (expected,) = torch.autograd.grad(total, weights)
    torch.testing.assert_close(policy_gradient(credit, batch, features), expected)
    torch.testing.assert_close(policy_gradient(credit, batch), policy_gradient(credit, batch, torch.eye(13).double()))


def test_exact_advantages_give_the_gradient_of_success() -> None:
    """On average: 2,000 rollouts against finite differences of the value."""
    process = key_door()
    logits = process.policy.clamp(min=1e-3).log()
    process = replace(process, policy=logits.softmax(-1))
    batch = synthetic_batch(process, groups=250, group_size=8, generator=torch.Generator().manual_seed(0))
    expected = torch.zeros_like(logits)
    for state, action in torch.cartesian_prod(*(torch.arange(n) for n in logits.shape)).tolist():
        moved = logits.clone()
        moved[state, action] += 1e-5
        values = [exact_values(replace(process, policy=x.softmax(-1))).state[0, process.start] for x in (moved, logits)]
        expected[state, action] = (values[0] - values[1]) / 1e-5
    found = policy_gradient(batch.advantages, batch)
    assert float((found - expected).norm() / expected.norm()) < 0.1


@pytest.mark.parametrize("make", [key_door, lock_chain, misleading_evidence])
def test_exact_advantages_teach_more_than_grpo(make) -> None:
    area = {
        name: sum(sum(learn(make(), name, seed=seed, learning_rate=1.0, updates=12)) for seed in range(3))
        for name in ("exact", "grpo")
    }
    assert area["exact"] > area["grpo"] + 1
    assert learn(make(), "exact", seed=0, learning_rate=1.0, updates=12)[-1] > 0.85


def test_equal_seeds_repeat_and_pair_the_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"seed": 3, "learning_rate": 1.0, "updates": 4}
    first = learn(detour(), "agent_opsd", **options)
    torch.manual_seed(99)
    assert learn(detour(), get_credit("agent_opsd"), **options) == first
    assert learn(detour(), "agent_opsd", **{**options, "seed": 4}) != first
    assert len(first) == 5
    # The same uniforms in every update, whatever was learned before, and whatever the teacher says.
    assert learn(detour(), "grpo", TEACHERS["noisy"], **options) == learn(detour(), "grpo", **options)
    states = {}
    for name in ("grpo", "exact"):
        seen = states.setdefault(name, [])

        def spy(*args, generator, seen=seen, **kwargs):
            seen.append(generator.get_state().sum().item())
            return synthetic_batch(*args, generator=generator, **kwargs)

        monkeypatch.setattr("turncredit.credit.lab.learning.synthetic_batch", spy)
        learn(detour(), name, **options)
    assert states["grpo"] == states["exact"]
    assert len(set(states["grpo"])) == 4


def test_a_schedule_sees_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))

    @register_credit("of_update")
    def of_update(inputs: CreditInputs, *, step: int = -1) -> Credit:
        seen.append(step)
        return Credit(torch.zeros(inputs.response_mask.shape), torch.ones(inputs.num_rows))

    seen: list[int] = []
    curve = learn(key_door(), "of_update", seed=0, learning_rate=1.0, updates=3)
    assert seen == [0, 1, 2]
    assert len(set(curve)) == 1, "no credit, no step"


GOOD = {"seed": 0, "learning_rate": 1.0, "updates": 1}
BAD = [
    ({"process": key_door}, TypeError, "process must be a DecisionProcess, got function; call one"),
    ({"method": 3}, TypeError, "method must be a CreditMethod, a name or 'exact', got int"),
    ({"method": "agentopsd"}, ValueError, "got 'agentopsd'; did you mean 'agent_opsd'?"),
    ({"method": "exat"}, ValueError, "did you mean 'exact'?"),
    ({"teacher": "noisy"}, TypeError, "teacher must be a Teacher or None, got str"),
    ({"seed": -1}, ValueError, "seed must be a whole number from 0"),
    ({"updates": 0}, ValueError, "updates must be a whole number from 1"),
    ({"updates": 2.0}, ValueError, "updates must be a whole number from 1"),
    ({"groups": 0}, ValueError, "groups must be a whole number from 1"),
    ({"group_size": 1}, ValueError, "group_size must be a whole number from 2"),
    ({"learning_rate": 0}, ValueError, "learning_rate must be a positive number, got 0"),
    ({"learning_rate": float("nan")}, ValueError, "learning_rate must be a positive number, got nan"),
    ({"features": "deep"}, ValueError, "features must be one of 'shared', 'tabular', got 'deep'"),
    ({"step": "adam"}, ValueError, "step must be one of 'norm', 'sgd', got 'adam'"),
]


@pytest.mark.parametrize(("change", "kind", "text"), BAD)
def test_errors_name_the_argument(change: dict, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as error:
        learn(**{"process": key_door(), "method": "grpo", **GOOD, **change})
    assert str(error.value).startswith("learn: ")
    assert text in str(error.value)


def test_a_gradient_needs_credit_of_its_batch() -> None:
    batch = synthetic_batch(key_door(), groups=1, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="policy_gradient: credit must be"):
        policy_gradient(batch.advantages[:-1], batch)
    with pytest.raises(ValueError, match="1 that are not"):
        policy_gradient(batch.advantages.index_fill(0, torch.tensor([0]), torch.nan), batch)
    with pytest.raises(ValueError, match="features must be"):
        policy_gradient(batch.advantages, batch, torch.eye(3))
