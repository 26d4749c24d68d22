"""Budgets, densities, the projection that keeps them, and the residual of invalid actions."""

from __future__ import annotations

import json
import math

import pytest
import torch
from helpers.reference_align import allocate as naive_allocate
from helpers.reference_align import project, project_by_sorting
from helpers.reference_align import residual as naive_residual
from hypothesis import example, given, settings
from hypothesis import strategies as st

from turncredit.credit.align import allocate, allocation, hierarchical_density, project_density
from turncredit.credit.groups import group_relative_advantages
from turncredit.credit.invalid_action import invalid_action_residual


def one(scores: list[float], counts: list[int], spans: list[int] | None = None, **options) -> allocation.Allocation:
    """Allocate within one trajectory in float64."""
    return allocate(
        torch.tensor(scores, dtype=torch.float64),
        torch.tensor(counts),
        torch.tensor(spans or [0] * len(scores)),
        torch.zeros(len(scores), dtype=torch.long),
        **options,
    )


def test_hand_table() -> None:
    # n = 2, 1, 3 tokens, N = 6; spans {0, 1}, {2}; scores 0.5 ln 2, 0, 0 at T_c 0.5: score / T_c = ln 2, 0, 0.
    # beta: log 3 + (ln 2) / 2 and log 3 + 0 -> 3 sqrt 2 : 3 = 0.585786, 0.414214.
    # q in span 0: 2 * 2 : 1 * 1 = 0.8, 0.2; in span 1: 1.
    # x = 6 * (0.585786 * 0.8 / 2, 0.585786 * 0.2 / 1, 0.414214 / 3) = 1.405887, 0.702944, 0.828427.
    beta = math.sqrt(2) / (1 + math.sqrt(2))
    x = [6 * beta * 0.8 / 2, 6 * beta * 0.2, 6 * (1 - beta) / 3]
    out = one([0.5 * math.log(2), 0.0, 0.0], [2, 1, 3], [0, 0, 1])
    assert out.span_budget.tolist() == pytest.approx([beta, beta, 1 - beta], abs=1e-12)
    assert out.density.tolist() == pytest.approx(x, abs=1e-12)
    assert x == pytest.approx([1.405887, 0.702944, 0.828427], abs=1e-6)
    assert out.weights.tolist() == pytest.approx([0.5 + 0.5 * value for value in x], abs=1e-12)


def test_the_mean_of_a_span_counts_turns_not_tokens() -> None:
    # span 0: scores 1, 0 with 9 and 1 tokens; mean over turns 0.5 (over tokens it would be 0.9).
    out = one([1.0, 0.0, 0.0], [9, 1, 10], [0, 0, 1], credit_temperature=1.0)
    assert out.span_budget[0].item() == pytest.approx(1 / (1 + math.exp(-0.5)), abs=1e-12)


def test_projection_hand_tables() -> None:
    def solve(x, n, lower=0.0, upper=4.0):
        ids = torch.zeros(len(x), dtype=torch.long)
        return project_density(torch.tensor(x), torch.tensor(n), ids, lower=lower, upper=upper).tolist()

    # N = 3, one token each: 2.6 -> 2, and the lost 0.6 goes to the two others: 0.2 + 0.3.
    assert solve([2.6, 0.2, 0.2], [1, 1, 1], upper=2.0) == pytest.approx([2.0, 0.5, 0.5])
    # the same with 2 tokens on the second: N = 4, 2 + 2 y + z = 4 and y - z = 0.4 - 0.6.
    assert solve([2.6, 0.4, 0.6], [1, 2, 1], upper=2.0) == pytest.approx([2.0, 0.6, 0.8])
    # inside the box nothing moves
    assert solve([1.5, 0.5], [1, 1]) == pytest.approx([1.5, 0.5])
    # both bounds: [0.8, 1.2]
    assert solve([3.0, 0.0, 0.0], [1, 1, 1], 0.8, 1.2) == pytest.approx([1.2, 0.9, 0.9])
    assert solve([3.0, 0.9, 0.1, 0.0], [1, 1, 1, 1], 0.8, 1.2) == pytest.approx([1.2, 1.2, 0.8, 0.8])
    # a box of one point
    assert solve([2.0, 0.0], [1, 1], 1.0, 1.0) == pytest.approx([1.0, 1.0])
    assert solve([2.0, 0.0], [1, 1], 1.0, 4.0) == pytest.approx([1.0, 1.0])
    assert solve([2.0, 0.0], [1, 1], 0.0, 1.0) == pytest.approx([1.0, 1.0])


