"""Normalisation, exact match and answer extraction against the published code's values and by hand."""

from __future__ import annotations

import json
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.envs.search_qa import dataset_metrics, exact_match, extract_answer, normalize_answer, sub_exact_match


@pytest.fixture(scope="module")
def golden(shared_dir):
    path = shared_dir / "search_qa" / "golden.json"
    if not path.is_file():
        pytest.skip("reference data (../shared/search_qa/golden.json) is not here")
    return json.loads(path.read_text(encoding="utf-8"))


def test_golden_normalisation_table(golden):
    assert len(golden["normalize"]) == 15
    assert {text: normalize_answer(text) for text in golden["normalize"]} == golden["normalize"]


def test_golden_match_table(golden):
    assert len(golden["em"]) == 9
    for row in golden["em"]:
        assert exact_match(row["pred"], [row["gold"]], strict_original=True) == bool(row["em"]), row
        assert sub_exact_match(row["pred"], [row["gold"]], strict_original=True) == bool(row["sub_em"]), row


def test_default_departs_from_the_golden_table_only_where_the_gold_is_empty(golden):
    departing = [row["gold"] for row in golden["em"] if exact_match(row["pred"], [row["gold"]]) != bool(row["em"])]
    assert departing == ["a"]


def test_golden_extraction_table(golden):
    assert [extract_answer(row["text"]) for row in golden["extract"]] == [r["verl_agent"] for r in golden["extract"]]


@pytest.mark.parametrize("gold", ["", "a", "The", "!?", " . an "])
@pytest.mark.parametrize("prediction", ["", "a", "the", "...", "Beijing"])
def test_a_gold_that_normalises_to_nothing_never_matches(gold, prediction):
    assert not exact_match(prediction, [gold])
    assert not sub_exact_match(prediction, [gold])


def test_any_gold_answer_counts():
    assert exact_match("the Peking City.", ["Beijing", "Peking city"])
    assert not exact_match("Peking", ["Beijing", "Peking city"])
    assert sub_exact_match("it is Peking City, I think", ["Beijing", "Peking city"])
    assert not exact_match("Peking", [])


@given(st.text())
def test_normalisation_leaves_nothing_to_normalise_but_articles_it_made(text):
    once = normalize_answer(text)
    assert once == once.strip()
    assert "  " not in once
    assert not set(once) & set(string.punctuation)
    assert re.search(r"\b(a|an|the)\b", once) is None


@given(st.text(), st.text())
def test_exact_match_implies_sub_match(prediction, gold):
    if exact_match(prediction, [gold]):
        assert sub_exact_match(prediction, [gold])


def test_dataset_metrics_by_hand():
    sources = ["nq", "nq", "hotpotqa", "musique", "bamboogle"]
    result = dataset_metrics(sources, [1.0, 0.0, 0.0, 1.0, 0.5])
    # nq 1/2, hotpotqa 0, musique 1, bamboogle 1/2: average 2/4; trained on (1/2 + 0)/2; held out (1 + 1/2)/2
    assert result == {
        "em/nq": 0.5,
        "em/hotpotqa": 0.0,
        "em/musique": 1.0,
        "em/bamboogle": 0.5,
        "em/average": 0.5,
        "em/in_domain": 0.25,
        "em/out_of_domain": 0.75,
    }


def test_dataset_metrics_of_other_datasets_have_no_domains():
    assert dataset_metrics(["mine"], [1.0], "sub_em") == {"sub_em/mine": 1.0, "sub_em/average": 1.0}


def test_dataset_metrics_refuses_uneven_input():
    with pytest.raises(ValueError, match=r"one per question.* 1 for 2"):
        dataset_metrics(["nq", "nq"], [1.0])
