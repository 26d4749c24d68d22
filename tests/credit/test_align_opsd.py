"""AlignOPSD as a whole: golden vectors, the naive reference, identities, invariances, presets and errors."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from helpers.align_cases import inputs_of, random_case, shuffled
from helpers.reference_align import align_opsd as naive_align
from hypothesis import given, settings
from hypothesis import strategies as st

from turncredit.credit.align import (
    ALIGN_PROFILES,
    align_opsd,
    boundary_divergences,
    boundary_threshold,
    correspondence_from_similarity,
    select_sources,
)
from turncredit.credit.grpo import grpo
from turncredit.credit.inputs import CreditInputs
from turncredit.credit.registry import get_credit, list_credits


def swap(inputs: CreditInputs, **changes) -> CreditInputs:
    return dataclasses.replace(inputs, **changes)


def random_table(case, seed: int) -> list[list[float]]:
    """The random numbers that ``random_spans`` draws, one row per trajectory."""
    shape = max(case["turn"]) + 1, len(case["group"])
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).T.tolist()


def test_golden(shared_dir) -> None:
    for case in json.loads((shared_dir / "golden" / "align_credit.json").read_text()):
        data, expected = case["inputs"], case["expected"]
        trajectory, turn, group = (torch.tensor(data[key]) for key in ("trajectory", "turn", "group"))
        valid = torch.tensor(data["source_valid"]), torch.tensor(data["target_valid"])
        for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-4)):
            student = torch.tensor(data["student_logprobs"], dtype=dtype)
            similarity = torch.tensor(data["similarity_source_by_target"], dtype=dtype)
            reward = torch.tensor(data["reward"], dtype=dtype)
            credit = align_opsd(
                CreditInputs(
                    response_mask=torch.tensor(data["response_mask"]),
                    trajectory_ids=trajectory,
                    turn_ids=turn,
                    group_ids=group,
                    rewards=reward,
                    successes=reward,
                    student_logprobs=student,
                    teacher_logprobs=student + torch.tensor(data["rectified_gap"], dtype=dtype),
                    correspondence=correspondence_from_similarity(similarity, trajectory, turn, group, *valid),
                ),
                alpha_max=0.0,
                **case["options"],
            )
            for got, name in (
                (credit.turn_weights, "turn_weights"),
                (credit.advantages, "token_advantages"),
                (credit.details["divergence"], "divergence"),
            ):
                wanted = torch.tensor(expected[name], dtype=dtype)
                torch.testing.assert_close(got, wanted, rtol=0, atol=tolerance)
            assert credit.metrics["boundary_threshold"] == pytest.approx(expected["threshold"], abs=tolerance)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["semantic", "turn", "token", "random"]),
    st.sampled_from([(2, 8), (1, 3), (3, 5)]),
    st.sampled_from([0.0, 0.8]),
    st.booleans(),
    st.sampled_from([(0.5, 0.5, 0.0, 4.0), (0.2, 1.0, 0.8, 1.2)]),
)
def test_equals_the_naive_loop(seed, mode, lengths, alpha_max, with_valid, allocation) -> None:
    case = random_case(seed, max_turns=12)
    temperature, mix, lower, upper = allocation
    wanted, spans, weights = naive_align(
        case if with_valid else {**case, "valid": None},
        alpha_max=alpha_max,
        mode=mode,
        min_span=lengths[0],
        max_span=lengths[1],
        temperature=temperature,
        mix=mix,
        lower=lower,
        upper=upper,
        random_scores=random_table(case, 7),
    )
    credit = align_opsd(
        inputs_of(case, with_valid=with_valid),
        alpha_max=alpha_max,
        spans=mode,
        seed=7,
        min_span=lengths[0],
        max_span=lengths[1],
        credit_temperature=temperature,
        mix=mix,
        density_min=lower,
        density_max=upper,
        invalid_normalization="paper",
    )
    torch.testing.assert_close(credit.advantages, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-8)
    assert credit.turn_weights.tolist() == pytest.approx(weights, abs=1e-8)
    naive_spans = [
        next(j for j, (start, end) in enumerate(spans[i]) if start <= k < end)
        for i, k in zip(case["trajectory"], case["turn"], strict=True)
    ]
    assert credit.details["spans"].tolist() == naive_spans


MODES = ["semantic", "turn", "token", "random"]


@pytest.mark.parametrize("mode", ["semantic", "turn", "random"])
def test_no_mixing_is_grpo_bit_for_bit(mode) -> None:
    inputs = inputs_of(random_case(1), torch.float32)
    assert torch.equal(align_opsd(inputs, spans=mode, mix=0.0).advantages, grpo(inputs).advantages)


def test_identities() -> None:
    case = random_case(2)
    inputs = inputs_of(case)
    plain = grpo(inputs).advantages
    level = swap(inputs, teacher_logprobs=inputs.student_logprobs + 0.3)
    for mode in MODES:
        # equal evidence everywhere
        same = align_opsd(level, alpha_max=0.0, spans=mode)
        torch.testing.assert_close(same.advantages, plain, rtol=0, atol=1e-10)
        # T_c to infinity
        hot = align_opsd(inputs, credit_temperature=1e12, spans=mode)
        torch.testing.assert_close(hot.advantages, plain, rtol=0, atol=1e-9)
        # A = 0
        calm = align_opsd(swap(inputs, rewards=torch.ones_like(inputs.rewards)), spans=mode)
        assert not calm.advantages.any()
        torch.testing.assert_close(calm.turn_weights, torch.ones_like(calm.turn_weights), rtol=0, atol=1e-12)
    # alpha_max = 0 is the identity score
    bare = swap(inputs, correspondence=dataclasses.replace(inputs.correspondence, sources=None, cross_logprobs=None))
    assert torch.equal(
        align_opsd(inputs, alpha_max=0.0).advantages, get_credit("align_opsd_no_rectification")(bare).advantages
    )
    # one span per trajectory is the turn ablation
    whole = torch.zeros_like(inputs.turn_ids)
    assert torch.equal(
        align_opsd(inputs, spans=whole, max_span=99).advantages, align_opsd(inputs, spans="turn").advantages
    )
    # on turns of one token, mixed fully, token and turn agree
    short = random_case(4, tokens=1)
    token, turn = (align_opsd(inputs_of(short), spans=mode, mix=1.0).advantages for mode in ("token", "turn"))
    torch.testing.assert_close(token, turn, rtol=0, atol=1e-12)


def test_one_turn_trajectories_keep_their_advantage() -> None:
    inputs = inputs_of(random_case(6, rollouts=6, max_turns=1))
    assert int(inputs.turn_ids.max()) == 0
    credit = align_opsd(inputs)
    torch.testing.assert_close(credit.advantages, grpo(inputs).advantages, rtol=0, atol=1e-12)


def test_no_eligible_source_is_the_identity_score() -> None:
    case = random_case(7)
    case["source_valid"] = [False] * len(case["turn"])
    inputs = inputs_of(case)
    assert torch.equal(align_opsd(inputs).advantages, align_opsd(inputs, alpha_max=0.0).advantages)
    assert align_opsd(inputs).metrics["source_share"] == 0.0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["semantic", "turn", "token"]), st.sampled_from([0.3, 30.0, 1e4]))
def test_properties(seed, mode, scale) -> None:
    case = random_case(seed, scale=scale)
    inputs = inputs_of(case, torch.float32)
    credit = align_opsd(inputs, spans=mode)
    advantages = grpo(inputs).advantages
    mask, rows = inputs.response_mask, inputs.trajectory_ids
    assert bool(credit.advantages.isfinite().all())
    assert not credit.advantages[~mask].any()
    # sign kept and bounded
    low, high = (0.0, 4.0) if mode == "token" else (0.5, 2.5)
    ratio = (credit.advantages / advantages)[mask & (advantages != 0)]
    assert bool((ratio >= low - 1e-4).all())
    assert bool((ratio <= high + 1e-4).all())
    # the trajectory's token-weighted credit is kept
    before = torch.zeros_like(inputs.rewards).index_add_(0, rows, advantages.sum(-1))
    after = torch.zeros_like(inputs.rewards).index_add_(0, rows, credit.advantages.sum(-1))
    torch.testing.assert_close(after, before, rtol=2e-5, atol=1e-5)
    assert credit.metrics["budget_error"] < 1e-5


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["semantic", "turn", "token"]), st.integers(0, 4))
def test_rows_trajectories_groups_and_padding_do_not_matter(seed, mode, padding) -> None:
    case = random_case(seed)
    moved, rows, _ = shuffled(case, seed)
    here = align_opsd(inputs_of(case, with_valid=True), spans=mode)
    there = align_opsd(inputs_of(moved, with_valid=True, padding=padding), spans=mode)
    tokens = here.advantages.shape[1]
    torch.testing.assert_close(there.advantages[:, :tokens], here.advantages[rows], rtol=0, atol=1e-9)
    assert not there.advantages[:, tokens:].any()
    torch.testing.assert_close(there.turn_weights, here.turn_weights[rows], rtol=0, atol=1e-9)
    assert torch.equal(there.details["spans"], here.details["spans"][rows])


def test_no_gradient_inputs_unchanged_and_dtypes() -> None:
    case = random_case(8)
    inputs = inputs_of(case, torch.float32, with_valid=True)
    inputs = swap(inputs, student_logprobs=inputs.student_logprobs.requires_grad_())
    tensors = {
        field.name: value.detach().clone()
        for field in dataclasses.fields(inputs)
        if isinstance(value := getattr(inputs, field.name), torch.Tensor)
    }
    credit = align_opsd(inputs)
    assert not credit.advantages.requires_grad
    for name, copy in tensors.items():
        assert torch.equal(getattr(inputs, name), copy)
    for name, value in credit.details.items():
        assert not value.requires_grad, name
    assert credit.advantages.dtype == credit.turn_weights.dtype == torch.float32
    half = align_opsd(
        swap(
            inputs,
            student_logprobs=inputs.student_logprobs.detach().bfloat16(),
            teacher_logprobs=inputs.teacher_logprobs.bfloat16(),
        )
    )
    assert half.advantages.dtype == torch.float32


def test_residual_comes_on_top_of_the_allocation() -> None:
    case = random_case(9)
    case["valid"][0] = False
    with_residual, without = align_opsd(inputs_of(case, with_valid=True)), align_opsd(inputs_of(case))
    residual = with_residual.details["invalid_residual"]
    mask = inputs_of(case).response_mask
    torch.testing.assert_close(with_residual.advantages, without.advantages + residual[:, None] * mask)
    assert torch.equal(with_residual.turn_weights, without.turn_weights)
    share = case["valid"].count(False) / len(case["valid"])
    assert with_residual.metrics["invalid_action_share"] == pytest.approx(share)
    silent = align_opsd(inputs_of(case, with_valid=True), invalid_penalty=0.0)
    torch.testing.assert_close(silent.advantages, without.advantages)


def test_metrics_against_their_formulas() -> None:
    inputs = inputs_of(random_case(10))
    credit = align_opsd(inputs)
    metrics, details = credit.metrics, credit.details
    rows = inputs.num_rows
    sources = inputs.correspondence.sources
    assert metrics["source_share"] == pytest.approx(sources.target.unique().numel() / rows)
    assert metrics["sources_per_turn"] == pytest.approx(sources.target.numel() / rows)
    spans = len(set(zip(inputs.trajectory_ids.tolist(), details["spans"].tolist(), strict=True)))
    assert metrics["turns_per_span"] == pytest.approx(rows / spans)
    assert metrics["spans_per_trajectory"] == pytest.approx(spans / inputs.num_trajectories)
    assert metrics["mean_gap"] == pytest.approx(
        details["rectified_gap"].sum().item() / inputs.token_counts.sum().item()
    )
    assert metrics["mean_confidence"] == pytest.approx(details["confidence"].mean().item())
    assert metrics["mean_strength"] == pytest.approx(0.8 * metrics["mean_confidence"])
    defined = details["divergence_defined"]
    assert metrics["mean_divergence"] == pytest.approx(details["divergence"][defined].mean().item())
    assert metrics["divergence_defined_share"] == pytest.approx(
        defined.sum().item() / (inputs.turn_ids > 0).sum().item()
    )
    assert metrics["weight_std"] == pytest.approx(credit.turn_weights.std(correction=0).item())
    per_turn = details["rectified_gap"].sum(-1) / inputs.token_counts
    torch.testing.assert_close(details["turn_gaps"], per_turn)
    identity = torch.where(inputs.response_mask, inputs.teacher_logprobs - inputs.student_logprobs, 0.0)
    shift = (details["rectified_gap"] - identity).abs().sum() / inputs.token_counts.sum()
    assert metrics["mean_shift"] == pytest.approx(shift.item())
    assert all(isinstance(value, float) for value in metrics.values())


def test_a_threshold_agreed_by_several_processes_overrides_the_batch() -> None:
    inputs = inputs_of(random_case(12, max_turns=12))
    own = align_opsd(inputs)
    again = align_opsd(inputs, threshold=own.metrics["boundary_threshold"])
    assert torch.equal(own.details["spans"], again.details["spans"])
    none = align_opsd(inputs, threshold=1.0, max_span=99)
    assert int(none.details["spans"].max()) == 0
    assert none.metrics["boundary_threshold"] == 1.0


def part_of(case, names: list[int]):
    """The tasks ``names`` of a case as a case of their own, and their rows."""
    rows = [m for m, i in enumerate(case["trajectory"]) if case["group"][i] in names]
    mine = [i for i, g in enumerate(case["group"]) if g in names]
    part = {key: [case[key][m] for m in rows] for key in ("turn", "mask", "student", "teacher", "valid")}
    part |= {key: [case[key][m] for m in rows] for key in ("source_valid", "target_valid")}
    part["trajectory"] = [mine.index(case["trajectory"][m]) for m in rows]
    part["group"], part["reward"] = [case["group"][i] for i in mine], [case["reward"][i] for i in mine]
    part["similarity"] = [[case["similarity"][v][u] for u in rows] for v in rows]
    place = {m: p for p, m in enumerate(rows)}
    part["cross"] = {
        (place[v], place[u]): scores for (v, u), scores in case["cross"].items() if v in place and u in place
    }
    return part, rows


@pytest.mark.parametrize("seed", range(4))
def test_processes_that_share_a_threshold_equal_one_with_the_whole_batch(seed: int) -> None:
    options = {"boundary_high": 0.9, "boundary_low": 0.0, "boundary_quantile": 0.6}
    case = random_case(seed, groups=4, max_turns=12)
    whole = align_opsd(inputs_of(case), **options)
    names = sorted(set(case["group"]))
    parts = [part_of(case, names[:1]), part_of(case, names[1:])]
    gathered = torch.cat([boundary_divergences(inputs_of(part)) for part, _ in parts])
    threshold = boundary_threshold(gathered, quantile=0.6, low=0.0, high=0.9)
    assert threshold == whole.metrics["boundary_threshold"]
    assert 0 < threshold < 0.9
    own = []
    for part, rows in parts:
        got = align_opsd(inputs_of(part), threshold=threshold, **options)
        assert torch.equal(got.details["spans"], whole.details["spans"][rows])
        torch.testing.assert_close(got.advantages, whole.advantages[rows], rtol=0, atol=1e-10)
        own.append(align_opsd(inputs_of(part), **options).metrics["boundary_threshold"])
    assert all(value != pytest.approx(threshold, rel=1e-3) for value in own)


def test_a_batch_without_correspondence_has_no_divergences() -> None:
    inputs = swap(inputs_of(random_case(0)), correspondence=None)
    with pytest.raises(ValueError, match=r"boundary_divergences: inputs\.correspondence must be given, got None"):
        boundary_divergences(inputs)


def test_presets_are_registered_and_run() -> None:
    names = [name for name in list_credits() if name.startswith("align_opsd")]
    assert len(names) == 12
    case = random_case(14)
    for name in names:
        method = get_credit(name)
        inputs = inputs_of(
            case, threshold=method.options["similarity_threshold"], top_k=method.options["top_k"], with_valid=True
        )
        credit = method(inputs)
        assert bool(credit.advantages.isfinite().all()), name
        assert credit.metrics["budget_error"] < 1e-5, name
    distinct = {tuple(get_credit(name)(inputs_of(case)).turn_weights.tolist()) for name in
                ("align_opsd", "align_opsd_no_rectification", "align_opsd_token", "align_opsd_turn",
                 "align_opsd_random", "align_opsd_bounded")}  # fmt: skip
    assert len(distinct) == 6


def test_published_profiles() -> None:
    table = {
        "align_opsd_alfworld_3b": (0.65, 2, 0.5, "turn", "probability", True, True),
        "align_opsd_alfworld_7b": (0.80, 3, 0.5, "turn", "probability", False, False),
        "align_opsd_search_3b": (0.70, 3, 1.0, "trajectory", "log_mean", False, False),
        "align_opsd_search_7b": (0.70, 3, 0.5, "turn", "probability", False, False),
        "align_opsd_webshop_3b": (0.80, 3, 0.2, "turn", "probability", False, True),
        "align_opsd_webshop_7b": (0.80, 2, 0.5, "turn", "probability", False, False),
    }
    assert {name: dataclasses.astuple(profile) for name, profile in ALIGN_PROFILES.items()} == table
    for name, profile in ALIGN_PROFILES.items():
        options = get_credit(name).options
        assert all(options[key] == value for key, value in profile.options.items())


def test_requirements_follow_the_options() -> None:
    both = {"teacher_logprobs", "correspondence"}
    assert get_credit("align_opsd").requires == both
    assert get_credit("align_opsd_no_rectification").requires == both
    assert get_credit("align_opsd_turn", alpha_max=0.0).requires == {"teacher_logprobs"}
    assert get_credit("align_opsd_random", alpha_max=0.0).requires == {"teacher_logprobs"}
    assert get_credit("align_opsd_random", alpha_max=0.0, random_candidates="semantic").requires == both


def test_missing_fields_are_refused() -> None:
    inputs = inputs_of(random_case(15))
    correspondence = inputs.correspondence
    with pytest.raises(ValueError, match=r"align_opsd: inputs.correspondence must be given, got None"):
        align_opsd(swap(inputs, correspondence=None))
    with pytest.raises(ValueError, match=r"align_opsd: inputs.teacher_logprobs must be given, got None"):
        align_opsd(swap(inputs, teacher_logprobs=None), alpha_max=0.0, spans="turn")
    bare = dataclasses.replace(correspondence, sources=None, cross_logprobs=None)
    with pytest.raises(ValueError, match=r"sources and cross_logprobs must be given while alpha_max > 0"):
        align_opsd(swap(inputs, correspondence=bare))
    align_opsd(swap(inputs, correspondence=None), alpha_max=0.0, spans="turn")


def test_a_correspondence_of_another_batch_is_refused() -> None:
    inputs = inputs_of(random_case(16))
    correspondence = inputs.correspondence
    with pytest.raises(ValueError, match=r"similarity_threshold must be the one .* \(0.8\), got 0.7"):
        align_opsd(inputs, similarity_threshold=0.7)
    with pytest.raises(ValueError, match=r"top_k must be the one .* \(3\), got 2"):
        align_opsd(inputs, top_k=2)
    moved, _, _ = shuffled(random_case(16), 1)
    with pytest.raises(ValueError, match="must name the rows of this batch"):
        align_opsd(swap(inputs_of(moved), correspondence=correspondence))
    with pytest.raises(ValueError, match="one task per block"):
        align_opsd(swap(inputs, group_ids=torch.arange(inputs.num_trajectories)))
    scores = correspondence.cross_logprobs.clone()
    scores[1, 0] = float("nan")
    with pytest.raises(ValueError, match=r"cross_logprobs must be finite .* got nan in pair 1, token 0"):
        align_opsd(swap(inputs, correspondence=correspondence.with_scores(correspondence.sources, scores)))
    short = correspondence.with_scores(correspondence.sources, scores[:, :2])
    with pytest.raises(ValueError, match=r"cross_logprobs must be \[P, T\] with T = 5, got T = 2"):
        align_opsd(swap(inputs, correspondence=short))
    with pytest.raises(TypeError, match="correspondence must be a Correspondence, got Tensor"):
        align_opsd(swap(inputs, correspondence=torch.zeros(2)), alpha_max=0.0)
    far = dataclasses.replace(correspondence.sources, source=correspondence.sources.source + 10**6)
    with pytest.raises(ValueError, match=r"sources.source must index the \d+ rows"):
        align_opsd(swap(inputs, correspondence=correspondence.with_scores(far, correspondence.cross_logprobs)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spans": "word"}, "spans must be one of 'semantic', 'random', 'turn', 'token', got 'word'"),
        ({"min_span": 3, "max_span": 4}, r"max_span must be at least 2 \* min_span - 1 = 5, got 4"),
        ({"alpha_max": -0.1}, r"alpha_max must be a number in \[0, 1\], got -0.1"),
        ({"distance": "l2"}, "distance must be one of"),
        ({"random_candidates": "some"}, "random_candidates must be one of"),
        ({"normalization_scope": "batch"}, "normalization_scope must be one of"),
    ],
)
def test_bad_options_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        align_opsd(inputs_of(random_case(17)), **options)


def test_own_spans_are_checked() -> None:
    inputs = inputs_of(random_case(18, max_turns=6))
    pairs = torch.div(inputs.turn_ids, 2, rounding_mode="floor")
    assert torch.equal(align_opsd(inputs, spans=pairs).details["spans"], pairs)
    with pytest.raises(ValueError, match=r"at most max_span = 1 turns, got 2"):
        align_opsd(inputs, spans=pairs, min_span=1, max_span=1)
    with pytest.raises(ValueError, match="must run 0, 1, 2"):
        align_opsd(inputs, spans=pairs + 1)


def test_the_trainer_flow_from_embeddings() -> None:
    case = random_case(19)
    inputs = inputs_of(case)
    sources = select_sources(inputs.correspondence, similarity_threshold=0.8, top_k=3)
    assert torch.equal(sources.source, inputs.correspondence.sources.source)
    kept = sources.keep(torch.arange(sources.source.numel()) % 2 == 0)
    scores = inputs.correspondence.cross_logprobs[::2]
    credit = align_opsd(swap(inputs, correspondence=inputs.correspondence.with_scores(kept, scores)))
    assert credit.details["source_counts"].sum().item() == kept.source.numel()
