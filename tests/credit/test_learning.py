"""Learning with credit: one step by hand, the gradient against autograd, pairing by random numbers, and the script."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from turncredit.credit import Credit, CreditInputs, get_credit, grpo, register_credit, registry
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
from turncredit.credit.lab.viz import plot_learning

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


def test_the_picture_shows_every_method_and_refuses_what_cannot_be_read() -> None:
    pytest.importorskip("matplotlib")
    curve = [(0.3, math.nan), (0.5, 0.1)]
    figure = plot_learning({"grpo": curve, "mine": curve}, {"mine": (0.02, 0.01), "grpo": (0.0, 0.0)}, updates=[0, 4])
    left, right = figure.axes
    assert [line.get_label() for line in left.lines] == ["grpo", "mine"]
    assert [text.get_text() for text in right.get_yticklabels()] == ["grpo", "mine"]
    wide = plot_learning({"grpo": [(0.3, 3.0), (0.5, 9.0)]}, {"grpo": (0.0, 0.0)}, updates=[0, 4])
    assert wide.axes[0].get_ylim() == (-0.02, 1.02), "chances, however few the seeds"
    with pytest.raises(ValueError, match=r"one point per update \(3\), got 2 for 'grpo'"):
        plot_learning({"grpo": curve}, {"grpo": (0.0, 0.0)}, updates=[0, 4, 8])
    with pytest.raises(ValueError, match="1 to 8 methods and gains at least one, got 9 and 1"):
        plot_learning({str(name): curve for name in range(9)}, {"grpo": (0.0, 0.0)}, updates=[0, 4])


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


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example as a module, with a method of one's own that is GRPO and one that always fails."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))

    @register_credit("mine")
    def mine(inputs: CreditInputs) -> Credit:
        return grpo(inputs)

    @register_credit("broken")
    def broken(inputs: CreditInputs) -> Credit:
        raise ValueError("broken: size must be 0, got 1; give up")

    return importlib.import_module("compare_learning")


def small(path: Path, *more: str) -> list[str]:
    fixed = "--processes key_door --updates 4 --groups 1 --workers 1 --output"
    return [*fixed.split(), str(path), "--methods", "mine", "agent_opsd", *more]


def test_the_script_sweeps_compares_and_goes_on_where_it_was(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "SHIPPED", tmp_path / "none.json")
    monkeypatch.setattr(script, "SWEEP_SEEDS", (0, 1, 2))
    with pytest.raises(SystemExit, match="must have a swept learning rate, got 'exact'"):
        script.main(small(tmp_path))
    script.main(small(tmp_path, "broken", "--sweep"))
    assert "Left out: broken: broken: size must be 0, got 1" in capsys.readouterr().out
    chosen = json.loads((tmp_path / "learning_rates.json").read_text())
    assert set(chosen["rates"]) == {"exact", "grpo", "mine", "agent_opsd"}
    assert chosen["rates"]["mine"] == chosen["rates"]["grpo"]
    for name, tries in chosen["auc_and_score"].items():
        assert max(tries, key=lambda rate: tries[rate][1]) == f"{chosen['rates'][name]:g}"

    script.main(small(tmp_path, "--seeds", "2", "--teachers", "noisy"))
    tables = (tmp_path / "learning_tables.md").read_text(encoding="utf-8")
    mine, theirs = (re.search(rf"^\| {name} (.*)$", tables, re.M) for name in ("mine", "grpo"))
    assert mine is not None
    assert theirs is not None
    assert mine[1] == theirs[1], "the same credit, the same numbers"
    assert "| +0.000 ±0.000 | 0% |" in mine[1]
    assert re.search(r"\| agent_opsd \| [+-]0\.\d{3} ±0\.\d{3}[*!]? \| [+-]0\.\d{3} ±0\.\d{3}[*!]? \|$", tables, re.M)
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "learning.png").read_bytes()[:4] == b"\x89PNG"

    data = tmp_path / "learning.jsonl"
    whole = data.read_text()
    head, *lines = whole.splitlines(keepends=True)
    data.write_text(head + "".join(lines[:3]) + lines[3][:-9])
    ran: list[Any] = []
    run_cell = script.run_cell
    monkeypatch.setattr(script, "run_cell", lambda job: (ran.append(job), run_cell(job))[1])
    script.main(small(tmp_path, "--seeds", "2", "--teachers", "noisy"))
    assert len(ran) == len(lines) - 3
    assert data.read_text() == whole
    assert (tmp_path / "learning_tables.md").read_text(encoding="utf-8") == tables

    ran.clear()
    script.main(small(tmp_path, "--seeds", "2", "--teachers", "noisy", "--redo", "agent_opsd"))
    assert {job[0].method for job in ran} == {"agent_opsd"}
    assert sorted(data.read_text().splitlines()) == sorted(whole.splitlines())
    rates = {"exact": 2.0, "grpo": 2.0, "mine": 2.0, "agent_opsd": 0.5}
    (tmp_path / "learning_rates.json").write_text(json.dumps({"rates": rates}))
    script.main(small(tmp_path, "--seeds", "1"))
    other = (tmp_path / "learning_tables.md").read_text(encoding="utf-8")
    assert "AUC minus GRPO, all at rate 2 |" in other
    row = re.search(r"^\| agent_opsd \| 0\.5 \| (.*) \|$", other, re.M)
    assert row is not None
    assert row[1].split(" | ")[1] != row[1].split(" | ")[5], "its own rate, and that of GRPO"
    with pytest.raises(SystemExit, match=r"must hold runs with .*'updates': 5.*give another --output"):
        script.main(small(tmp_path, "--updates", "5"))
    with script.alone(tmp_path), pytest.raises(SystemExit, match="another run is at work in"):
        script.main(small(tmp_path))
    with pytest.raises(ValueError, match="did you mean 'agent_opsd'"):
        script.main(small(tmp_path, "agentopsd"))
    with pytest.raises(SystemExit):
        script.main(small(tmp_path, "--seeds", "0"))


def test_the_rule_prefers_rates_that_do_not_collapse(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rate 2 has the larger mean, 0.8 of (0.95, 0.95, 0.5), less its deviation 0.26 it loses to 0.75 three times."""
    areas = {0.5: (0.6,) * 3, 1.0: (0.75,) * 3, 2.0: (0.95, 0.95, 0.5), 4.0: (0.75,) * 3}

    def run_cell(job: Any) -> Any:
        return job[0], {"auc": areas[job[0].rate][job[0].seed], "final": 0.0, "curve": []}

    monkeypatch.setattr(script, "run_cell", run_cell)
    monkeypatch.setattr(script, "SHIPPED", tmp_path / "none.json")
    monkeypatch.setattr(script, "SWEEP_SEEDS", (0, 1, 2))
    script.main(small(tmp_path, "--sweep"))
    chosen = json.loads((tmp_path / "learning_rates.json").read_text())
    assert chosen["rates"] == dict.fromkeys(("exact", "grpo", "mine", "agent_opsd"), 1.0)
    assert chosen["auc_and_score"]["grpo"]["2"] == pytest.approx([0.8, 0.8 - 0.2598], abs=1e-4)


@pytest.mark.slow
def test_the_script_runs_with_two_processes_and_the_shipped_rates(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import compare_credit\n")
    fixed = "--import own --methods plain_gap --processes key_door --seeds 2 --updates 2 --output out"
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *fixed.split()], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "| plain_gap |" in done.stdout
    assert len((tmp_path / "out" / "learning.jsonl").read_text().splitlines()) > 6
