"""The gradient of an update where rows share prefixes: that of separate rows, whatever is minimised and however cut."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from helpers.gradient_cases import BOUND, VALUE, Pull, config, heads
from helpers.prefix_cases import WORKLOADS, Rows, chains, duplicates, mixed, siblings, trie
from helpers.shared_prefixes import apart, scorer_of, train_rows
from helpers.tiny import tiny_model

from turncredit.rollout import PolicyScorer
from turncredit.trainers.losses import LOSS_TYPES
from turncredit.trainers.optimization import MicroBatchLimits, MicroBatchTooLarge, accumulate_gradients
from turncredit.trainers.terms import SDARTerm, SkillSDTerm, objective

TERMS = {
    "none": (),
    "sdar": (SDARTerm(coef=0.3),),
    "skill_sd": (SkillSDTerm(coef=0.3),),
    "of a user": (Pull(), BOUND),
    "a value head": (VALUE,),
}
ADDED = ("share", "padding")
"""In the names of metrics that tell about sharing itself."""


def fresh_accelerator() -> Accelerator:
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    return Accelerator(cpu=True)


def gradient(rows, settings, terms=(), policy_weight=1.0, scorer=None, limits=None):
    scorer = scorer or scorer_of(tiny_model().train(), heads() if VALUE in terms else None)
    metrics = accumulate_gradients(
        fresh_accelerator(),
        scorer,
        rows,
        settings,
        pad_token_id=0,
        terms=objective(settings, terms, policy_weight),
        limits=limits,
    )
    return {n: None if p.grad is None else p.grad.clone() for n, p in scorer.named_parameters()}, metrics


def lasting(metrics):
    return {name: value for name, value in metrics.items() if not any(word in name for word in ADDED)}


def assert_same(ours, theirs, relative=1e-5):
    (got, metrics), (want, expected) = ours, theirs
    assert got.keys() == want.keys()
    moved = 0.0
    for name, value in want.items():
        assert (got[name] is None) == (value is None), name
        if value is not None and value.norm() > 0:
            assert apart(got[name], value) < relative, name
            moved = max(moved, float(value.norm()))
    assert moved > 1e-3
    assert lasting(metrics) == pytest.approx(lasting(expected), rel=1e-5, abs=1e-7)


def compare(rows, terms=(), policy_weight=1.0, make=None, **changes):
    """With sharing against without; returns the metrics with sharing."""
    results = []
    for share in (True, False):
        settings = config(share_prefixes=share, **changes)
        results.append(gradient(rows, settings, terms, policy_weight, make() if make else None))
    assert_same(*results)
    return results[0][1]


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_every_loss_type_with_every_kind_of_term(loss_type, terms):
    metrics = compare(train_rows(mixed(0), dead_slots=(1, 4, 20)), TERMS[terms], loss_type=loss_type)
    assert metrics["shared_share"] > 0.5, "without branches it would be 0.4"
    assert metrics["padding_share"] <= 0.1


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_kind_of_rows(workload):
    rows = train_rows(WORKLOADS[workload](1), seed=3)
    metrics = compare(rows, (SDARTerm(coef=0.5), VALUE))
    assert (metrics["shared_share"] == 0) == (workload in ("unrelated", "one row"))


@pytest.mark.parametrize(
    "changes",
    [
        {"micro_batch_tokens": 1},
        {"micro_batch_tokens": 40},
        {"micro_batch_tokens": 100},
        {"per_device_train_batch_size": 1},
        {"per_device_train_batch_size": 2},
        {"per_device_train_batch_size": 7},
        {"micro_batch_tokens": 60, "per_device_train_batch_size": 3},
        {"beta": 0.0},
        {"entropy_coef": 0.0},
        {"entropy_coef": 0.5, "beta": 0.5, "delta": None},
    ],
    ids=str,
)
def test_under_every_option_that_cuts_or_weighs(changes):
    compare(train_rows(mixed(2)), (Pull(),), **changes)


@pytest.mark.parametrize("temperature", [0.4, 1.6, 0.0])
def test_at_any_temperature(temperature):
    sampling = config().sampling
    changed = type(sampling)(**{**vars(sampling), "temperature": temperature})
    compare(train_rows(trie(3)), sampling=changed)


@pytest.mark.parametrize("chunk_tokens", [1, 5])
@pytest.mark.parametrize("branches", [True, False], ids=["trees", "chains"])
def test_chunks_of_places_and_the_checkpointing_of_layers(branches, chunk_tokens):
    def make():
        model = tiny_model(tie_word_embeddings=False).train()
        model.gradient_checkpointing_enable()
        return scorer_of(model, heads(), chunk_tokens=chunk_tokens, branches=branches)

    compare(train_rows(siblings(3) + chains(3) + duplicates(3)), (VALUE,), make=make, micro_batch_tokens=150)


def test_with_an_adapter():
    peft = pytest.importorskip("peft")

    def make():
        torch.manual_seed(2)
        lora = peft.LoraConfig(
            r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM", lora_dropout=0.0
        )
        scorer = scorer_of(peft.get_peft_model(tiny_model(), lora).train())
        assert scorer.branches
        return scorer

    compare(train_rows(mixed(3)), (SDARTerm(),), make=make)


def test_opsd_without_a_policy_gradient_over_rows_without_advantage():
    rows = siblings(1)
    compare(train_rows(rows, dead_slots=rows.slots), (SDARTerm(coef=0.5),), 0.0, beta=0.0, entropy_coef=0.0)


def test_equal_rows_with_different_credit_each_count_for_themselves():
    """The same tokens twice: one is praised, one is blamed; and their gradients do not go by the first of them."""
    twice = Rows([(3, 4, 5)] * 2, [(6, 7)] * 2, [0, 1])
    once = Rows([(3, 4, 5)], [(6, 7)], [0])
    rows, alone = train_rows(twice), train_rows(once)
    rows.old_logprobs[:] = alone.old_logprobs[:] = -1.0
    plain = config(beta=0.0, entropy_coef=0.0, loss_type="token-mean", epsilon=1.0, epsilon_high=9.0, delta=None)
    for credit, factor in (([2.0, 1.0], 1.5), ([1.0, 2.0], 1.5), ([3.0, -1.0], 1.0), ([0.0, 1.0], 0.5)):
        rows.advantages[:] = torch.tensor(credit)[:, None]
        alone.advantages[:] = 1.0
        (got, _), (want, _) = gradient(rows, plain), gradient(alone, plain)
        for name, value in want.items():
            assert apart(got[name], factor * value) < 1e-5, (credit, name)


def test_the_order_of_rows_and_how_they_are_cut_change_nothing():
    rows = train_rows(mixed(4))
    whole = gradient(rows, config())
    order = torch.randperm(len(rows.prompts), generator=torch.Generator().manual_seed(3))
    for changed, settings in (
        (rows.select(order), config()),
        (rows, config(micro_batch_tokens=50)),
        (rows.select(order), config(per_device_train_batch_size=2)),
    ):
        assert_same(gradient(changed, settings), whole)


def test_the_same_bits_every_time():
    rows = train_rows(mixed(5))
    (first, metrics), (second, again) = (gradient(rows, config(micro_batch_tokens=120)) for _ in range(2))
    assert metrics == again
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_process_without_rows_and_rows_that_are_all_without_advantage():
    empty = train_rows(Rows([], [], []))
    got, metrics = gradient(empty, config())
    assert metrics is None
    assert all(value is None for value in got.values())
    rows = siblings(2)
    got, metrics = gradient(train_rows(rows, dead_slots=rows.slots), config())
    assert metrics is None


def test_the_shares_that_are_logged_are_those_of_the_model_calls():
    """Counted where the decoder is called, not where the plan is made."""
    rows = mixed(6)
    tokens = sum(map(len, rows.whole()))
    scorer, seen = scorer_of(tiny_model().train()), []
    run = scorer._split.hidden

    def watched(model, input_ids, *arguments, **options):
        seen.append(input_ids.numel())
        return run(model, input_ids, *arguments, **options)

    scorer._split.hidden = watched
    _, metrics = gradient(train_rows(rows), config(micro_batch_tokens=200), scorer=scorer)
    laid = sum(seen)
    computed = laid * (1 - metrics["padding_share"])
    assert 0 < metrics["padding_share"] <= 0.1
    assert metrics["shared_share"] == pytest.approx(1 - computed / tokens, abs=1e-6)
    seen.clear()
    _, metrics = gradient(train_rows(rows), config(micro_batch_tokens=200, share_prefixes=False), scorer=scorer)
    assert metrics["shared_share"] == 0
    assert metrics["padding_share"] == pytest.approx(1 - tokens / sum(seen), abs=1e-6)


class Cramped(PolicyScorer):
    """Runs out of memory while training on more than `room` places of ids."""

    room, failures = 10**9, 0

    def forward(self, input_ids, *arguments, **options):
        if input_ids.numel() > self.room and torch.is_grad_enabled():
            self.failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(input_ids, *arguments, **options)


def cramped(room: int) -> Cramped:
    scorer = Cramped(tiny_model().train())
    scorer.settle_branches()
    scorer.room = room
    return scorer


def test_running_out_of_memory_halves_the_micro_batches_once_and_keeps_the_gradient(caplog):
    rows, settings = train_rows(mixed(7)), config(micro_batch_tokens=300)
    whole = gradient(rows, config())
    limits = MicroBatchLimits.of(settings)
    largest = max(entry.size for entry in limits.plan(rows, cramped(0)))
    assert largest > 150
    scorer = cramped(largest - 1)
    got = gradient(rows, settings, scorer=scorer, limits=limits)
    assert scorer.failures == 1
    assert limits.tokens == 150
    assert "begins again" in caplog.text
    assert_same(got, whole)
    scorer.zero_grad()
    gradient(rows, settings, scorer=scorer, limits=limits)
    assert scorer.failures == 1, "the smaller size stays"
    with pytest.raises(MicroBatchTooLarge, match="out of memory"):
        gradient(rows, settings, scorer=cramped(0))


def test_a_tree_that_does_not_fit_is_cut_until_single_rows_fit():
    """One tree, no matter how many rows: halving goes on where the largest micro-batch is one sequence of many rows."""
    rows = train_rows(siblings(5, groups=1, size=8, prefix=20, turns=1))
    whole = gradient(rows, config())
    scorer, limits = cramped(30), MicroBatchLimits.of(config(micro_batch_tokens=64))
    got = None
    for _ in range(4):
        try:
            got = gradient(rows, config(micro_batch_tokens=64), scorer=scorer, limits=limits)
            break
        except MicroBatchTooLarge:
            scorer.zero_grad()
    assert got is not None
    assert_same(got, whole)
