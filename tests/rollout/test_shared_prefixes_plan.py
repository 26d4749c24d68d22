"""The plan of shared prefixes without a model: who computes what, how wide, how much padding, and who sees whom."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from helpers.prefix_cases import WORKLOADS, Rows, chains, from_pairs, prefix_tokens, siblings, trie, trie_nodes

from turncredit.rollout.packing import pack, pack_rows, plan_micro_batches, plan_packs

HUGE = 10**9
FREE = 0.0
"""Cost of attention per key: with none, every shared token pays."""


def plan_of(rows: Rows, max_tokens: int = HUGE, branches: bool = True, attention_cost: float = FREE, **options):
    options = {"branches": branches, "attention_cost": attention_cost, **options}
    return plan_packs(rows.prompts, rows.responses, max_tokens, **options)


def packed_of(rows: Rows, entry):
    return pack(entry, rows.prompts, rows.responses, 0, "cpu")


def seen_by(packed, place: int) -> list[int]:
    """The places that a place attends to, in order: a plain loop over the definition."""
    width = packed.input_ids.shape[1]
    first = place - place % width
    ends = [width] * width if packed.ends is None else packed.ends[place // width].tolist()
    return [first + j for j in range(place - first + 1) if place - first < ends[j]]


def check_targets(rows: Rows, entry, packed) -> set[int]:
    """Every target stands where exactly its own past can be seen, token by token; returns all places that are used."""
    ids, used, target = packed.input_ids.flatten().tolist(), set(), 0
    depths = None if packed.position_ids is None else packed.position_ids.flatten().tolist()
    assert list(packed.lengths) == [len(rows.responses[row]) for row in entry.rows]
    for row in entry.rows:
        past = list(rows.prompts[row])
        for token in rows.responses[row]:
            place = target if packed.picks is None else int(packed.picks[target])
            seen = seen_by(packed, int(packed.positions[place]))
            assert [ids[j] for j in seen] == past
            assert int(packed.targets[target]) == token
            if depths is not None:
                assert [depths[j] for j in seen] == list(range(len(past)))
            used.update(seen)
            past.append(token)
            target += 1
    assert target == len(packed.targets)
    assert len(set(packed.positions.tolist())) == len(packed.positions), "a place is visited once"
    if packed.picks is not None:  # and nothing that nobody wants
        assert sorted(set(packed.picks.tolist())) == list(range(len(packed.positions)))
    return used


def check_plan(rows: Rows, plan, max_tokens: int, max_rows: int | None = None) -> tuple[int, int]:
    """Every rule of a plan; returns tokens laid out without padding, and places that somebody looks at."""
    assert sorted(row for entry in plan for row in entry.rows) == list(range(len(rows)))
    whole, laid, used = rows.whole(), 0, 0
    for entry in plan:
        packed = packed_of(rows, entry)
        count, width = packed.input_ids.shape
        if count * width > max_tokens:
            assert count == 1
            assert width == max(len(whole[row]) for row in entry.rows), "only a row may be too long, no pack of rows"
        lone = count == 1 and packed.ends is None  # rows that lie within one of them
        assert max_rows is None or len(entry.rows) <= max_rows or lone
        places = check_targets(rows, entry, packed)
        last = sum(len(whole[row]) > 0 for row in entry.rows)  # the last token of a row is seen by no target
        assert count * width - len(places) - last <= 0.1 * count * width, "more than a tenth of it is padding"
        assert entry.size == count * width
        assert len(places) <= entry.tokens <= len(places) + last
        assert entry.separate == sum(len(whole[row]) for row in entry.rows)
        laid += entry.tokens
        used += len(places)
    return laid, used


@pytest.mark.parametrize("branches", [True, False], ids=["trees", "chains"])
@pytest.mark.parametrize("max_tokens", [1, 30, 100, HUGE])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_target_sees_its_own_past_and_nothing_else(workload, max_tokens, branches):
    for seed in range(2):
        rows = WORKLOADS[workload](seed)
        check_plan(rows, plan_of(rows, max_tokens, branches), max_tokens)


def test_random_tries_under_random_limits():
    rng = random.Random(7)
    for seed in range(60):
        lowest = rng.choice([3, 250, 65530, 151640])  # ids of several bytes
        vocabulary = (lowest, lowest + rng.randint(1, 8))
        rows = trie(seed, rng.randint(1, 30), vocabulary, rng.randint(2, 20))
        max_tokens, max_rows = rng.randint(1, 200), rng.choice([None, 1, 2, 5])
        cost = rng.choice([0.0, 1e-4, 1e-2, 1.0])
        plan = plan_of(rows, max_tokens, rng.random() < 0.7, cost, max_rows=max_rows)
        check_plan(rows, plan, max_tokens, max_rows)


@pytest.mark.parametrize("cost", [0.0, 1e-3])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_plan_is_a_pure_function_of_the_tokens(workload, cost):
    rows = WORKLOADS[workload](3)
    before = copy.deepcopy(rows)
    plan = plan_of(rows, 90, attention_cost=cost)
    assert rows == before
    random.seed(0)  # no chance is involved
    torch.manual_seed(1)
    assert [entry.rows for entry in plan_of(copy.deepcopy(rows), 90, attention_cost=cost)] == [e.rows for e in plan]
    lists = Rows([list(p) for p in rows.prompts], [list(r) for r in rows.responses], rows.slots)
    assert [entry.rows for entry in plan_of(lists, 90, attention_cost=cost)] == [e.rows for e in plan]


def test_no_rows_make_no_plan():
    assert plan_of(Rows([], [], [])) == []
    assert plan_of(Rows([], [], []), branches=False) == []


@pytest.mark.parametrize("workload", WORKLOADS)
def test_where_everything_is_merged_a_token_is_computed_once(workload):
    """Counted independently: different prefixes of the rows, in a set."""
    for seed in range(3):
        rows = WORKLOADS[workload](seed)
        whole = rows.whole()
        plan = plan_of(rows)
        laid, used = check_plan(rows, plan, HUGE)
        assert laid == trie_nodes(whole)
        assert used == len({ids[:k] for ids in whole for k in range(1, len(ids))}), "all but last tokens"


@pytest.mark.parametrize("workload", WORKLOADS)
def test_without_branches_only_rows_that_are_another_ones_beginning_are_merged(workload):
    for seed in range(3):
        rows = WORKLOADS[workload](seed)
        plan = plan_of(rows, branches=False)
        laid, _ = check_plan(rows, plan, HUGE)
        assert laid == prefix_tokens(rows)
        for entry in plan:
            packed = packed_of(rows, entry)
            assert packed.ends is None, "a plain causal sequence needs no mask"
            assert packed.position_ids is None


def test_an_append_only_history_is_one_sequence():
    rows = chains(1, trajectories=1, turns=9)
    for branches in (True, False):
        (entry,) = plan_of(rows, branches=branches)
        packed = packed_of(rows, entry)
        assert packed.ends is None or bool((packed.ends == packed.ends[0, 0]).all())
        assert packed.input_ids.numel() == len(rows.whole()[-1])


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("max_tokens", [1, 40, 4096])
def test_without_sharing_it_is_the_plan_of_before(workload, max_tokens):
    rows = WORKLOADS[workload](0)
    plan = plan_of(rows, max_tokens, share=False)
    assert [list(entry.rows) for entry in plan] == plan_micro_batches([len(ids) for ids in rows.whole()], max_tokens)
    for entry in plan:
        got = packed_of(rows, entry)
        want = pack_rows([rows.prompts[i] for i in entry.rows], [rows.responses[i] for i in entry.rows], 0)
        assert torch.equal(got.input_ids, want.input_ids)
        assert torch.equal(got.positions, want.positions)
        assert torch.equal(got.targets, want.targets)
        assert tuple(got.lengths) == tuple(want.lengths)
        assert (got.picks, got.ends, got.position_ids) == (None, None, None)


def test_a_limit_on_rows_also_holds_without_sharing():
    rows = siblings()
    for share in (True, False):
        assert max(len(entry.rows) for entry in plan_of(rows, share=share, max_rows=3)) in (2, 3)


def cost(width: int, attention_cost: float, masked: bool = False) -> float:
    """Of one sequence; a mask is no longer known to be a triangle."""
    return width * (1 + attention_cost * width / (1 if masked else 2))


@pytest.mark.parametrize("prefix", [1, 5, 50, 400])
def test_sharing_never_costs_more_than_it_saves(prefix):
    """64 rows of 100 tokens of their own behind a common beginning, at the cost of attention in a model of 896."""
    rng = random.Random(0)
    common = tuple(rng.randrange(2, 22) for _ in range(prefix))
    rows = from_pairs([(common + (2 + i % 20, 2 + i // 20) + (7,) * 68, (3,) * 30) for i in range(64)])
    attention = 1 / (6 * 896)
    plan = plan_of(rows, 16384, attention_cost=attention)
    check_plan(rows, plan, 16384)
    together, widest = 0.0, 0
    for entry in plan:
        packed = packed_of(rows, entry)
        count, width = packed.input_ids.shape
        together += count * cost(width, attention, packed.ends is not None)
        widest = max(width, widest)
    separate = 64 * cost(prefix + 100, attention)
    assert together <= separate
    if prefix == 400:  # four fifths of every row are the same: most of it is saved
        assert together < 0.5 * separate
    if prefix == 5:
        assert widest < 64 * 100, "no giant tree for the sake of five tokens"


def test_the_more_attention_costs_the_less_is_shared():
    rows = siblings(0, groups=3, size=6, prefix=30)
    laid = [check_plan(rows, plan_of(rows, attention_cost=cost), HUGE)[0] for cost in (0.0, 0.01, 10.0)]
    assert laid[0] <= laid[1] <= laid[2]
    assert laid[0] < laid[2]
