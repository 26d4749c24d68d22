"""Which prompts are computed from where on, against a cache of plain lists."""

import random

import pytest

from turncredit.rollout.joins import common_tokens, plan_prefills, text_key


def test_keys_sort_and_compare_as_ids_do():
    texts = [(1, 2, 3), (1, 2), (1, 300), (70000,), (), (1, 2, 4), (256,)]
    assert [text_key(t) for t in sorted(texts)] == sorted(text_key(t) for t in texts)
    for one in texts:
        for other in texts:
            pairs = [a == b for a, b in zip(one, other, strict=False)]
            same = pairs.index(False) if False in pairs else len(pairs)
            assert common_tokens(text_key(one), text_key(other)) == same


@pytest.mark.parametrize("seed", range(40))
def test_every_row_ends_up_with_its_prompt(seed):
    draw = random.Random(seed)
    stems = [tuple(draw.choices(range(9), k=draw.choice([3, 30, 90, 200]))) for _ in range(3)]

    def text():
        stem = draw.choice(stems)
        return (*stem[: draw.randint(1, len(stem))], *draw.choices(range(9), k=draw.randint(0, 40)))

    cache = {row: list(text()) for row in range(12)}
    prompts = [text() for _ in range(4)]
    joining = {row: draw.choice([*prompts, (*cache[row], 1, 2)]) for row in draw.sample(range(12), 7)}
    known = {row: text_key(ids) for row, ids in cache.items()}
    plan = plan_prefills(joining, known)
    assert plan == plan_prefills(joining, known)
    computed = 0
    for group in plan:
        held = {row: list(ids) for row, ids in cache.items()}  # all are read before one is written
        for source, target, width in group.copies:
            cache[target] = held[source][:width]
        for prefill in group.prefills:
            row = prefill.rows[0]
            assert cache[row][: prefill.kept] == list(prefill.prompt[: prefill.kept])
            assert prefill.tokens >= 1
            cache[row] = list(prefill.prompt)
            computed += prefill.tokens
        for prefill in group.prefills:
            for row in prefill.rows[1:]:
                cache[row] = list(cache[prefill.rows[0]])
    assert all(cache[row] == list(prompt) for row, prompt in joining.items())
    assert computed <= sum(len(prompt) for prompt in set(joining.values()))


def test_a_long_system_prompt_is_computed_once_and_a_short_one_is_not_waited_for():
    long, short = tuple(range(1000, 1100)), (7, 8)
    system = {row: (*long, row) for row in range(6)}
    plan = plan_prefills(system, {})
    assert [len(group.prefills) for group in plan] == [1, 5]
    assert sum(prefill.tokens for group in plan for prefill in group.prefills) == 101 + 5
    assert len(plan_prefills({row: (*short, row) for row in range(6)}, {})) == 1


def test_prompts_of_very_different_lengths_do_not_pad_each_other():
    plan = plan_prefills({0: (1,) * 2000, **{row: (2, row) * 20 for row in range(1, 8)}}, {})
    assert [[prefill.tokens for prefill in group.prefills] for group in plan] == [[2000], [40] * 7]
