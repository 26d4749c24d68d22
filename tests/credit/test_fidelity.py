"""Measures of fidelity on hand-made credit, against a naive loop, and their identities."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.credit import Credit, CreditInputs, get_credit
from turncredit.credit.lab.fidelity import (
    MEASURES,
    confidence_interval,
    credit_fidelity,
    gradient_cosine,
    paired_interval,
    turn_credit,
)
from turncredit.credit.lab.synthetic import (
    PROCESSES,
    SyntheticBatch,
    exact_gradient,
    exact_values,
    key_door,
    synthetic_batch,
)

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "compare_credit.py")


def batch_of(lengths: list[int], rewards: list[float], groups: list[int], tokens: list[int] | None = None):
    trajectory = torch.tensor([i for i, length in enumerate(lengths) for _ in range(length)])
    turn = torch.tensor([k for length in lengths for k in range(length)])
    tokens = tokens or [1] * turn.numel()
    mask = torch.arange(max(tokens)) < torch.tensor(tokens)[:, None]
    return CreditInputs(
        mask, trajectory, turn, torch.tensor(groups), torch.tensor(rewards), torch.tensor(rewards), -1.0 * mask
    )


# One won and one lost trajectory of four and three turns.
TRUTH = torch.tensor([0.0, 0.4, 0.1, 0.0, 0.2, -0.5, 0.005], dtype=torch.float64)


def two() -> CreditInputs:
    return batch_of([4, 3], [1.0, 0.0], [0, 0])


def test_measures_by_hand() -> None:
    credit = torch.tensor([1.0, 2.0, 0.5, 1.0, -1.0, -2.0, -3.0])
    found = credit_fidelity(credit, two(), TRUTH)
    # Won: ranks of credit (1.5, 3, 0, 1.5) and truth (0.5, 3, 2, 0.5), centred on 1.5:
    #   (0, 1.5, -1.5, 0) . (-1, 1.5, 0.5, -1) = 2.25 - 0.75 = 1.5; norms^2 4.5 and 4.5: rho = 1/3.
    # Lost: ranks (2, 1, 0) and (2, 0, 1): (1, 0, -1) . (1, -1, 0) = 1 over 2: rho = 1/2.
    assert found.rank_correlation == pytest.approx((1 / 3 + 1 / 2) / 2)
    # Won: 5 pairs differ: right 0-1, 1-2, 1-3; wrong 0-2, 2-3. Lost: 0-1 and 0-2 right, 1-2 not.
    assert found.pair_accuracy == pytest.approx((3 / 5 + 2 / 3) / 2)
    # Pivotal for the outcome: turns 1 and 2 when won (0.1 counts); turn 1 when lost.
    # Won: top two of (1, 2, 0.5, 1): turn 1 surely, then a coin between turns 0 and 3: recall 1/2.
    # Lost, aligned credit (1, 2, 3): the top one is turn 2: recall 0.
    assert found.pivotal_recall == pytest.approx(0.25)
    assert found.pivotal_chance == pytest.approx((2 / 4 + 1 / 3) / 2)
    assert found.redundant_share == pytest.approx((2 / 4.5 + 3 / 6) / 2)
    # Pivotal either way: turns 1, 2 (right sign); turns 0 (good, credit negative: wrong) and 1 (right).
    assert found.sign_errors == pytest.approx((0 + 0.5) / 2)
    # Mean credit 1.125 and -2. Turn 1 above: right; turn 2 below: wrong. Turn 0 above: right; turn 1 on it: half.
    assert found.direction_errors == pytest.approx((0.5 + 0.25) / 2)
    assert found.trajectories == 2


def test_redundant_share_and_mean_weigh_tokens() -> None:
    inputs = batch_of([2, 1], [1.0, 0.0], [0, 0], tokens=[3, 1, 1])
    found = credit_fidelity(torch.tensor([1.0, 2.0, -1.0]), inputs, torch.tensor([0.0, 0.5, -0.5]))
    # Won: 3 x 1 redundant, 1 x 2 not: 3/5. Lost: 0. Means 1.25 and -1: turn 1 above (right), the single turn on it.
    assert found.redundant_share == pytest.approx((3 / 5 + 0) / 2)
    assert found.direction_errors == pytest.approx((0 + 0.5) / 2)


def test_equal_credit_is_chance_everywhere() -> None:
    inputs = batch_of([4, 3], [1.0, 0.0], [0, 0])
    sign = torch.where(inputs.trajectory_ids == 0, 0.7, -0.7)
    found = credit_fidelity(sign, inputs, TRUTH)
    assert found.rank_correlation == 0
    assert found.pair_accuracy == 0.5
    assert found.pivotal_recall == found.pivotal_chance
    assert found.direction_errors == 0.5


def test_exact_credit_is_perfect() -> None:
    batch = synthetic_batch(key_door(), groups=8, generator=torch.Generator().manual_seed(0))
    clean = torch.where(batch.advantages.abs() < 0.01, 0.0, batch.advantages)
    found = credit_fidelity(clean, batch.inputs, batch.advantages)
    assert found.rank_correlation == pytest.approx(1)
    assert (found.pair_accuracy, found.pivotal_recall) == (1, 1)
    assert (found.redundant_share, found.sign_errors) == (0, 0)
    wrong = credit_fidelity(-clean, batch.inputs, batch.advantages)
    assert wrong.rank_correlation == pytest.approx(-1)
    assert (wrong.pair_accuracy, wrong.sign_errors) == (0, 1)


def test_ranking_credit_is_ranking_outcome_aligned_weights() -> None:
    scipy = pytest.importorskip("scipy.stats")
    inputs, weights = two(), torch.tensor([1.1, 0.9, 1.2, 1.0, 0.8, 1.15, 1.05])
    sign = torch.where(inputs.trajectory_ids == 0, 1.0, -1.0)
    truth = torch.where(TRUTH.abs() < 0.01, 0.0, TRUTH)
    expected = [scipy.spearmanr(weights[rows], (sign * truth)[rows]).statistic for rows in (slice(0, 4), slice(4, 7))]
    found = credit_fidelity(sign * 0.5 * weights, inputs, TRUTH)
    assert found.rank_correlation == pytest.approx(sum(expected) / 2)


def naive(credit: list[float], truth: list[float], sign: int) -> tuple[float, float]:
    """Pair accuracy and recall of one trajectory, by enumeration."""
    n = range(len(credit))
    pairs = [(i, j) for i in n for j in n if truth[i] > truth[j]]
    right = sum(1.0 if credit[i] > credit[j] else 0.5 if credit[i] == credit[j] else 0.0 for i, j in pairs)
    wanted = [i for i in n if truth[i] * sign >= 0.1]
    hits = 0.0
    for i in wanted:
        above = sum(credit[j] * sign > credit[i] * sign for j in n)
        equal = sum(credit[j] == credit[i] for j in n)
        hits += min(max((len(wanted) - above) / equal, 0.0), 1.0)
    return (right / len(pairs) if pairs else math.nan), (hits / len(wanted) if wanted else math.nan)


VALUES = st.sampled_from([-0.5, -0.25, 0.0, 0.25, 0.5, 1.0])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=7), st.lists(st.tuples(VALUES, VALUES), min_size=1))
def test_a_naive_loop_agrees_and_row_order_does_not_matter(first, second) -> None:
    rows = [*first, *second[:5]]
    inputs = batch_of([len(first), len(second[:5])], [1.0, 0.0], [3, 3])
    credit, truth = torch.tensor(rows, dtype=torch.float64).T
    found = credit_fidelity(credit, inputs, truth)
    parts = [naive(*zip(*part, strict=True), sign) for part, sign in ((first, 1), (second[:5], -1))]  # type: ignore
    for value, column in zip((found.pair_accuracy, found.pivotal_recall), zip(*parts, strict=True), strict=True):
        known = [x for x in column if not math.isnan(x)]
        assert value == pytest.approx(sum(known) / len(known)) if known else math.isnan(value)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    moved = replace(
        inputs,
        **{name: getattr(inputs, name)[order] for name in
           ("response_mask", "trajectory_ids", "turn_ids", "student_logprobs")},
    )  # fmt: skip
    again = credit_fidelity(credit[order], moved, truth[order])
    assert repr(again) == repr(found)


def test_groups_without_both_outcomes_are_left_out() -> None:
    inputs = batch_of([2, 2, 2, 2], [1.0, 1.0, 1.0, 0.0], [5, 5, 2, 2])
    truth = torch.tensor([0.5, 0, 0.5, 0, 0.5, 0, -0.5, 0], dtype=torch.float64)
    credit = torch.tensor([0.0, 9.0, 0.0, 9.0, 1.0, 0.0, -1.0, 0.0])
    found = credit_fidelity(credit, inputs, truth)
    assert found.trajectories == 2
    assert found.pair_accuracy == 1
    nothing = credit_fidelity(credit[:4], batch_of([2, 2], [1.0, 1.0], [5, 5]), truth[:4])
    assert nothing.trajectories == 0
    assert math.isnan(nothing.rank_correlation)


def test_rounding_in_credit_is_a_tie() -> None:
    inputs = two()
    jitter = torch.tensor([1e-7, -1e-7, 2e-7, 0, 1e-7, 0, -1e-7], dtype=torch.float64)
    sign = torch.where(inputs.trajectory_ids == 0, 0.7, -0.7)
    assert credit_fidelity(sign + jitter, inputs, TRUTH).rank_correlation == 0


def test_turn_credit_is_the_mean_over_sampled_tokens() -> None:
    inputs = batch_of([1, 1], [1.0, 0.0], [0, 0], tokens=[3, 1])
    credit = Credit(torch.tensor([[1.0, 2.0, 6.0], [-1.0, 50.0, 50.0]]), torch.ones(2))
    assert turn_credit(credit, inputs).tolist() == [3.0, -1.0]


def batch_at(seed: int, *, groups: int = 8, name: str = "key_door") -> SyntheticBatch:
    return synthetic_batch(PROCESSES[name](), groups=groups, generator=torch.Generator().manual_seed(seed))


def naive_cosine(credit: torch.Tensor, batch: SyntheticBatch) -> float:
    """Turn by turn, against a finite difference of the start's value in every logit."""
    process = batch.episodes.process
    logits = process.policy.log()
    found, exact = torch.zeros(2, *logits.shape, dtype=torch.float64)
    for row, (trajectory, turn) in enumerate(zip(*(index.tolist() for index in batch.episodes.turns), strict=True)):
        state, action = int(batch.episodes.states[trajectory, turn]), int(batch.episodes.actions[trajectory, turn])
        for other in range(logits.shape[1]):
            found[state, other] += float(credit[row]) * (float(other == action) - float(process.policy[state, other]))
    for state in range(logits.shape[0]):
        for action in range(logits.shape[1]):
            values = []
            for step in (1e-5, -1e-5):
                moved = logits.clone()
                moved[state, action] += step
                values.append(exact_values(replace(process, policy=moved.softmax(-1))).state[0, process.start])
            exact[state, action] = (values[0] - values[1]) / 2e-5
    torch.testing.assert_close(exact_gradient(process), exact, rtol=0, atol=1e-8)
    return float((found * exact).sum() / found.norm() / exact.norm())


