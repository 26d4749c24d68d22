"""Correspondence profiles, boundary threshold and the cutting of trajectories into spans."""

from __future__ import annotations

import json
import math

import pytest
import torch
from helpers.align_cases import correspondence_of, random_case
from helpers.reference_align import boundary_threshold as naive_threshold
from helpers.reference_align import divergence as naive_divergence
from helpers.reference_align import eligibility, segment
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.credit.align import (
    Divergence,
    boundary_threshold,
    check_spans,
    correspondence_from_similarity,
    dense_profiles,
    profile_divergence,
    random_spans,
    segment_spans,
)


def cut(values: list[float], threshold: float, *, defined: list[bool] | None = None, **lengths) -> list[int]:
    """Span of each turn of one trajectory."""
    count = len(values)
    return segment_spans(
        torch.tensor(values, dtype=torch.float64),
        torch.tensor(defined or [False] + [True] * (count - 1)),
        torch.zeros(count, dtype=torch.long),
        torch.arange(count),
        threshold=threshold,
        **lengths,
    ).tolist()


def two_turns(similarity: list[list[float]], **options) -> Divergence:
    """Rows 0, 1 are the turns of trajectory 0; row 2 and row 3 are single turns of two siblings."""
    dense = torch.zeros(4, 4, dtype=torch.float64)
    dense[2:, :2] = torch.tensor(similarity, dtype=torch.float64)
    valid = options.pop("source_valid", [True] * 4)
    protocols = options.pop("protocols", None)
    built = correspondence_from_similarity(
        dense,
        torch.tensor([0, 0, 1, 2]),
        torch.tensor([0, 1, 0, 0]),
        torch.tensor([0, 0, 0]),
        torch.tensor(valid),
        torch.ones(4, dtype=torch.bool),
        protocols=protocols,
    )
    return profile_divergence(built, 4, **options)


def test_divergence_hand_table() -> None:
    # T_prof 0.1: the profile of turn 0 is softmax(9, 8) = (0.731059, 0.268941), of turn 1 softmax(8, 9), its mirror.
    p, q = 1 / (1 + math.exp(-1)), 1 - 1 / (1 + math.exp(-1))
    expected = (p * math.log(p / 0.5) + q * math.log(q / 0.5)) / math.log(2)  # the middle is (1/2, 1/2)
    out = two_turns([[0.9, 0.8], [0.8, 0.9]])
    assert out.values.tolist() == pytest.approx([0.0, expected, 0.0, 0.0], abs=1e-12)
    assert out.defined.tolist() == [False, True, False, False]
    assert out.profile_valid.tolist()[:2] == [True, True]
    opposite = two_turns([[1.0, -1.0], [-1.0, 1.0]], similarity_threshold=0.5)
    assert opposite.values[1].item() == pytest.approx(1.0, abs=1e-6)
    assert two_turns([[0.9, 0.9], [0.8, 0.8]]).values[1].item() == pytest.approx(0.0, abs=1e-12)


def test_further_distances() -> None:
    p, q = 1 / (1 + math.exp(-1)), 1 - 1 / (1 + math.exp(-1))
    mirrored = [[0.9, 0.8], [0.8, 0.9]]
    assert two_turns(mirrored, distance="entropy").values[1].item() == pytest.approx(0.0, abs=1e-12)
    cosine = 1 - 2 * p * q / (p * p + q * q)
    assert two_turns(mirrored, distance="cosine").values[1].item() == pytest.approx(cosine, abs=1e-12)
    flat = [[0.9, 0.9], [0.8, 0.9]]
    entropy = -(p * math.log(p) + q * math.log(q))
    assert two_turns(flat, distance="entropy").values[1].item() == pytest.approx(1 - entropy / math.log(2), abs=1e-12)


def test_divergence_needs_valid_profiles_and_one_eligible_set() -> None:
    assert not two_turns([[0.79, 0.9], [0.7, 0.9]]).defined.any()  # turn 0 reaches no source
    assert not two_turns([[0.9, 0.79], [0.7, 0.7]]).defined.any()  # turn 1 reaches none
    assert two_turns([[0.80, 0.9], [0.7, 0.9]]).defined[1]
    assert two_turns([[0.9, 0.9], [0.7, 0.9]], source_valid=[True, True, True, False]).defined[1]
    other = two_turns([[0.9, 0.9], [0.9, 0.9]], protocols=torch.tensor([0, 1, 0, 1]))
    assert not other.defined.any()  # turn 0 may use row 2 only, turn 1 row 3 only
    assert other.profile_valid[:2].all()


