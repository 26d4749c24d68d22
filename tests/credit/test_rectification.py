"""Rectified privileged scores: mixtures, confidence, strength and blend."""

from __future__ import annotations

import json
import math

import pytest
import torch
from helpers.align_cases import random_case, scored
from helpers.reference_align import eligibility, select
from helpers.reference_align import rectify as naive_rectify
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.credit.align import (
    Sources,
    correspondence_from_similarity,
    identity_rectification,
    rectify,
    select_sources,
)


def two_sources(dtype: torch.dtype = torch.float64) -> Sources:
    """Row 0 has the sources 1 (cosine 0.9) and 2 (cosine 1.0); rows 1 and 2 have none."""
    return Sources(torch.tensor([2, 1]), torch.tensor([0, 0]), torch.tensor([1.0, 0.9], dtype=dtype), 0.8, 3)


TEACHER = torch.tensor([[math.log(0.5)], [math.log(0.3)], [math.log(0.2)]], dtype=torch.float64)
CROSS = torch.tensor([[math.log(0.8)], [math.log(0.1)]], dtype=torch.float64)


def test_hand_table() -> None:
    # omega of cosines 1.0 and 0.9 at T_agg 0.1: e^1 / (e^1 + 1) = 0.7310586, 0.2689414.
    # confidence: 0.7310586 * (1.0 - 0.8) / 0.2 + 0.2689414 * (0.9 - 0.8) / 0.2 = 0.8655293.
    # strength 0.8 * 0.8655293 = 0.6924234.
    heavy = math.e / (math.e + 1)
    rho = heavy + (1 - heavy) / 2
    alpha = 0.8 * rho
    probability = math.log(heavy * 0.8 + (1 - heavy) * 0.1)
    log_mean = heavy * math.log(0.8) + (1 - heavy) * math.log(0.1)
    for mixture, cross in (("probability", probability), ("log_mean", log_mean)):
        out = rectify(TEACHER, two_sources(), CROSS, mixture=mixture)
        assert out.confidence.tolist() == pytest.approx([0.8655293, 0.0, 0.0], abs=1e-7)
        assert out.strength.tolist() == pytest.approx([alpha, 0.0, 0.0], abs=1e-12)
        assert out.logprobs[0, 0].item() == pytest.approx((1 - alpha) * math.log(0.5) + alpha * cross, abs=1e-12)
        assert torch.equal(out.logprobs[1:], TEACHER[1:])
        assert out.source_counts.tolist() == [2, 0, 0]


def test_no_strength_and_no_source_are_the_identity() -> None:
    out = rectify(TEACHER, two_sources(), CROSS, alpha_max=0.0)
    assert torch.equal(out.logprobs, TEACHER)
    assert out.confidence[0] > 0
    empty = two_sources().keep(torch.zeros(2, dtype=torch.bool))
    out = rectify(TEACHER, empty, CROSS[:0])
    assert torch.equal(out.logprobs, TEACHER)
    assert torch.equal(identity_rectification(TEACHER).logprobs, TEACHER)


def test_one_source_makes_both_mixtures_agree() -> None:
    one = two_sources().keep(torch.tensor([True, False]))
    both = [rectify(TEACHER, one, CROSS[:1], mixture=mixture).logprobs for mixture in ("probability", "log_mean")]
    torch.testing.assert_close(both[0], both[1])
    assert both[0][0, 0].item() == pytest.approx(0.2 * math.log(0.5) + 0.8 * math.log(0.8), abs=1e-12)