def test_identities() -> None:
    scores, counts = [0.3, -2.0, 5.0, 0.1], [4, 1, 7, 2]
    assert one(scores, counts, [0, 0, 1, 1], mix=0.0).weights.tolist() == [1.0] * 4
    assert one([0.7] * 4, counts, [0, 0, 1, 1]).weights.tolist() == pytest.approx([1.0] * 4, abs=1e-12)
    assert one([0.0] * 4, counts, [0, 1, 2, 2]).weights.tolist() == pytest.approx([1.0] * 4, abs=1e-12)
    uniform = one(scores, counts, [0, 0, 1, 1], credit_temperature=1e12)
    assert uniform.weights.tolist() == pytest.approx([1.0] * 4, abs=1e-10)
    assert one([5.0], [3]).weights.tolist() == pytest.approx([1.0], abs=1e-12)
    # one span of all turns has the budget 1
    assert one(scores, counts).span_budget.tolist() == pytest.approx([1.0] * 4, abs=1e-12)
    # singleton spans equal one span: beta q is the same softmax
    apart, together = one(scores, counts, [0, 1, 2, 3]), one(scores, counts)
    assert apart.weights.tolist() == pytest.approx(together.weights.tolist(), abs=1e-12)


def test_an_element_without_tokens_takes_no_part() -> None:
    with_empty = one([0.3, math.nan, -1.0], [2, 0, 3], [0, 0, 1])
    without = one([0.3, -1.0], [2, 3], [0, 1])
    assert with_empty.weights[[0, 2]].tolist() == pytest.approx(without.weights.tolist(), abs=1e-12)
    assert with_empty.weights[1].item() == 1.0
    assert one([1.0, 2.0], [0, 0]).weights.tolist() == [1.0, 1.0]


def test_golden_weights(shared_dir) -> None:
    for case in json.loads((shared_dir / "golden" / "align_credit.json").read_text()):
        data, options, expected = case["inputs"], case["options"], case["expected"]
        trajectory, turn = torch.tensor(data["trajectory"]), torch.tensor(data["turn"])
        spans = torch.zeros_like(trajectory)
        for i, pieces in enumerate(expected["spans"]):
            for j, (start, end) in enumerate(pieces):
                spans[(trajectory == i) & (turn >= start) & (turn < end)] = j
        mask = torch.tensor(data["response_mask"])
        for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-4)):
            advantages = group_relative_advantages(
                torch.tensor(data["reward"], dtype=dtype), torch.tensor(data["group"])
            )
            gaps = (torch.tensor(data["rectified_gap"], dtype=dtype) * mask).sum(-1) / mask.sum(-1)
            out = allocate(
                advantages.sign()[trajectory] * gaps,
                mask.sum(-1),
                spans,
                trajectory,
                credit_temperature=options["credit_temperature"],
                mix=options["mix"],
                density_max=options["density_max"],
            )
            wanted = torch.tensor(expected["turn_weights"], dtype=dtype)
            torch.testing.assert_close(out.weights, wanted, rtol=0, atol=tolerance)


@st.composite
def turns(draw, most=12):
    """Scores, token counts and spans of one trajectory; scores up to 1e4 in size."""
    count = draw(st.integers(1, most))
    size = draw(st.sampled_from([1e-3, 1.0, 30.0, 1e4]))
    scores = draw(st.lists(st.floats(-size, size), min_size=count, max_size=count))
    counts = draw(st.lists(st.integers(1, 512), min_size=count, max_size=count))
    steps = draw(st.lists(st.integers(0, 1), min_size=count - 1, max_size=count - 1))
    return scores, counts, [sum(steps[:k]) for k in range(count)]


BOXES = st.sampled_from([(0.0, 4.0), (0.8, 1.2), (0.0, 1.0), (1.0, 1.0), (0.5, 50.0), (1.0, 4.0)])


