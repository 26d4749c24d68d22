"""Rows in common sequences: layouts by hand, plans against their rules, scores against rows by themselves."""

import random

import pytest
import torch
from helpers.tiny import tiny_model

from turncredit.rollout import PolicyScorer, score_responses
from turncredit.rollout.packing import pack, pack_rows, plan_micro_batches, plan_packs

CHEAP = {"branches": True, "attention_cost": 1e-4}


def random_rows(seed, count=60, words=3, longest=9):
    """Rows over few words, so that many begin alike, continue one another or are the same."""
    draw = random.Random(seed)

    def ids():
        return tuple(draw.randrange(2, 2 + words) for _ in range(draw.randint(1, longest)))

    rows = [(ids(), ids()) for _ in range(count)]
    for _ in range(count // 2):
        prompt, response = draw.choice(rows)
        rows.append((prompt + response + ids(), ids()))
    return [p for p, _ in rows], [r for _, r in rows]


def test_a_row_that_continues_another_lies_in_its_sequence():
    prompts, responses = [(3, 4), (3, 4, 5, 6, 7), (9,)], [(5, 6), (8,), (3, 4, 5, 6)]
    plan = plan_packs(prompts, responses, 100, branches=False, attention_cost=1.0)
    assert [entry.rows for entry in plan] == [(0, 1, 2)] or [entry.rows for entry in plan] == [(0, 1), (2,)]
    packed = pack(plan[0], prompts, responses, 0)
    assert packed.input_ids[0].tolist() == [3, 4, 5, 6, 7, 8]
    assert packed.positions[:3].tolist() == [1, 2, 4]
    assert packed.targets[:3].tolist() == [5, 6, 8]
    assert packed.ends is packed.position_ids is packed.picks is None
    assert sum(entry.tokens for entry in plan) == 11
    assert sum(entry.separate for entry in plan) == 15


def test_a_tree_by_hand():
    prompts, responses = [(3, 4, 5)] * 3, [(6, 7), (6, 8), (9,)]
    (entry,) = plan_packs(prompts, responses, 100, **CHEAP)
    packed = pack(entry, prompts, responses, 0)
    assert entry.rows == (0, 1, 2)
    assert (entry.separate, entry.tokens, entry.size, entry.branches) == (14, 7, 7, 3)
    assert packed.input_ids.tolist() == [[3, 4, 5, 6, 7, 8, 9]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 4, 4, 3]]
    assert packed.ends.tolist() == [[7, 7, 7, 6, 5, 6, 7]]
    assert packed.positions.tolist() == [2, 3]
    assert packed.picks.tolist() == [0, 1, 0, 1, 0]
    assert packed.targets.tolist() == [6, 7, 6, 8, 9]
    assert packed.lengths == (2, 2, 1)


def test_pads_see_themselves_only_and_nothing_sees_them():
    prompts = [(3, 3, 3, 3, 3, 3)] * 2 + [(4, 4, 4, 4, 4, 4)] * 2
    responses = [(5,), (6,), (5, 5, 5), (6, 6)]
    (entry,) = plan_packs(prompts, responses, 100, max_padding=0.5, **CHEAP)
    packed = pack(entry, prompts, responses, 0)
    assert packed.input_ids.tolist()[1] == [3, 3, 3, 3, 3, 3, 5, 6, 0, 0, 0]
    assert packed.ends.tolist()[1] == [8] * 6 + [7, 8, 9, 10, 11]


def visible_ids(packed, row, place):
    seen = [j for j in range(place + 1) if place < int(packed.ends[row, j])] if packed.ends is not None else None
    seen = list(range(place + 1)) if seen is None else seen
    return packed.input_ids[row, seen].tolist()


@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_every_response_token_sees_its_row_and_nothing_else(seed, branches):
    prompts, responses = random_rows(seed, longest=3 + 3 * seed)
    plan = plan_packs(prompts, responses, 200, branches=branches, attention_cost=2e-3)
    assert sorted(row for entry in plan for row in entry.rows) == list(range(len(prompts)))
    for entry in plan:
        packed = pack(entry, prompts, responses, 0)
        assert packed.lengths == tuple(len(responses[row]) for row in entry.rows)
        places = packed.positions if packed.picks is None else packed.positions[packed.picks]
        assert len(packed.positions) == len(set(packed.positions.tolist()))
        width, target = packed.input_ids.shape[1], 0
        for row in entry.rows:
            for done, token in enumerate(responses[row]):
                number, place = divmod(int(places[target]), width)
                context = [*prompts[row], *responses[row][:done]]
                assert visible_ids(packed, number, place) == context
                assert packed.position_ids is None or packed.position_ids[number, place] == len(context) - 1
                assert packed.targets[target] == token
                target += 1