@pytest.mark.parametrize(("second", "expected"), [((0, 1), True), ((0, 2), False), ((1, 1), False)])
def test_divergence_compares_neighbouring_turns_of_one_trajectory_only(second, expected) -> None:
    # Row 1 follows row 0 = (trajectory 0, turn 0) in the block, whether or not it follows it in the trajectory.
    built = correspondence_from_similarity(
        torch.full((3, 3), 0.9),
        torch.tensor([0, second[0], 2]),
        torch.tensor([0, second[1], 0]),
        torch.zeros(3, dtype=torch.long),
        torch.tensor([False, False, True]),
        torch.ones(3, dtype=torch.bool),
    )
    assert profile_divergence(built, 3).defined.tolist() == [False, expected, False]


def test_profiles_are_dense_and_sum_to_one() -> None:
    for block in correspondence_of(random_case(5)).blocks:
        profiles = dense_profiles(block)
        total = profiles.sum(dim=0)
        assert torch.allclose(total[block.eligible.any(dim=0)], torch.ones(1, dtype=torch.float64))
        assert bool((profiles[block.eligible] > 0).all())
        assert bool((profiles[~block.eligible] == 0).all())


def test_threshold_hand_table() -> None:
    values = torch.tensor([0.05, 0.02, 0.03, 0.06])
    # sorted 0.02 0.03 0.05 0.06; place 0.8 * 3 = 2.4 -> 0.05 + 0.4 * 0.01
    assert boundary_threshold(values) == pytest.approx(0.054, abs=1e-8)
    assert boundary_threshold(values, quantile=0.0) == pytest.approx(0.02, abs=1e-8)
    assert boundary_threshold(values, quantile=1.0) == pytest.approx(0.06, abs=1e-8)
    assert boundary_threshold(values * 10) == 0.10
    assert boundary_threshold(values / 100) == 0.01
    assert boundary_threshold(values[:0]) == 0.10
    assert boundary_threshold(values[:1]) == pytest.approx(0.05, abs=1e-8)


def test_step_one_hand_tables() -> None:
    #  turn      0    1    2    3    4    5
    values = [0.0, 0.9, 0.5, 0.6, 0.2, 0.7]
    # L_min 2: 0.9 would leave one turn on its left, 0.7 one on its right; 0.6 at turn 3; 0.5 is then too close.
    assert cut(values, 0.3) == [0, 0, 0, 1, 1, 1]
    assert cut(values, 0.3, min_span=1) == [0, 1, 2, 3, 3, 4]
    assert cut(values, 0.5, min_span=1) == [0, 1, 1, 2, 2, 3]  # strictly above
    assert cut(values, 0.3, min_span=3, max_span=5) == [0, 0, 0, 1, 1, 1]
    assert cut(values, 0.1, min_span=2) == [0, 0, 0, 1, 1, 1]
    # the strongest wins over the first
    assert cut([0.0, 0.0, 0.5, 0.6, 0.0, 0.0], 0.3) == [0, 0, 0, 1, 1, 1]
    assert cut([0.0, 0.0, 0.6, 0.6, 0.0, 0.0], 0.3) == [0, 0, 1, 1, 1, 1]  # tie: earlier
    # turn 4 would leave turn 5 alone once 6 is a boundary
    assert cut([0, 0, 0, 0, 0.5, 0.4, 0.6, 0], 0.3) == [0, 0, 0, 0, 1, 1, 2, 2]
    # undefined turns never count
    assert cut([0.0, 0.0, 0.9, 0.0], 0.3, defined=[False, True, False, True]) == [0, 0, 0, 0]


def test_step_two_hand_tables() -> None:
    nothing = [0.0] * 9
    # 9 turns > 8: feasible 2 .. 7; nearest to the middle 4.5 are 4 and 5; the earlier.
    assert cut(nothing, 0.5) == [0] * 4 + [1] * 5
    # a defined D >= 0.01 attracts the cut although it is below the threshold
    assert cut([0, 0, 0, 0, 0, 0, 0, 0.01, 0], 0.5) == [0] * 7 + [1] * 2
    assert cut([0, 0, 0, 0, 0, 0, 0, 0.009, 0], 0.5) == [0] * 4 + [1] * 5
    assert cut([0, 0, 0, 0, 0, 0, 0, 0, 0.4], 0.5) == [0] * 4 + [1] * 5  # turn 8 would leave one turn
    assert cut([0, 0, 0.2, 0, 0, 0, 0.3, 0, 0], 0.5) == [0] * 6 + [1] * 3
    assert cut([0, 0, 0.3, 0, 0, 0, 0.3, 0, 0], 0.5) == [0] * 2 + [1] * 7
    # 17 turns, all undefined: 8 | 9 -> 8 | 4 | 5, leftmost first
    assert cut([0.0] * 17, 0.5, defined=[False] * 17) == [0] * 8 + [1] * 4 + [2] * 5
    # exactly 8 turns stay one span
    assert cut([0.0] * 8, 0.5) == [0] * 8
    assert cut([0.0] * 5, 0.5, min_span=1, max_span=1) == [0, 1, 2, 3, 4]