@settings(max_examples=150, deadline=None)
@given(turns(), st.sampled_from([0.2, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0]), BOXES)
def test_equals_the_naive_loop(drawn, temperature, mix, box) -> None:
    scores, counts, spans = drawn
    starts = [k for k in range(len(spans)) if k == 0 or spans[k] != spans[k - 1]]
    pieces = list(zip(starts, [*starts[1:], len(spans)], strict=True))
    # at scores of thousands of nats float64 itself leaves about 1e-9 of relative error in an exponential
    tolerance = 1e-6 if max(scores) - min(scores) > 100 else 1e-9
    weights, _, budgets = naive_allocate(scores, counts, pieces, temperature, mix, *box)
    out = one(scores, counts, spans, credit_temperature=temperature, mix=mix, density_min=box[0], density_max=box[1])
    assert out.weights.tolist() == pytest.approx(weights, abs=tolerance)
    assert out.span_budget.tolist() == pytest.approx(budgets, abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(st.lists(turns(), min_size=1, max_size=4), st.sampled_from([0.1, 0.5, 2.0]), BOXES, st.integers(0, 99))
@example([([1e4, -1e4], [1, 512], [0, 1])], 0.1, (0.0, 4.0), 0)
@example([([1e4] * 3, [1, 1, 512], [0, 1, 1])], 0.1, (0.8, 1.2), 0)
def test_budget_is_kept_within_bounds_in_any_order(many, temperature, box, seed) -> None:
    scores = torch.tensor([value for scores, _, _ in many for value in scores])
    counts = torch.tensor([value for _, counts, _ in many for value in counts])
    spans = torch.tensor([value for _, _, spans in many for value in spans])
    ids = torch.tensor([i for i, (scores, _, _) in enumerate(many) for _ in scores])
    options = {"credit_temperature": temperature, "density_min": box[0], "density_max": box[1]}
    copies = [tensor.clone() for tensor in (scores, counts, spans, ids)]
    out = allocate(scores, counts, spans, ids, **options)
    for tensor, copy in zip((scores, counts, spans, ids), copies, strict=True):
        assert torch.equal(tensor, copy)
    assert out.weights.dtype == torch.float32
    total = torch.zeros(len(many), dtype=torch.float64).index_add_(0, ids, counts.double())
    spent = torch.zeros(len(many), dtype=torch.float64).index_add_(0, ids, (counts * out.weights).double())
    torch.testing.assert_close(spent, total, rtol=1e-5, atol=0)
    assert bool((out.density >= box[0] - 1e-6).all())
    assert bool((out.density <= box[1] + 1e-5).all())
    assert bool((out.weights >= 0.5 + 0.5 * box[0] - 1e-6).all())
    order = torch.randperm(ids.numel(), generator=torch.Generator().manual_seed(seed))
    moved = allocate(scores[order], counts[order], spans[order], (len(many) - 1 - ids)[order], **options)
    torch.testing.assert_close(moved.weights, out.weights[order], rtol=0, atol=1e-6)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e3), st.integers(1, 99)), min_size=1, max_size=12),
    BOXES,
)
def test_projection_equals_bisection_and_is_the_closest_point(elements, box) -> None:
    x, n = [value for value, _ in elements], [count for _, count in elements]
    ids = torch.zeros(len(x), dtype=torch.long)
    y = project_density(torch.tensor(x, dtype=torch.float64), torch.tensor(n), ids, lower=box[0], upper=box[1])
    assert y.tolist() == pytest.approx(project(x, n, *box), abs=1e-9)
    assert y.tolist() == pytest.approx(project_by_sorting(x, n, *box), abs=1e-9)
    weight = torch.tensor(n, dtype=torch.float64)
    assert (weight * y).sum().item() == pytest.approx(sum(n), rel=1e-12)
    # any feasible move of credit between two elements makes it no closer
    target = torch.tensor(x, dtype=torch.float64)
    for a in range(len(x)):
        for b in range(len(x)):
            step = 1e-4
            moved = y.clone()
            moved[a] += step / n[a]
            moved[b] -= step / n[b]
            if a != b and box[0] <= moved.min() and moved.max() <= box[1]:
                assert (weight * (moved - target) ** 2).sum() >= (weight * (y - target) ** 2).sum() - 1e-6


def test_chunks_do_not_change_the_result(monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 40, (60,), generator=generator)
    ids = torch.arange(60).repeat_interleave(sizes)
    ids = ids[torch.randperm(ids.numel(), generator=generator)]
    x = torch.rand(ids.numel(), generator=generator, dtype=torch.float64) * 6
    n = torch.randint(1, 9, (ids.numel(),), generator=generator)
    whole = project_density(x, n, ids, upper=2.0)
    monkeypatch.setattr(allocation, "_CHUNK", 100)
    assert len(list(allocation._chunks(ids))) > 5
    torch.testing.assert_close(project_density(x, n, ids, upper=2.0), whole, rtol=0, atol=1e-12)