@pytest.mark.parametrize("name", ["key_door", "look_alike"])
def test_gradient_cosine_is_that_of_finite_differences_whatever_the_scale(name: str) -> None:
    batch = batch_at(3, groups=2, name=name)
    credit = get_credit("agent_opsd")(batch.inputs)
    found = gradient_cosine(credit, batch)
    assert found == pytest.approx(naive_cosine(turn_credit(credit, batch.inputs), batch), abs=1e-6)
    assert gradient_cosine(turn_credit(credit, batch.inputs), batch) == found
    scaled = replace(credit, advantages=17.0 * credit.advantages)
    assert gradient_cosine(scaled, batch) == pytest.approx(found, abs=1e-6)
    assert gradient_cosine(-turn_credit(credit, batch.inputs), batch) == -found


def test_exact_advantages_point_along_the_exact_gradient_and_the_outcome_less() -> None:
    batches = [batch_at(seed, groups=2) for seed in range(10)]
    exact = [gradient_cosine(batch.advantages, batch) for batch in batches]
    grpo = [gradient_cosine(get_credit("grpo")(batch.inputs), batch) for batch in batches]
    assert max(exact) < 0.995
    assert sum(grpo) / 10 < sum(exact) / 10 - 0.2
    large = batch_at(0, groups=1000)
    assert gradient_cosine(large.advantages, large) > 0.999
    # The measure sees credit that pairs of turns do not: the outcome, added to every turn of its trajectory alike.
    batch = batches[0]
    more = batch.advantages + batch.inputs.rewards[batch.inputs.trajectory_ids]
    pairs = [credit_fidelity(credit, batch.inputs, batch.advantages) for credit in (more, batch.advantages)]
    assert pairs[0].pair_accuracy == pytest.approx(pairs[1].pair_accuracy, abs=0.01)
    assert gradient_cosine(more, batch) < exact[0] - 0.1