def test_golden(shared_dir) -> None:
    cases = json.loads((shared_dir / "golden" / "align_rectification.json").read_text())
    assert len(cases) == 8
    for case in cases:
        data, options, expected = case["inputs"], case["options"], case["expected"]
        for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-4)):
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
            scores = {(pair["source"], pair["target"]): pair["logprobs"] for pair in data["cross_logprobs"]}
            pairs = zip(sources.source.tolist(), sources.target.tolist(), strict=True)
            teacher = torch.tensor(data["teacher_logprobs"], dtype=dtype)
            out = rectify(
                teacher,
                sources,
                torch.tensor([scores[pair] for pair in pairs], dtype=dtype),
                aggregation_temperature=options["temperature"],
                alpha_max=options["alpha_max"],
                mixture=options["mode"],
            )
            gap = out.logprobs - torch.tensor(data["student_logprobs"], dtype=dtype)
            for got, name in (
                (out.confidence, "confidence"),
                (out.strength, "strength"),
                (out.logprobs, "rectified_logprobs"),
                (gap, "rectified_gap"),
            ):
                wanted = torch.tensor(expected[name], dtype=dtype)
                torch.testing.assert_close(got, wanted, rtol=0, atol=tolerance)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.5, 0.8]),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from(["probability", "log_mean"]),
)
def test_equals_the_naive_loop(seed, threshold, top_k, alpha_max, mixture) -> None:
    case = random_case(seed, max_turns=5)
    eligible = eligibility(case["trajectory"], case["group"], case["source_valid"], case["target_valid"])
    chosen = select(case["similarity"], eligible, case["trajectory"], case["turn"], threshold, top_k)
    naive = naive_rectify(
        case["teacher"], case["cross"], case["similarity"], chosen, threshold, 0.1, alpha_max, mixture
    )
    attached = scored(case, threshold=threshold, top_k=top_k)
    assert attached.sources is not None
    assert attached.cross_logprobs is not None
    teacher = torch.tensor(case["teacher"], dtype=torch.float64)
    out = rectify(teacher, attached.sources, attached.cross_logprobs, alpha_max=alpha_max, mixture=mixture)
    for got, wanted in zip((out.logprobs, out.confidence, out.strength), naive, strict=True):
        torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-10)
    assert bool(((out.confidence >= 0) & (out.confidence <= 1)).all())


def test_probability_mixture_lies_above_log_mean() -> None:
    case = random_case(11)
    attached = scored(case)
    assert attached.sources is not None
    assert attached.cross_logprobs is not None
    teacher = torch.tensor(case["teacher"], dtype=torch.float64)
    high, low = (
        rectify(teacher, attached.sources, attached.cross_logprobs, mixture=mixture).logprobs
        for mixture in ("probability", "log_mean")
    )
    assert bool((high >= low - 1e-12).all())
    assert bool((high > low + 1e-6).any())


def test_padding_stays_in_padding_and_extremes_stay_finite() -> None:
    teacher = torch.cat([TEACHER, torch.full_like(TEACHER, math.nan)], dim=1)
    cross = torch.cat([CROSS, torch.full_like(CROSS, math.nan)], dim=1)
    out = rectify(teacher, two_sources(), cross)
    torch.testing.assert_close(out.logprobs[:, 0], rectify(TEACHER, two_sources(), CROSS).logprobs[:, 0])
    far = rectify(TEACHER * 1e4, two_sources(), CROSS * 1e4)
    assert bool(far.logprobs.isfinite().all())


def test_dtype_gradient_and_inputs() -> None:
    teacher, cross = TEACHER.clone().requires_grad_(), CROSS.clone().requires_grad_()
    assert not rectify(teacher, two_sources(), cross).logprobs.requires_grad
    assert torch.equal(teacher, TEACHER)
    assert torch.equal(cross, CROSS)
    half = rectify(TEACHER.bfloat16(), two_sources(torch.float32), CROSS.bfloat16())
    assert half.logprobs.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha_max": 1.1}, r"alpha_max must be a number in \[0, 1\], got 1.1"),
        ({"aggregation_temperature": 0.0}, r"aggregation_temperature must be a number in \(0, inf\), got 0.0"),
        ({"mixture": "mean"}, r"mixture must be one of 'probability', 'log_mean', got 'mean'"),
    ],
)
def test_bad_options(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        rectify(TEACHER, two_sources(), CROSS, **options)


def test_scores_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cross_logprobs must be \[P, T\] = \[2, 1\], got \[1, 1\]"):
        rectify(TEACHER, two_sources(), CROSS[:1])