def test_no_gradient() -> None:
    scores = torch.tensor([0.1, 0.2], requires_grad=True)
    out = allocate(scores, torch.tensor([1, 2]), torch.zeros(2).long(), torch.zeros(2).long())
    assert not out.weights.requires_grad
    assert not hierarchical_density(scores, torch.tensor([1, 2]), torch.zeros(2).long(), torch.zeros(2).long())[
        0
    ].requires_grad


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"credit_temperature": 0.0}, r"credit_temperature must be a number in \(0, inf\), got 0.0"),
        ({"mix": 1.5}, r"mix must be a number in \[0, 1\], got 1.5"),
        ({"density_min": 1.1}, r"lower must be a number in \[0, 1\], got 1.1"),
        ({"density_max": 0.9}, r"upper must be a number in \[1, inf\), got 0.9"),
    ],
)
def test_bad_options_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        one([0.0, 1.0], [1, 1], **options)


def test_bad_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="scores must be finite"):
        one([math.inf, 0.0], [1, 1])
    with pytest.raises(ValueError, match=r"token_counts must be \[E\] = \[2\], got \[3\]"):
        one([0.0, 0.0], [1, 1, 1])
    ids = torch.zeros(1, dtype=torch.long)
    with pytest.raises(ValueError, match="density must be finite and token_counts >= 0"):
        project_density(torch.tensor([math.nan]), torch.ones(1), ids)
    with pytest.raises(ValueError, match="density must be finite and token_counts >= 0"):
        project_density(torch.ones(1), -torch.ones(1), ids)


def test_residual_hand_table() -> None:
    # Two rollouts of one task, rewards 1 and 0, two turns and one turn; turn 1 of the first is invalid.
    # R over turns: 1, 1, 0: mean 2/3, std sqrt(1/3) = 0.577350. Penalised: 1, 0.9, 0: mean 0.633333, std 0.550757.
    residual = invalid_action_residual(
        torch.tensor([1.0, 0.0], dtype=torch.float64),
        torch.tensor([True, False, True]),
        torch.tensor([0, 0, 1]),
        torch.tensor([3, 3]),
        normalization="paper",
    )
    plain = [(r - 2 / 3) / (math.sqrt(1 / 3) + 1e-4) for r in (1, 1, 0)]
    std = math.sqrt(sum((r - 1.9 / 3) ** 2 for r in (1, 0.9, 0)) / 2)
    fined = [(r - 1.9 / 3) / (std + 1e-4) for r in (1, 0.9, 0)]
    assert residual.tolist() == pytest.approx([b - a for a, b in zip(plain, fined, strict=True)], abs=1e-12)
    assert residual[1] < 0 < residual[0]


def test_residual_is_zero_without_invalid_actions_or_penalty() -> None:
    rewards, ids, groups = torch.tensor([1.0, 0.0]), torch.tensor([0, 0, 1]), torch.tensor([0, 0])
    assert invalid_action_residual(rewards, torch.ones(3).bool(), ids, groups).tolist() == [0.0] * 3
    mixed = torch.tensor([True, False, True])
    assert invalid_action_residual(rewards, mixed, ids, groups, penalty=0.0).tolist() == [0.0] * 3
    apart = invalid_action_residual(rewards, mixed, ids, torch.tensor([0, 1]))
    assert apart[2].item() == 0.0  # another group hears nothing of it
    assert apart[1].item() < 0 < apart[0].item()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=20))
def test_residual_equals_the_naive_loop(rows) -> None:
    trajectory = [i for i, _ in rows]
    valid = [ok for _, ok in rows]
    rewards, group = [1.0, 0.0, 10.0, 10.0], [0, 0, 4, 4]
    given = torch.tensor(rewards, dtype=torch.float64), torch.tensor(valid), torch.tensor(trajectory)
    got = invalid_action_residual(*given, torch.tensor(group), normalization="paper")
    assert got.tolist() == pytest.approx(naive_residual(rewards, valid, trajectory, group), abs=1e-9)


def test_bad_residual_arguments_are_refused() -> None:
    rewards, ids, groups = torch.tensor([1.0]), torch.tensor([0]), torch.tensor([0])
    with pytest.raises(TypeError, match="valid_actions must be bool"):
        invalid_action_residual(rewards, torch.ones(1), ids, groups)
    with pytest.raises(ValueError, match=r"valid_actions must be \[M\] = \[1\], got \[2\]"):
        invalid_action_residual(rewards, torch.ones(2).bool(), ids, groups)
    with pytest.raises(ValueError, match=r"penalty must be a number in \[0, inf\), got -0.1"):
        invalid_action_residual(rewards, torch.ones(1).bool(), ids, groups, penalty=-0.1)
