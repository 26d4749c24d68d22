"""WebShop's parts that need no search library: files, prices, goals, matching, nouns, reward, prompts, skills."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.envs import HistoryEntry, Observation
from turncredit.envs.webshop import (
    build_goals,
    build_products,
    data_files,
    generate_catalogue,
    goal_hint,
    parse_response,
    purchase_reward,
    skill_bank,
    skills_for,
    split_ranges,
    task_type_from_text,
    title_nouns,
    webshop_messages,
)
from turncredit.envs.webshop.data import fixed_price, iter_json_array, parse_options, parse_price
from turncredit.envs.webshop.goals import NO_LIMIT
from turncredit.envs.webshop.hints import wanted_values
from turncredit.envs.webshop.matching import normalize_colour, token_set_ratio
from turncredit.envs.webshop.nouns import read_nouns, rule_nouns, write_nouns
from turncredit.envs.webshop.pages import sub_page
from turncredit.envs.webshop.reward import has_attribute, option_targets, type_reward


def record(asin: str = "A1", **changes):
    raw = {
        "asin": asin,
        "name": "Plain Oak Chair",
        "full_description": "A chair for the kitchen.",
        "small_description": ["made of oak", "easy to clean"],
        "category": "garden",
        "query": " Kitchen Chairs ",
        "product_category": "Home \u203a Furniture \u203a Chairs",
        "customization_options": {"Color": [{"value": "Dark Blue"}, {"value": "Red/White"}]},
        "pricing": "$45.0",
    }
    return {**raw, **changes}


EXTRA = {
    "attributes": ["solid wood", "easy clean"],
    "instruction": "Find me chairs",
    "instruction_attributes": ["solid wood"],
}


def chair(**changes):
    return build_products([record(**changes)], {"A1": EXTRA})[0]


@pytest.mark.parametrize(
    ("text", "prices"),
    [
        ("$877.8", (877.8,)),
        ("$3.99 - $10.99", (3.99, 10.99)),
        ("$1,299.00", (1299.0,)),
        ("", (100.0,)),
        (None, (100.0,)),
    ],
)
def test_prices(text, prices):
    assert parse_price(text) == prices


def test_options_are_normalised_and_missing_ones_left_out():
    assert parse_options({"Size": [{"value": " S/M "}], "Color": None}) == {"size": ("s | m",)}
    assert parse_options("") == {}


def test_a_product_is_read():
    product = chair()
    assert (product.query, product.price, product.price_tag) == ("kitchen chairs", 45.0, "$45.0")
    assert product.options == {"color": ("dark blue", "red | white")}


def test_a_product_without_attribute_record_gets_the_originals_placeholder():
    assert build_products([record()], {})[0].attributes == ("DUMMY_ATTR",)


def test_repeated_and_odd_ids_are_left_out():
    raw = [record("A1"), record("A1", name="other"), record("nan"), record("A" * 11), record("A2")]
    assert [product.asin for product in build_products(raw, {})] == ["A1", "A2"]


def test_a_price_range_is_fixed_per_product():
    assert fixed_price("A1", (10.0, 20.0)) == fixed_price("A1", (10.0, 20.0)) != fixed_price("A2", (10.0, 20.0))
    assert 10.0 <= fixed_price("A1", (10.0, 20.0)) <= 20.0
    alone = chair(pricing="$10 - $20")
    among = build_products([record("B1", pricing="$1 - $9"), record(pricing="$10 - $20")], {})[1]
    assert alone.price == among.price


def test_an_empty_catalogue_and_a_missing_field_are_named():
    with pytest.raises(ValueError, match="at least one product"):
        build_products([], {})
    broken = record()
    del broken["name"]
    with pytest.raises(ValueError, match="must hold 'name'"):
        build_products([broken], {})


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=3), max_size=6), st.integers(1, 40))
def test_array_reader_equals_json(tmp_path_factory, values, chunk):
    path = tmp_path_factory.mktemp("array") / "items.json"
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")
    assert list(iter_json_array(path, chunk)) == values


@pytest.mark.parametrize("text", ['{"a": 1}', '[{"a": 1}', '[{"a": 1}, {"a": ', ""])
def test_array_reader_rejects_other_files(tmp_path: Path, text: str):
    path = tmp_path / "items.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="JSON array"):
        list(iter_json_array(path))


def test_data_files_names_what_is_missing(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="folder must exist"):
        data_files(tmp_path / "none")
    (tmp_path / "items_shuffle_1000.json").write_text("[]")
    with pytest.raises(FileNotFoundError, match="items_ins_v2"):
        data_files(tmp_path)
    (tmp_path / "items_ins_v2_1000.json").write_text("{}")
    assert data_files(tmp_path).human is None


def test_goals_are_all_combinations_with_limits_above_the_price():
    goals = build_goals([chair()])
    assert sorted(goal.options for goal in goals) == [(("color", "dark blue"),), (("color", "red | white"),)]
    assert {goal.id for goal in goals} == {"synthetic-0", "synthetic-1"}
    assert goals[0].price_upper in (60.0, 70.0, 80.0)  # the greater of two of 50, 60, 70, 80
    by_options = {goal.options: goal for goal in goals}
    blue = by_options[(("color", "dark blue"),)]
    assert (
        blue.instruction == f"Find me chairs with color: dark blue, and price lower than {blue.price_upper:.2f} dollars"
    )


def test_a_dear_product_has_no_limit():
    goal = build_goals([chair(pricing="$2000")])[0]
    assert goal.price_upper == NO_LIMIT
    assert "price" not in goal.instruction


def test_goals_without_instructions_are_an_error():
    with pytest.raises(ValueError, match="human goals"):
        build_goals([chair()], "human")


def test_human_goals_keep_their_words():
    wishes = [("i want a chair.", ["solid wood"], ["dark blue"]), ("skipped", [], [])]
    keys = ("instruction", "instruction_attributes", "instruction_options")
    human = {"A1": [dict(zip(keys, wish, strict=True)) for wish in wishes]}
    goals = build_goals(build_products([record()], {"A1": EXTRA}, human), "human")
    assert [goal.options for goal in goals] == [(("", "dark blue"),)]
    assert goals[0].instruction.startswith("i want a chair, and price lower than ")


@given(st.integers(0, 20000))
def test_splits_partition_the_goals(count):
    parts = split_ranges(count)
    assert sorted(position for part in parts.values() for position in part) == list(range(count))
    if count >= 2000:
        assert (parts["test"], parts["eval"]) == (range(500), range(500, 1500))


def test_token_sets_by_hand():
    assert token_set_ratio("blue, and WHITE", "white") == 100  # one set holds the other
    # the common word "hair" against "hair care": 2 x 4 / 13 = 62; against "hair repair": 2 x 4 / 15 = 53; the two
    # against each other: blocks of 5 and 2 letters in common, 2 x 7 / 20 = 70
    assert token_set_ratio("hair care", "hair repair") == 70
    assert token_set_ratio("", "x") == token_set_ratio("...", "x") == 0
    assert token_set_ratio("caf\u00e9", "caf") == 100  # letters of Latin-1 are dropped, as in the original


@given(st.text("ab c-", max_size=12), st.text("ab c-", max_size=12))
def test_token_set_ratio_equals_the_naive_form(first, second):
    left, right = set(first.replace("-", " ").split()), set(second.replace("-", " ").split())
    common = " ".join(sorted(left & right))
    texts = [
        common,
        f"{common} {' '.join(sorted(left - right))}".strip(),
        f"{common} {' '.join(sorted(right - left))}".strip(),
    ]
    pairs = [(texts[0], texts[1]), (texts[0], texts[2]), (texts[1], texts[2])]
    scores = [round(100 * SequenceMatcher(None, a, b).ratio()) if a and b else 0 for a, b in pairs]
    assert token_set_ratio(first, second) == (max(scores) if left and right else 0)


def test_colours_stand_for_values():
    assert [normalize_colour(text) for text in ("c2-wine", "dark red", "tangerine", "xl")] == [
        "wine",
        "dark",
        "tan",
        "xl",
    ]


def test_reward_by_hand():
    """One attribute found, the option missed, price within: (1 + 0 + 1) / (1 + 1 + 1) * 1 = 2/3."""
    product = chair()
    goal = {goal.options[0][1]: goal for goal in build_goals([product])}["dark blue"]
    judged = purchase_reward(product, goal, {"color": "red | white"}, rule_nouns)
    assert judged.value == pytest.approx(2 / 3)
    assert judged.parts() == {
        "r_type": 1.0, "r_att": 1.0, "w_att": 1 / 3, "query_match": True, "category_match": True, "title_score": 1.0,
        "r_option": 0.0, "w_option": 1 / 3, "r_price": True, "w_price": 1 / 3,
    }  # fmt: skip
    assert purchase_reward(product, goal, {"color": "dark blue"}, rule_nouns).value == 1.0
    assert purchase_reward(product, goal, {"color": "dark blue"}, rule_nouns, price=999.0).value == pytest.approx(2 / 3)


def test_no_options_leave_no_option_parts():
    product = chair(customization_options="")
    judged = purchase_reward(product, build_goals([product])[0], {}, rule_nouns)
    assert judged.value == 1.0
    assert "r_option" not in judged.parts()


@pytest.mark.parametrize(
    ("shared", "nouns", "query", "category", "expected"),
    [
        (0, 5, "kitchen chairs", True, 0.0),  # title score 0
        (1, 20, "kitchen chairs", True, 0.1),  # below 0.1
        (1, 5, "other", False, 0.5),  # exactly 0.2 is no match
        (2, 5, "other", False, 1.0),
        (1, 5, "kitchen chairs", False, 1.0),
        (1, 5, "other", True, 1.0),
        (0, 0, "other", False, 0.5),  # no nouns: 0.2
    ],
)
def test_type_reward_table(shared, nouns, query, category, expected):
    goal = replace(build_goals([chair()])[0], query=query, name="wanted")
    goal = goal if category else replace(goal, product_category="Else")
    table = {"wanted": [f"n{i}" for i in range(nouns)], "Plain Oak Chair": [f"n{i}" for i in range(shared)]}
    assert type_reward(chair(), goal, table.__getitem__)[0] == expected


def test_attributes_are_found_in_lists_and_texts():
    product = chair()
    assert has_attribute(product, "solid wood")
    assert has_attribute(product, "kitchen")
    assert not has_attribute(product, "waterproof")


def test_strict_targets_repeat_the_originals_pairs():
    goal = replace(build_goals([chair()])[0], options=(("color", "blue"), ("size", "tangerine")))
    assert option_targets(goal) == ["blue", "tan"]
    assert option_targets(goal, strict_original=True) == ["blue", "('size', 'tangerine')"]
    assert option_targets(replace(goal, named_options=False), strict_original=True) == ["blue", "tan"]


def test_noun_sources_are_logged_once(tmp_path: Path, caplog):
    path = tmp_path / "nouns.json"
    assert write_nouns([chair()], lambda title: ("chair",), path) == 1
    assert read_nouns(path) == {"Plain Oak Chair": ("chair",)}
    with caplog.at_level(logging.INFO, "turncredit.envs.webshop.nouns"):
        nouns = title_nouns(path, titles=["Plain Oak Chair", "Tin Cup"])
        title_nouns(path, titles=["Plain Oak Chair", "Tin Cup"])
    assert len(caplog.records) == 1
    assert "1 of 2 titles" in caplog.text
    assert nouns("Plain Oak Chair") == ("chair",)
    assert nouns("Tin Cup") == ("tin", "cup")


def test_a_malformed_noun_file_is_named(tmp_path: Path):
    path = tmp_path / "nouns.json"
    path.write_text('{"A1": ["chair"]}')
    with pytest.raises(ValueError, match="read_nouns: path must hold"):
        title_nouns(path)


def test_generated_shop_is_seeded():
    assert generate_catalogue(30, 1) == generate_catalogue(30, 1)
    assert generate_catalogue(30, 1) != generate_catalogue(30, 2)
    with pytest.raises(ValueError, match="at least 1"):
        generate_catalogue(0)


def test_generated_goals_are_winnable_and_told_apart():
    products = build_products(*generate_catalogue(120, 3))
    goals = build_goals(products)
    by_asin = {product.asin: product for product in products}
    assert {goal.category for goal in goals} == {"beauty", "electronics", "fashion", "garden", "grocery"}
    assert all(purchase_reward(by_asin[goal.asin], goal, dict(goal.options), rule_nouns).value == 1.0 for goal in goals)
    rng = random.Random(0)
    others = [purchase_reward(rng.choice(products), goal, {}, rule_nouns).value for goal in goals]
    assert sum(value == 1.0 for value in others) < 0.02 * len(others)


def test_empty_texts_leave_no_gap_on_a_page():
    product = chair(full_description="", small_description=["oak", ""])
    assert sub_page(product, "Description").body == "Back to Search [SEP] < Prev"
    assert sub_page(product, "Features").body == "Back to Search [SEP] < Prev [SEP] oak"


def test_wanted_values_find_what_a_person_meant():
    goal = replace(build_goals([chair()])[0], options=(("", "blue"),), named_options=False)
    assert wanted_values(goal, chair()) == ["dark blue"]
    with pytest.raises(ValueError, match="must offer 'green'"):
        wanted_values(replace(goal, options=(("", "green"),)), chair())


def test_hint_holds_the_facts():
    text = goal_hint(build_goals([chair()])[0]).text
    assert all(part in text for part in ("Plain Oak Chair", "A1", "solid wood", "color: ", "dollars"))


def test_skills_by_department():
    assert set(skill_bank()) == {"general", "beauty", "electronics", "fashion", "garden", "grocery"}
    kinds = {skill.type for skill in skills_for("fashion", "a hair mask")}
    assert kinds == {"general", "fashion"}
    assert {skill.type for skill in skills_for(None, "i need a 120 ml hair mask")} == {"general", "beauty"}
    assert {skill.type for skill in skills_for("toys", "a gift")} == {"general"}
    assert task_type_from_text("wireless headphones") == "electronics"


def test_prompt_names_the_wish_once_and_keeps_two_turns():
    wish = "a red cap"
    page = f"Instruction: [SEP] {wish} [SEP] Back to Search [SEP] page "
    history = [HistoryEntry(page + str(turn), f"click[{turn}]") for turn in range(4)]
    observation = Observation(page + "now" + "x" * 50, ("click[< prev]", "click[buy now]"))
    (message,) = webshop_messages(wish, history, observation, page_limit=30)
    text = message["content"]
    assert message["role"] == "user"
    assert text.count(wish) == 1
    assert "click[1]" not in text
    assert "[Step 3] Action: click[2]" in text
    assert "[Step 4] Action: click[3]" in text
    assert "- click[buy now]" in text
    assert "[cut]" in text
    assert "click[3]" not in webshop_messages(wish, history, observation, history_length=0)[0]["content"]
    with pytest.raises(ValueError, match="history_length and page_limit"):
        webshop_messages(wish, history, observation, history_length=-1)


def test_responses_are_taken_apart():
    response = "<think> jeans </think><action> search[Men's Jeans] </action> more"
    parsed = parse_response(response)
    assert (parsed.thinking, parsed.action, parsed.valid) == ("jeans", "search[Men's Jeans]", True)
    assert response[slice(*parsed.action_span)] == " search[Men's Jeans] "
    assert not parse_response("<action>search[x]</action>").valid
    assert parse_response("<think>a").action == ""


@given(st.text())
def test_any_response_is_taken_apart(text):
    parsed = parse_response(text)
    assert parsed.valid in (True, False)
    assert parsed.action == parsed.action.strip()