def test_gradient_cosine_is_nan_where_nothing_was_learnt_and_names_bad_credit() -> None:
    batch = next(b for b in (batch_at(seed, groups=1) for seed in range(999)) if b.inputs.rewards.unique().numel() == 1)
    assert math.isnan(gradient_cosine(get_credit("grpo")(batch.inputs), batch))
    assert math.isnan(gradient_cosine(1e-13 * batch.advantages, batch)), "rounding is nothing"
    assert gradient_cosine(batch.advantages, batch) > 0
    with pytest.raises(ValueError, match=r"gradient_cosine: credit must be \[M\] = "):
        gradient_cosine(torch.zeros(3), batch)
    with pytest.raises(ValueError, match="gradient_cosine: credit must be finite, got nan"):
        gradient_cosine(batch.advantages * torch.nan, batch)


def test_intervals_by_hand_and_against_scipy() -> None:
    # 1, 2, 3: mean 2, s = 1, t(2) = 4.3027: 4.3027 / sqrt(3).
    mean, half = confidence_interval([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(4.3027 / math.sqrt(3)))
    assert paired_interval([1.0, 2.0, 4.0], [0.0, 1.0, 3.0]) == (1.0, 0.0)
    assert math.isnan(confidence_interval([3.0])[1])
    scipy = pytest.importorskip("scipy.stats")
    for count in (2, 5, 12, 31, 32, 60, 200):
        values = [float(index % 7) for index in range(count)]
        spread = torch.tensor(values, dtype=torch.float64).std().item()
        expected = scipy.t.ppf(0.975, count - 1) * spread / math.sqrt(count)
        assert confidence_interval(values)[1] == pytest.approx(expected, rel=1e-4)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"credit_fidelity: credit must be \[M\] = \[7\], got \[3\]"):
        credit_fidelity(torch.zeros(3), two(), TRUTH)
    with pytest.raises(ValueError, match=r"exact_advantages must be \[M\]"):
        credit_fidelity(torch.zeros(7), two(), TRUTH[:2])
    with pytest.raises(ValueError, match="credit must be finite, got nan"):
        credit_fidelity(torch.full((7,), torch.nan), two(), TRUTH)
    with pytest.raises(ValueError, match="credit_fidelity: pivotal must be a number in"):
        credit_fidelity(torch.zeros(7), two(), TRUTH, pivotal=0.001)
    with pytest.raises(ValueError, match=r"turn_credit: credit.advantages must have shape \[7, 1\]"):
        turn_credit(Credit(torch.zeros(2, 2), torch.ones(2)), two())
    with pytest.raises(ValueError, match="confidence_interval: values must hold at least one"):
        confidence_interval([])
    with pytest.raises(ValueError, match=r"paired_interval: baseline must have as many seeds as values \(1\), got 2"):
        paired_interval([1.0], [1.0, 2.0])


