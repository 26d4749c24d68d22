"""Metrics of parts of a batch, joined, are those of the whole, for every method; parts hold whole groups."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace

import pytest
import torch
from helpers.align_cases import inputs_of, random_case
from helpers.credit_cases import random_batch

from turncredit.credit import CreditInputs, Mean, get_credit, list_credits
from turncredit.credit.metrics import Deviation, Largest, Total, join_metrics
from turncredit.credit.posterior import facts_of

METHODS = [
    name
    for name in list_credits()
    if not name.startswith("align_opsd")
    and not {"correspondence", *get_credit(name).extras} & get_credit(name).requires
]
ROWS = {"response_mask", "trajectory_ids", "turn_ids", "student_logprobs", "teacher_logprobs", "valid_actions"}
ROWS |= {"span_mask", "anchor_ids", "turn_rewards"}


def part(inputs: CreditInputs, groups: list[int]) -> CreditInputs:
    """The trajectories of some groups, numbered anew."""
    keep = torch.isin(inputs.group_ids, torch.tensor(groups))
    rows = keep[inputs.trajectory_ids]
    changes = {}
    for field in fields(inputs):
        value = getattr(inputs, field.name)
        if isinstance(value, torch.Tensor):
            changes[field.name] = value[rows] if field.name in ROWS else value[keep]
    changes["trajectory_ids"] = (keep.cumsum(0) - 1)[changes["trajectory_ids"]]
    return replace(inputs, **changes)


def uneven(method, whole, parts):
    """Metrics of the whole and of the joined parts, which have unequal numbers of turns, tokens and trajectories."""
    found = [fitted_with(method, [q for q in parts if q is not p])(p).metrics for p in parts]
    joined = join_metrics(found, [p.num_trajectories for p in parts])
    return method(whole).metrics, joined


def fitted_with(method, others):
    """The method; posterior credit fits a part together with the others, as processes do."""
    if not method.name.startswith("posterior"):
        return method
    options = {name: method.options[name] for name in ("use", "outcome_discount")}
    return get_credit(method.name, others=[facts_of(other, **options) for other in others])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", METHODS)
def test_joined_parts_are_the_whole(name: str, seed: int) -> None:
    whole = random_batch(seed, groups=5, rollouts=5)
    ids = whole.group_ids.unique().tolist()
    parts = [part(whole, ids[:1]), part(whole, ids[1:])]
    assert parts[0].num_rows * 2 < parts[1].num_rows
    expected, joined = uneven(get_credit(name), whole, parts)
    assert joined == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert all(type(value) is float for value in joined.values())


@pytest.mark.parametrize("name", ["align_opsd", "align_opsd_token", "align_opsd_random", "align_opsd_no_rectification"])
def test_joined_parts_are_the_whole_for_align_opsd(name: str) -> None:
    case = random_case(4, groups=3)
    case["valid"][0] = False
    trajectories, rows = case["group"], case["trajectory"]

    def of(groups):
        old = [m for m, i in enumerate(rows) if trajectories[i] in groups]
        names = [i for i, g in enumerate(trajectories) if g in groups]
        pick = {key: [case[key][m] for m in old] for key in ("turn", "mask", "student", "teacher", "valid")}
        pick |= {key: [case[key][m] for m in old] for key in ("source_valid", "target_valid")}
        pick["trajectory"] = [names.index(rows[m]) for m in old]
        pick["group"], pick["reward"] = ([case[key][i] for i in names] for key in ("group", "reward"))
        pick["similarity"] = [[case["similarity"][v][u] for u in old] for v in old]
        pick["cross"] = {
            (old.index(v), old.index(u)): scores for (v, u), scores in case["cross"].items() if v in old and u in old
        }
        return inputs_of(pick, with_valid=True)

    method = get_credit(name, threshold=0.05)
    if name == "align_opsd_random":  # its draws depend on the place of a trajectory in the batch
        method = get_credit(name, threshold=0.05, min_span=1, max_span=1)
    expected, joined = uneven(method, inputs_of(case, with_valid=True), [of([100]), of([93, 86])])
    assert joined == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_join_by_hand() -> None:
    parts = [
        {"a": Mean(1.0, 3), "b": Deviation(0.0, 1.0, 1), "c": Total(2), "d": Largest(4.0), "e": 1.0, "f": Mean(0.0, 0)},
        {
            "a": Mean(5.0, 1),
            "b": Deviation(0.0, 3.0, 1),
            "c": Total(3),
            "d": Largest(-1.0),
            "e": 4.0,
            "f": Mean(0.0, 0),
        },
        {"a": Mean(9.0, 0), "g": Mean(7.0, 5)},
    ]
    joined = join_metrics(parts, [2, 1, 0])
    # a: (3 + 5) / 4; b: values 1 and 3; e: plain floats by trajectories
    assert joined == {"a": 2.0, "b": 1.0, "c": 5.0, "d": 4.0, "e": 2.0, "f": 0.0, "g": 7.0}


def test_they_are_numbers_and_travel_between_processes() -> None:
    for value in (Mean(0.5, 3), Deviation(0.5, 2.0, 4), Total(0.5), Largest(0.5)):
        copy = pickle.loads(pickle.dumps(value))
        assert copy == value == 0.5
        assert type(copy) is type(value)
        assert vars(copy) == vars(value)