def test_short_trajectories_are_one_span() -> None:
    assert cut([0.0], 0.1) == [0]
    assert cut([0.0, 0.9], 0.1, min_span=3, max_span=5) == [0, 0]
    assert cut([0.0, 0.9, 0.9], 0.1) == [0, 0, 0]


def test_golden_divergence_and_spans(shared_dir) -> None:
    cases = json.loads((shared_dir / "golden" / "align_credit.json").read_text())
    assert len(cases) == 13
    for case in cases:
        data, options, expected = case["inputs"], case["options"], case["expected"]
        trajectory, turn = torch.tensor(data["trajectory"]), torch.tensor(data["turn"])
        spans = torch.zeros_like(trajectory)
        for i, pieces in enumerate(expected["spans"]):
            for j, (start, end) in enumerate(pieces):
                spans[(trajectory == i) & (turn >= start) & (turn < end)] = j
        for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-4)):
            built = correspondence_from_similarity(
                torch.tensor(data["similarity_source_by_target"], dtype=dtype),
                trajectory,
                turn,
                torch.tensor(data["group"]),
                torch.tensor(data["source_valid"]),
                torch.tensor(data["target_valid"]),
            )
            found = profile_divergence(built, trajectory.numel(), similarity_threshold=options["similarity_threshold"])
            theta = boundary_threshold(found.values[found.defined])
            assert theta == pytest.approx(expected["threshold"], abs=tolerance)
            assert found.defined.tolist() == expected["divergence_defined"]
            wanted = torch.tensor(expected["divergence"], dtype=dtype)
            torch.testing.assert_close(found.values, wanted, rtol=0, atol=tolerance)
            lengths = {"min_span": options["min_span"], "max_span": options["max_span"]}
            got = segment_spans(found.values, found.defined, trajectory, turn, threshold=theta, **lengths)
            assert torch.equal(got, spans)
            check_spans(got, trajectory, turn, **lengths)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.6, 0.9]), st.sampled_from([0.05, 0.1, 1.0]))
def test_divergence_equals_the_naive_loop(seed, threshold, temperature) -> None:
    case = random_case(seed)
    eligible = eligibility(case["trajectory"], case["group"], case["source_valid"], case["target_valid"])
    values, defined = naive_divergence(
        case["similarity"], eligible, case["trajectory"], case["turn"], threshold, temperature
    )
    found = profile_divergence(
        correspondence_of(case), len(values), similarity_threshold=threshold, profile_temperature=temperature
    )
    assert found.defined.tolist() == defined
    assert found.values.tolist() == pytest.approx(values, abs=1e-10)
    theta = boundary_threshold(found.values[found.defined])
    known = [value for value, ok in zip(values, defined, strict=True) if ok]
    assert theta == pytest.approx(naive_threshold(known), abs=1e-10)


@st.composite
def trajectories(draw):
    """Divergences of several trajectories (with ties), what is defined, and admissible length rules."""
    lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=5))
    values = [[draw(st.sampled_from([0.0, 0.005, 0.01, 0.05, 0.2, 0.2, 0.7])) for _ in range(n)] for n in lengths]
    defined = [[k > 0 and draw(st.booleans()) for k in range(n)] for n in lengths]
    min_span = draw(st.integers(1, 4))
    max_span = draw(st.integers(2 * min_span - 1, 12))
    return values, defined, min_span, max_span, draw(st.integers(0, 10**6))


@settings(max_examples=150, deadline=None)
@given(trajectories())
def test_spans_equal_the_naive_loop_and_obey_the_rules(drawn) -> None:
    values, defined, min_span, max_span, seed = drawn
    trajectory = torch.tensor([i for i, row in enumerate(values) for _ in row])
    turn = torch.tensor([k for row in values for k in range(len(row))])
    order = torch.randperm(trajectory.numel(), generator=torch.Generator().manual_seed(seed))
    flat_values = torch.tensor([value for row in values for value in row], dtype=torch.float64)
    flat_defined = torch.tensor([flag for row in defined for flag in row])
    lengths = {"min_span": min_span, "max_span": max_span}
    spans = segment_spans(
        flat_values[order], flat_defined[order], trajectory[order], turn[order], threshold=0.03, **lengths
    )
    check_spans(spans, trajectory[order], turn[order], **lengths)
    back = torch.empty_like(spans)
    back[order] = spans
    expected = [
        j
        for row, flags in zip(values, defined, strict=True)
        for j, (start, end) in enumerate(segment(row, flags, 0.03, min_span, max_span))
        for _ in range(start, end)
    ]
    assert back.tolist() == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 4), st.integers(0, 9), st.integers(0, 99))