def test_the_example_compares_methods_and_writes_tables_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "mine.py").write_text(
        "from turncredit.credit import register_credit, get_credit\n"
        "@register_credit('mine')\n"
        "def mine(inputs, *, size=1.0):\n"
        "    return get_credit('dr_grpo')(inputs)\n"
        "@register_credit('broken')\n"
        "def broken(inputs, *, size=1.0):\n"
        "    raise ValueError('broken: size must be 0, got 1')\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    (tmp_path / "page.md").write_text("# Page\n\nText.\n\n| method | old |\n| --- |\n| x |\n\nAfter.\n")
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--seeds", "2", "--first-seed", "7", "--groups", "2", "--workers", "1",
         "--import", "mine", "--methods", "mine", "broken", "agent_opsd", "gigpo", "posterior_anchors",
         "--output", str(tmp_path), "--page", str(tmp_path / "page.md")],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    tables = (tmp_path / "fidelity_tables.md").read_text(encoding="utf-8")
    assert "Seeds 7, 8; 2 groups of 8 rollouts" in tables
    block = tables.split("## pair_accuracy by teacher")[1].split("## gradient")[0]
    names = [line.split(" | ")[0].removeprefix("| ") for line in block.splitlines() if line.startswith("| ")]
    assert names == [
        "method", "---", "**outcome only**", "grpo", "**anchors**", "gigpo", "posterior_anchors", "**AgentOPSD**",
        "agent_opsd", "**yours**", "mine", "**the truth**", "exact advantages",
    ]  # fmt: skip
    assert "| mine |" + " 0.50 ±0.00 |" * 8 in block
    assert block.splitlines()[2].count("|") == 10
    assert "Left out: broken: broken: size must be 0, got 1" in tables
    assert "## rank_correlation by teacher" in tables
    assert tables.count("| agent_opsd |") == 1 + (len(MEASURES) + 1) + 2 + 2
    assert "## sign_errors by teacher, mean over processes\n\n| method |" in tables
    assert "## look_alike: " in tables
    assert "## rarely_repeated: " in tables
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.startswith("# Page\n\nText.\n\n| method | calibrated | noisy |")
    assert page.endswith(" |\n\nAfter.\n")
    assert "| old |" not in page
    assert page.count("| agent_opsd |") == page.count("| mine |") == 1
    assert (tmp_path / "fidelity.png").read_bytes()[:4] == b"\x89PNG"


def test_the_snippet_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "fidelity.md").read_text(encoding="utf-8")
    exec(page.split("```python\n")[1].split("```")[0], {})
    printed = capsys.readouterr().out
    assert printed.startswith("Fidelity(rank_correlation=0.")
    assert "nan" not in printed
