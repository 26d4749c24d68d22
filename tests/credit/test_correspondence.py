"""Blocks per task, eligibility, and the selection of sources."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.align_cases import correspondence_of, random_case
from helpers.reference_align import eligibility, select
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.credit.align import (
    Correspondence,
    Sources,
    TaskBlock,
    action_similarity,
    build_correspondence,
    correspondence_from_similarity,
    select_sources,
)

THREE = {
    "trajectory_ids": torch.tensor([0, 1, 2]),
    "turn_ids": torch.tensor([0, 0, 0]),
    "group_ids": torch.tensor([5, 5, 5]),
    "source_valid": torch.ones(3, dtype=torch.bool),
    "target_valid": torch.ones(3, dtype=torch.bool),
}


def pairs_of(sources: Sources) -> list[tuple[int, int]]:
    return list(zip(sources.source.tolist(), sources.target.tolist(), strict=True))


def from_dense(similarity: list[list[float]], **changes) -> Correspondence:
    return correspondence_from_similarity(torch.tensor(similarity, dtype=torch.float64), **{**THREE, **changes})


def test_similarity_is_source_by_target() -> None:
    # Teacher of row 1 thinks (0, 1), student of row 0 thinks (0, 1): source 1 matches target 0, not the reverse.
    teacher = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 0.0]])
    student = torch.tensor([[0.0, 3.0], [-1.0, 0.0], [3.0, 4.0]])
    built = build_correspondence(teacher, student, **THREE)
    expected = torch.tensor([[0.0, -1.0, 0.6], [1.0, 0.0, 0.8], [0.0, -1.0, 0.6]])
    torch.testing.assert_close(built.blocks[0].similarity, expected)
    assert pairs_of(select_sources(built, similarity_threshold=0.7)) == [(1, 0), (1, 2)]


def test_blocks_follow_tasks_and_sort_their_rows() -> None:
    built = correspondence_from_similarity(
        torch.zeros(5, 5),
        trajectory_ids=torch.tensor([2, 0, 1, 2, 0]),
        turn_ids=torch.tensor([1, 0, 0, 0, 1]),
        group_ids=torch.tensor([9, 4, 9]),
        source_valid=torch.tensor([True, True, True, True, False]),
        target_valid=torch.tensor([True, False, True, True, True]),
    )
    assert [block.rows.tolist() for block in built.blocks] == [[2], [1, 4, 3, 0]]
    # Rows 1, 4 belong to trajectory 0, rows 3, 0 to trajectory 2; source 4 and target 1 are empty.
    assert built.blocks[1].eligible.tolist() == [
        [False, False, True, True],
        [False, False, False, False],
        [False, True, False, False],
        [False, True, False, False],
    ]
    assert not built.blocks[0].eligible.any()


def test_protocols_are_never_mixed() -> None:
    built = from_dense([[1.0] * 3] * 3, protocols=torch.tensor([0, 1, 0]))
    assert pairs_of(select_sources(built)) == [(2, 0), (0, 2)]


def test_threshold_is_inclusive_and_one_source_per_sibling() -> None:
    built = correspondence_from_similarity(
        torch.tensor(
            [
                [0.0, 0.0, 0.0, 0.0],
                [0.80, 0.0, 0.0, 0.0],  # trajectory 1, turn 0
                [0.95, 0.0, 0.0, 0.0],  # trajectory 1, turn 1: the best of its rollout
                [0.79, 0.0, 0.0, 0.0],
            ],
            dtype=torch.float64,
        ),
        torch.tensor([0, 1, 1, 2]),
        torch.tensor([0, 0, 1, 0]),
        torch.tensor([0, 0, 0]),
        torch.ones(4, dtype=torch.bool),
        torch.ones(4, dtype=torch.bool),
    )
    assert pairs_of(select_sources(built)) == [(2, 0)]
    assert pairs_of(select_sources(built, similarity_threshold=0.95)) == [(2, 0)]
    assert pairs_of(select_sources(built, similarity_threshold=0.79)) == [(2, 0), (3, 0)]
    assert pairs_of(select_sources(built, similarity_threshold=0.79, top_k=1)) == [(2, 0)]


def test_ties_go_to_the_smaller_rollout_and_turn() -> None:
    # Target row 0 (trajectory 3); rows 1..4 are (2, 1), (2, 0), (0, 0), (1, 0) and all equally similar.
    trajectory, turn = torch.tensor([3, 2, 2, 0, 1]), torch.tensor([0, 1, 0, 0, 0])
    valid = torch.tensor([False, True, True, True, True])
    target = torch.tensor([True, False, False, False, False])
    built = correspondence_from_similarity(
        torch.full((5, 5), 0.9), trajectory, turn, torch.zeros(4).long(), valid, target
    )
    assert pairs_of(select_sources(built)) == [(3, 0), (4, 0), (2, 0)]
    assert pairs_of(select_sources(built, top_k=2)) == [(3, 0), (4, 0)]


def test_a_group_of_one_has_no_source() -> None:
    built = from_dense([[1.0] * 3] * 3, group_ids=torch.tensor([1, 2, 3]))
    assert len(built.blocks) == 3
    assert pairs_of(select_sources(built)) == []


def test_golden_sources(shared_dir) -> None:
    for case in json.loads((shared_dir / "golden" / "align_rectification.json").read_text()):
        data, options = case["inputs"], case["options"]
        for dtype in (torch.float64, torch.float32):
            built = correspondence_from_similarity(
                torch.tensor(data["similarity_source_by_target"], dtype=dtype),
                torch.tensor(data["trajectory"]),
                torch.tensor(data["turn"]),
                torch.tensor(data["group"]),
                torch.tensor(data["source_valid"]),
                torch.tensor(data["target_valid"]),
            )
            sources = select_sources(
                built, similarity_threshold=options["similarity_threshold"], top_k=options["top_k"]
            )
            expected = [(v, u) for u, chosen in enumerate(case["expected"]["sources"]) for v in chosen]
            assert pairs_of(sources) == expected


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(2, 4), st.sampled_from([-1.0, 0.3, 0.8, 0.99]), st.integers(1, 4), st.booleans()
)
def test_selection_equals_the_naive_loop(seed, rollouts, threshold, top_k, coarse) -> None:
    case = random_case(seed, rollouts=rollouts, max_turns=5)
    if coarse:  # many ties
        case["similarity"] = [[round(value, 1) for value in row] for row in case["similarity"]]
    eligible = eligibility(case["trajectory"], case["group"], case["source_valid"], case["target_valid"])
    naive = select(case["similarity"], eligible, case["trajectory"], case["turn"], threshold, top_k)
    sources = select_sources(correspondence_of(case), similarity_threshold=threshold, top_k=top_k)
    assert pairs_of(sources) == [(v, u) for u in sorted(naive) for v in naive[u]]


def test_selection_ignores_ineligible_similarities() -> None:
    case = random_case(3)
    eligible = eligibility(case["trajectory"], case["group"], case["source_valid"], case["target_valid"])
    before = select_sources(correspondence_of(case))
    case["similarity"] = [
        [value if ok else float("nan") for value, ok in zip(row, flags, strict=True)]
        for row, flags in zip(case["similarity"], eligible, strict=True)
    ]
    assert pairs_of(select_sources(correspondence_of(case))) == pairs_of(before)


def test_action_filter_drops_without_refilling() -> None:
    built = from_dense([[0.9] * 3] * 3)
    sources = select_sources(built, top_k=1)
    assert pairs_of(sources) == [(1, 0), (0, 1), (0, 2)]
    teacher = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    student = torch.tensor([[0.8, 0.6], [0.0, 1.0], [2.0, 0.0]])
    cosine = action_similarity(sources, teacher, student)
    torch.testing.assert_close(cosine, torch.tensor([0.8, 0.0, 1.0]))
    kept = sources.keep(cosine >= 0.5)
    assert pairs_of(kept) == [(1, 0), (0, 2)]
    assert (kept.similarity_threshold, kept.top_k) == (0.8, 1)


def test_storage_is_per_task() -> None:
    tasks, turns = 6, 10
    trajectory = torch.arange(tasks * turns)
    valid = torch.ones(tasks * turns, dtype=torch.bool)
    vectors = torch.randn(tasks * turns, 4, generator=torch.Generator().manual_seed(0))
    built = build_correspondence(vectors, vectors, trajectory, trajectory * 0, trajectory // turns, valid, valid)
    stored = sum(block.similarity.untyped_storage().nbytes() for block in built.blocks)
    assert stored == 4 * tasks * turns**2
    assert sum(block.eligible.untyped_storage().nbytes() for block in built.blocks) == tasks * turns**2


def test_no_gradient_and_inputs_unchanged() -> None:
    teacher, student = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    copies = teacher.detach().clone(), student.detach().clone()
    built = build_correspondence(teacher, student, **THREE)
    assert not built.blocks[0].similarity.requires_grad
    assert torch.equal(teacher, copies[0])
    assert torch.equal(student, copies[1])


def test_invalid_rows_may_hold_anything() -> None:
    teacher = torch.tensor([[1.0, 0.0], [float("nan"), 0.0], [0.0, 0.0]])
    built = build_correspondence(
        teacher,
        teacher,
        **{**THREE, "source_valid": torch.tensor([1, 0, 0]).bool(), "target_valid": torch.zeros(3).bool()},
    )
    assert built.blocks[0].similarity.isfinite().all()


@pytest.mark.parametrize(("value", "shown"), [(1.01, "1.01"), (-1.5, "-1.5"), (float("nan"), "nan")])
def test_similarity_outside_the_range_is_refused(value, shown) -> None:
    dense = torch.zeros(3, 3, dtype=torch.float64)
    dense[2, 0] = value
    with pytest.raises(ValueError, match=rf"similarity must lie in \[-1, 1\] for eligible pairs, got {shown}"):
        correspondence_from_similarity(dense, **THREE)


def test_bad_embeddings_are_refused() -> None:
    good = torch.eye(3)
    with pytest.raises(ValueError, match=r"teacher_embeddings must be finite and non-zero .* in row 1"):
        build_correspondence(torch.diag(torch.tensor([1.0, 0.0, 1.0])), good, **THREE)
    with pytest.raises(ValueError, match=r"student_embeddings must be finite and non-zero .* got norm nan in row 2"):
        build_correspondence(good, torch.diag(torch.tensor([1.0, 1.0, float("nan")])), **THREE)
    with pytest.raises(ValueError, match=r"student_embeddings must have the width"):
        build_correspondence(good, torch.ones(3, 2), **THREE)
    with pytest.raises(ValueError, match=r"teacher_embeddings must have shape \[M, D\]"):
        build_correspondence(torch.eye(2), good, **THREE)


def test_bad_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="trajectory_ids must index group_ids"):
        from_dense([[0.0] * 3] * 3, group_ids=torch.tensor([1, 1]))
    with pytest.raises(TypeError, match=r"source_valid must be bool"):
        from_dense([[0.0] * 3] * 3, source_valid=torch.ones(3))
    with pytest.raises(ValueError, match=r"similarity must have shape \[3, 3\]"):
        from_dense([[0.0] * 3] * 2)
    with pytest.raises(ValueError, match=r"ordered by \(trajectory, turn\) without duplicates"):
        from_dense([[0.0] * 3] * 3, trajectory_ids=torch.tensor([0, 0, 1]))
    block = from_dense([[0.0] * 3] * 3).blocks[0]
    with pytest.raises(ValueError, match="blocks must share no batch row"):
        Correspondence((block, block))
    with pytest.raises(ValueError, match="eligible must be False between turns of one rollout"):
        TaskBlock(block.rows, block.trajectory_ids, block.turn_ids, block.similarity, torch.ones(3, 3).bool())


def test_bad_selection_is_refused() -> None:
    built = from_dense([[0.9] * 3] * 3)
    with pytest.raises(ValueError, match=r"similarity_threshold must lie in \[-1, 1\), got 1.0"):
        select_sources(built, similarity_threshold=1.0)
    with pytest.raises(ValueError, match="top_k must be a whole number >= 1, got 0"):
        select_sources(built, top_k=0)
    sources = select_sources(built)
    with pytest.raises(ValueError, match=r"mask must have shape \[6\]"):
        sources.keep(torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match="target must be in ascending order"):
        Sources(sources.source, sources.target.flip(0), sources.similarity, 0.8, 3)
    with pytest.raises(ValueError, match=r"cross_logprobs must have one row per pair in sources \(6\)"):
        built.with_scores(sources, torch.zeros(5, 2))
    with pytest.raises(ValueError, match="student_actions must have the shape of teacher_actions"):
        action_similarity(sources, torch.zeros(3, 2), torch.zeros(3, 3))


def test_moves_to_a_device() -> None:
    built = from_dense([[0.9] * 3] * 3)
    sources = select_sources(built)
    moved = built.with_scores(sources, torch.zeros(6, 2)).to("cpu")
    assert pairs_of(moved.sources) == pairs_of(sources)
    assert torch.equal(moved.blocks[0].similarity, built.blocks[0].similarity)