@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("limits", [(40, None), (200, 5), (10**6, None), (10**6, 1)])
def test_plans_keep_within_their_limits_and_pad_a_tenth_at_most(limits, branches):
    tokens, rows = limits
    prompts, responses = random_rows(3, count=200, longest=12)
    for entry in plan_packs(prompts, responses, tokens, branches=branches, attention_cost=1e-3, max_rows=rows):
        packed = pack(entry, prompts, responses, 0)
        assert packed.input_ids.numel() == entry.size
        assert entry.size <= tokens or entry.branches == 1
        assert rows is None or len(entry.rows) <= rows or entry.branches == 1
        assert entry.size - entry.tokens <= 0.1 * entry.size


def test_trees_are_made_where_they_cost_less():
    prompts, responses = [tuple(range(100, 120))] * 4, [(i, i) for i in range(4)]

    def sequences(cost):
        return sum(
            len(entry.sequences) for entry in plan_packs(prompts, responses, 10**6, branches=True, attention_cost=cost)
        )

    assert sequences(1e-4) == 1  # 28 tokens instead of 4 x 22
    assert sequences(10.0) == 1  # 28 x 28 attended to instead of 4 x 22 x 22 / 2
    apart = [(9, *range(100 * i, 100 * i + 20)) for i in range(4)]
    assert sum(len(e.sequences) for e in plan_packs(apart, responses, 10**6, branches=True, attention_cost=1e-2)) == 4


def test_without_sharing_plans_and_rows_are_those_of_before():
    prompts, responses = random_rows(1)
    lengths = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
    plan = plan_packs(prompts, responses, 60, branches=True, attention_cost=1.0, share=False)
    assert [list(entry.rows) for entry in plan] == plan_micro_batches(lengths, 60)
    rows = plan[0].rows
    packed = pack(plan[0], prompts, responses, 0)
    expected = pack_rows([prompts[i] for i in rows], [responses[i] for i in rows], 0)
    assert packed.input_ids.equal(expected.input_ids)
    assert packed.positions.equal(expected.positions)
    halves = plan_packs(prompts, responses, 60, branches=True, attention_cost=1.0, share=False, max_rows=2)
    assert max(len(entry.rows) for entry in halves) == 2


@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("chunk_tokens", [3, 4096])
def test_scores_are_those_of_rows_by_themselves(branches, chunk_tokens):
    torch.manual_seed(0)
    prompts, responses = random_rows(5)
    scorer = PolicyScorer(tiny_model(), {"value": torch.nn.Linear(32, 2)}, chunk_tokens=chunk_tokens)
    scorer.branches = branches
    options = {"pad_token_id": 0, "entropy": True, "modules": ("value",), "temperature": 0.7, "max_tokens": 150}
    shared = score_responses(scorer, prompts, responses, **options)
    plain = score_responses(scorer, prompts, responses, share_prefixes=False, **options)
    torch.testing.assert_close(shared.logprobs, plain.logprobs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(shared.entropy, plain.entropy, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(shared.outputs["value"], plain.outputs["value"], atol=1e-5, rtol=1e-5)
    assert sum(entry.tokens for entry in shared.packs) < 0.8 * sum(entry.separate for entry in shared.packs)


@pytest.mark.parametrize("chunk_tokens", [3, 4096])
def test_gradients_are_those_of_rows_by_themselves(chunk_tokens):
    prompts, responses = random_rows(7, count=20)
    gradients = []
    for share in (True, False):
        scorer = PolicyScorer(tiny_model(), chunk_tokens=chunk_tokens)
        plan = plan_packs(prompts, responses, 10**6, **CHEAP, share=share)
        for entry in plan:
            weights = torch.cat([torch.linspace(-1, 1, len(responses[row])) + row for row in entry.rows])
            logprobs, entropy = scorer(*pack(entry, prompts, responses, 0).inputs(1.0, True, 0, ()))
            ((logprobs + 0.1 * entropy) * weights).sum().backward()
        gradients.append([parameter.grad for parameter in scorer.parameters()])
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5 * float(want.abs().max()), rtol=1e-5)


def test_models_that_take_no_tree_say_so_once(caplog):
    scorer = PolicyScorer(tiny_model())
    scorer.model.config._attn_implementation = "flash_attention_2"
    assert scorer.settle_branches() is False
    assert scorer.settle_branches() is False
    (record,) = [record for record in caplog.records if record.name.endswith("scoring")]
    assert "flash_attention_2" in record.getMessage()
    assert type(scorer.model).__name__ in record.getMessage()
