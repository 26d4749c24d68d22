"""WebShop against the original: transcripts, rewards, rankings. Skipped where the reference data is absent."""

from __future__ import annotations

import itertools
import json
import random
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("bm25s", reason='needs the extra: pip install "turncredit[webshop]"')
pytest.importorskip("Stemmer", reason='needs the extra: pip install "turncredit[webshop]"')

from turncredit.envs.webshop import (
    ShopConfig,
    WebShopEnv,
    build_products,
    data_files,
    goal_from_record,
    load_shop,
    purchase_reward,
    title_nouns,
)
from turncredit.envs.webshop.data import iter_json_array
from turncredit.envs.webshop.search import SearchIndex


@pytest.fixture(scope="session")
def folder(shared_dir: Path) -> Path:
    path = shared_dir / "webshop"
    if not path.is_dir():
        pytest.skip("reference data (../shared/webshop) is not here")
    return path


def strict_env(folder: Path, kind: str) -> WebShopEnv:
    config = ShopConfig(data=str(folder), goals=kind, strict_original=True, seed=0, shuffle_seed=0, cache_dir=None)
    return WebShopEnv(load_shop(config))


def read(folder: Path, name: str):
    return json.loads((folder / name).read_text(encoding="utf-8"))


def actions_listed(observation):
    return {
        "has_search_bar": observation.info["has_search_bar"],
        "clickables": list(observation.info["clickables"]),
    }


def test_navigation_transcripts_are_equal(folder: Path):
    steps = 0
    for script in read(folder, "golden_transcripts.json")["navigation"]:
        env = strict_env(folder, script["goals"])
        observation = env.reset(f"{script['goals']}-{script['goal_index']}")
        first, *rest = script["steps"]
        assert observation.text == first["observation"]
        assert actions_listed(observation) == first["available_actions"]
        for step in rest:
            result = env.step(step["action"])
            assert result.observation.text == step["observation"], (script["name"], step["action"])
            assert (result.reward, result.done) == (step["reward"], step["done"])
            if step["available_actions"] is not None:
                assert actions_listed(result.observation) == step["available_actions"]
            steps += 1
    assert steps > 25


def test_purchase_transcripts_are_equal(folder: Path):
    cases = read(folder, "golden_transcripts.json")["reward_cases"]
    assert len(cases) == 171
    texts = 0
    for case in cases:
        env = strict_env(folder, case["goals"])
        task_id = f"{case['goals']}-{case['goal_index']}"
        goal, wanted = env.shop.goal(task_id), goal_from_record(case["goal"])
        assert (goal.asin, goal.instruction, goal.attributes, goal.options, goal.price_upper) == (
            wanted.asin, wanted.instruction, wanted.attributes, wanted.options, wanted.price_upper,
        )  # fmt: skip
        observations = [env.reset(task_id).text]
        for action in case["actions"]:
            result = env.step(action)
            observations.append(result.observation.text)
        assert result.reward == case["reward"], case["id"]
        assert result.info["reward_parts"] == case["verbose_info"], case["id"]
        assert result.info["options"] == case["session_options"]
        assert result.success is case["success"]
        assert env.shop.products[case["purchased_asin"]].price == case["price_used"]
        assert observations[-1] == case["done_observation"]
        if case["observations"] is not None:
            assert observations[: len(case["observations"])] == case["observations"], case["id"]
            texts += len(case["observations"])
    assert texts > 80


def test_all_thousand_rewards_are_equal(folder: Path):
    files = data_files(folder)
    products = {
        product.asin: product
        for product in build_products(iter_json_array(files.products), read(folder, files.attributes.name))
    }
    nouns = title_nouns(files.nouns)
    cases = read(folder, "golden_rewards.json")
    differing = []
    for case in cases:
        judged = purchase_reward(
            products[case["asin"]],
            goal_from_record(case["goal"]),
            case["options"],
            nouns,
            price=case["price"],
            strict_original=True,
        )
        if judged.value != case["reward"] or judged.parts() != case["info"]:
            differing.append(case["asin"])
    assert (len(cases), differing) == (1000, [])


def test_rankings_agree(folder: Path):
    files = data_files(folder)
    products = build_products(iter_json_array(files.products), read(folder, files.attributes.name))
    index = SearchIndex(products)
    queries = read(folder, "golden_search.json")["queries"]
    same_ten = same_all = 0
    for query, golden in queries.items():
        ours = index.scored(query)
        assert [score for _, score in ours] == pytest.approx([score for _, score in golden], abs=2e-3)
        same_ten += [asin for asin, _ in ours[:10]] == [asin for asin, _ in golden[:10]]
        same_all += [asin for asin, _ in ours] == [asin for asin, _ in golden]
    assert same_ten / len(queries) >= 0.99
    assert same_all / len(queries) >= 0.99


def test_every_goal_can_be_won_with_its_own_product(folder: Path):
    """By default all 6910 synthetic goals; the strict mode loses 458 of them, as the original does."""
    shop = load_shop(ShopConfig(data=str(folder), cache_dir=None))
    nouns = shop.nouns
    lost = dict.fromkeys((False, True), 0)
    for goal in shop.goals.values():
        product = shop.products[goal.asin]
        for strict in lost:
            judged = purchase_reward(product, goal, dict(goal.options), nouns, strict_original=strict)
            lost[strict] += judged.value != 1.0
    assert (len(shop.goals), lost) == (6910, {False: 0, True: 458})


def test_splits_are_the_published_ones_and_disjoint(folder: Path):
    shop = load_shop(ShopConfig(data=str(folder), cache_dir=None))
    ids = {name: [goal.id for goal in shop.split(name)] for name in ("test", "eval", "train")}
    assert {name: len(goals) for name, goals in ids.items()} == {"test": 500, "eval": 1000, "train": 5410}
    assert len(set().union(*ids.values())) == 6910
    keys = [
        (record["asin"], tuple(values))
        for record in read(folder, "items_shuffle_1000.json")
        if read_once(folder)[record["asin"]].get("instruction") is not None
        for values in itertools.product(*(values for _, values in sorted(raw_options(record).items())))
    ]
    random.Random(233).shuffle(keys)
    assert [(goal.asin, tuple(value for _, value in goal.options)) for goal in shop.goals.values()] == keys


@cache
def read_once(folder: Path):
    return read(folder, "items_ins_v2_1000.json")


def raw_options(record) -> dict[str, list[str]]:
    raw = record["customization_options"] or {}
    return {
        name.lower(): [entry["value"].strip().replace("/", " | ").lower() for entry in entries]
        for name, entries in raw.items()
        if entries is not None
    }


def test_human_goals_name_values_only(folder: Path):
    shop = load_shop(ShopConfig(data=str(folder), goals="human", cache_dir=None))
    assert len(shop.goals) == 13
    assert all(name == "" for goal in shop.goals.values() for name, _ in goal.options)