def test_random_spans_obey_the_rules_and_the_seed(counts, min_span, slack, seed) -> None:
    trajectory = torch.tensor([i for i, n in enumerate(counts) for _ in range(n)])
    turn = torch.tensor([k for n in counts for k in range(n)])
    lengths = {"min_span": min_span, "max_span": 2 * min_span - 1 + slack}
    state = torch.random.get_rng_state()
    spans = random_spans(trajectory, turn, seed=seed, **lengths)
    assert torch.equal(torch.random.get_rng_state(), state)
    check_spans(spans, trajectory, turn, **lengths)
    assert torch.equal(spans, random_spans(trajectory, turn, seed=seed, **lengths))
    order = torch.randperm(trajectory.numel(), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(spans[order], random_spans(trajectory[order], turn[order], seed=seed, **lengths))


def test_random_spans_differ_by_seed_and_can_keep_the_semantic_candidates() -> None:
    trajectory, turn = torch.zeros(40, dtype=torch.long), torch.arange(40)
    drawn = {tuple(random_spans(trajectory, turn, seed=seed).tolist()) for seed in range(5)}
    assert len(drawn) > 1
    only = torch.zeros(8, dtype=torch.bool)
    only[[2, 3]] = True
    starts = set()
    for seed in range(20):
        spans = random_spans(trajectory[:8], turn[:8], seed=seed, candidates=only)
        starts.add(int((spans == 0).sum()))
        assert int(spans.max()) == 1
    assert starts == {2, 3}


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([0, 0, 2, 2], r"without gaps over the turns of a trajectory, got \[0, 0, 2, 2\] in trajectory 0"),
        ([1, 1, 1, 1], "must run 0, 1, 2"),
        ([0, 1, 0, 1], "must run 0, 1, 2"),
        ([0, 0, 0, 0], "at most max_span = 3 turns, got 4 in trajectory 0"),
        ([0, 1, 1, 1], "at least min_span = 2 turns, got 1 in trajectory 0"),
    ],
)
def test_bad_spans_are_refused(spans, message) -> None:
    with pytest.raises(ValueError, match=message):
        check_spans(torch.tensor(spans), torch.zeros(4).long(), torch.arange(4), min_span=2, max_span=3)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"max_span must be at least 2 \* min_span - 1 = 5, got 4"):
        cut([0.0, 0.1], 0.1, min_span=3, max_span=4)
    with pytest.raises(ValueError, match="min_span must be a whole number >= 1, got 0"):
        random_spans(torch.zeros(2).long(), torch.arange(2), seed=0, min_span=0)
    with pytest.raises(ValueError, match="divergence must be finite where defined"):
        cut([0.0, math.nan], 0.1)
    with pytest.raises(ValueError, match=r"defined must be \[M\] = \[2\], got \[1\]"):
        cut([0.0, 0.1], 0.1, defined=[True])
    with pytest.raises(TypeError, match="spans must be integers"):
        check_spans(torch.zeros(2), torch.zeros(2).long(), torch.arange(2))
    with pytest.raises(ValueError, match="defined_values must be finite, got nan"):
        boundary_threshold(torch.tensor([0.1, math.nan]))
    with pytest.raises(ValueError, match=r"low must be a number in \[0, 0.1\], got 0.2"):
        boundary_threshold(torch.tensor([0.1]), low=0.2)
    with pytest.raises(ValueError, match="distance must be one of"):
        two_turns([[0.9, 0.9], [0.9, 0.9]], distance="euclid")
    with pytest.raises(ValueError, match=r"profile_temperature must be a number in \(0, inf\)"):
        two_turns([[0.9, 0.9], [0.9, 0.9]], profile_temperature=0.0)
    with pytest.raises(ValueError, match=r"rows below num_rows \(3\), got 3"):
        profile_divergence(correspondence_from_similarity(
            torch.zeros(4, 4), torch.arange(4), torch.zeros(4).long(), torch.zeros(4).long(),
            torch.ones(4).bool(), torch.ones(4).bool(),
        ), 3)  # fmt: skip
