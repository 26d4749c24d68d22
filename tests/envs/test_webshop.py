"""WebShop played on the generated shop: pages, no-ops, state, search index and cache, suite."""

from __future__ import annotations

import math
import pickle
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("bm25s", reason='needs the extra: pip install "turncredit[webshop]"')
pytest.importorskip("Stemmer", reason='needs the extra: pip install "turncredit[webshop]"')

from turncredit.envs import Environment, TaskSuite, VectorEnv
from turncredit.envs.webshop import (
    SearchIndex,
    ShopConfig,
    WebShopEnv,
    WebShopSuite,
    build_products,
    generate_catalogue,
    load_shop,
    replay,
)
from turncredit.envs.webshop.analysis import analyze, stem
from turncredit.envs.webshop.data import fixed_price, parse_price
from turncredit.envs.webshop.search import document, stored_length

CONFIG = ShopConfig(cache_dir=None, generated_products=240)


@pytest.fixture(autouse=True)
def generated(monkeypatch):
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)


@pytest.fixture(scope="module")
def suite() -> WebShopSuite:
    return WebShopSuite(CONFIG, privileged="both")


def new_env(suite: WebShopSuite, **options) -> WebShopEnv:
    return WebShopEnv(suite.shop, **options)


def test_protocols(suite):
    assert isinstance(suite, TaskSuite)
    env: Environment = pickle.loads(pickle.dumps(suite.make_env()))()
    env.reset(suite.tasks("eval")[0].id)
    env.close()
    env.close()


def test_a_walk_to_the_purchase(suite):
    env = new_env(suite)
    for task in suite.tasks("eval")[:40]:
        first = env.reset(task.id)
        assert first.admissible_actions == ("search[<your query>]",)
        *way, last = suite.walkthrough(task)
        for action in way:
            result = env.step(action)
            assert result.valid
            assert (result.reward, result.done, result.success) == (0.0, False, False)
            assert list(result.observation.admissible_actions) == sorted(result.observation.admissible_actions)
        result = env.step(last)
        assert (result.reward, result.done, result.success, result.info["score"]) == (1.0, True, True, 100.0)
        assert result.info["task_type"] == task.type


MALFORMED = [
    "", " ", "search", "search[]", "search[", "[shoes]", "click", "click[]", "click[search]", "click[nothing here]",
    "Search[shoes]", "CLICK[back to search]", "buy[now]", "click[buy now]", "click[< prev]", "click[next >]",
    "<action>search[shoes]</action>", "\x00\ud800", "look around[", "click [back to search]", "no\nsearch[shoes]",
    "search[\n]", None, 7, b"search[shoes]", ["search[shoes]"],
]  # fmt: skip


@pytest.mark.parametrize("action", MALFORMED)
def test_malformed_actions_cost_the_turn_and_change_nothing(suite, action):
    env = new_env(suite)
    before = env.reset(suite.tasks("train")[0].id)
    result = env.step(action)
    assert not result.valid
    assert (result.observation, result.reward, result.done) == (before, 0.0, False)


RESPONSES = [
    "", "search", "<action></action>", "<think></think>", "<think>a</think>", "<action>search[</action>",
    "<action>click[buy now]</action>", "</action>search[x]<action>", "<think>a</think><action>buy</action>",
    "<think><action>search[]</action></think>", "<ACTION>fly[away]</ACTION>", "\ud800", "<think>a<action>b",
    "<action>click[search]</action>", "<action>[ ]</action>", "<action>click[item - ]</action>", "{}", "null",
    "<action>search[]</action><action>search[y]</action>", "<think>x</think><action>Click[next >]</action>", "\n" * 9,
]  # fmt: skip


@pytest.mark.parametrize("response", RESPONSES)
def test_malformed_responses_never_raise(suite, response):
    env = new_env(suite)
    before = env.reset(suite.tasks("train")[1].id)
    parsed = suite.parse(response)
    result = env.step(parsed.action)
    assert not (parsed.valid and result.valid)
    assert result.observation == before


def test_action_form(suite):
    env = new_env(suite)
    task = suite.tasks("train")[0].id
    env.reset(task)
    wanted = env.step("search[rain jackets color]").observation
    assert "Page 1 (Total results: 50)" in wanted.text
    env.reset(task)
    assert env.step("search[RAIN Jackets COLOR] and then some").observation == wanted
    assert env.step("click[BACK TO Search]").valid
    env.reset(task)
    assert not env.step("search[a[rain jackets]").valid  # the verb runs to the last opening bracket


def test_pages_of_results(suite):
    env = new_env(suite)
    env.reset(suite.tasks("train")[0].id)
    seen = []
    result = env.step("search[rain jacket color]")
    for number in range(1, 7):
        text, clickables = result.observation.text, result.observation.info["clickables"]
        assert f"Page {number} (Total results: 50)" in text
        assert ("< prev" in clickables) is (number > 1)
        assert "next >" in clickables
        seen += [click for click in clickables if click.startswith("g0")]
        result = env.step("click[next >]")
    assert len(seen) == len(set(seen)) == 50
    assert "Page 6" in env.step("click[< prev]").observation.text
    assert "Total results: 0" in env.step("search[qqqqq]").observation.text


def test_options_survive_sub_pages_and_are_lost_on_the_way_back(suite):
    env = new_env(suite)
    task = next(task for task in suite.tasks("train") if suite.goal(task).options)
    *way, buy = suite.walkthrough(task)
    for detour, kept in (
        (["click[description]", "click[< prev]", "click[features]", "click[< prev]"], True),
        (["click[< prev]", way[-1 - len(suite.goal(task).options)]], False),
        (way[: 2 + way.count("click[next >]")], False),
    ):
        result = replay(env, task.id, [*way, *detour, buy])
        assert bool(result.info["options"]) is kept, detour
        assert result.success is kept


def test_a_later_choice_replaces_an_earlier_one(suite):
    env = new_env(suite)
    products = suite.shop.products
    task = next(
        task
        for task in suite.tasks("train")
        for goal in [suite.goal(task)]
        if goal.options and len(products[goal.asin].options[goal.options[0][0]]) > 1
    )
    goal = suite.goal(task)
    name, value = goal.options[0]
    other = next(entry for entry in products[goal.asin].options[name] if entry != value)
    *way, buy = suite.walkthrough(task)
    assert replay(env, task.id, [*way, f"click[{other}]", f"click[{value}]", buy]).success


def test_stepping_outside_an_episode_is_named(suite):
    env = new_env(suite)
    with pytest.raises(ValueError, match="got no episode"):
        env.step("search[x]")
    replay(env, suite.tasks("train")[0].id, suite.walkthrough(suite.tasks("train")[0]))
    with pytest.raises(ValueError, match="an episode that is over"):
        env.step("search[x]")
    with pytest.raises(KeyError, match="task_id must name a goal"):
        env.reset("synthetic-999999")


def test_replay_refuses_to_go_past_the_end(suite):
    task = suite.tasks("train")[0]
    with pytest.raises(ValueError, match="after the purchase"):
        replay(new_env(suite), task.id, [*suite.walkthrough(task), "search[x]"])


def random_episode(env: WebShopEnv, task_id: str, rng: random.Random, turns: int = 12):
    observation, actions, seen = env.reset(task_id), [], []
    for _ in range(turns):
        action = rng.choice([*observation.admissible_actions, "search[rain jackets]", "search[tea]", "nonsense"])
        result = env.step(action)
        actions.append(action)
        seen.append((result.observation, result.reward, result.done, result.valid))
        observation = result.observation
        if result.done:
            break
    return actions, seen


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_episodes_do_not_depend_on_what_was_played_before(seed):
    suite = WebShopSuite(CONFIG)
    rng = random.Random(seed)
    tasks = suite.tasks("train")
    used, fresh = new_env(suite), new_env(suite)
    random_episode(used, rng.choice(tasks).id, rng)
    task = rng.choice(tasks)
    actions, seen = random_episode(used, task.id, rng)
    assert fresh.reset(task.id).text == used.reset(task.id).text
    again = [fresh.step(action) for action in actions]
    assert [(result.observation, result.reward, result.done, result.valid) for result in again] == seen
    middle = replay(used, task.id, actions[: len(actions) // 2])
    if actions[: len(actions) // 2]:
        assert middle.observation == seen[len(actions) // 2 - 1][0]


def test_interleaved_episodes_do_not_meet(suite):
    first, second = new_env(suite), new_env(suite)
    one, two = suite.tasks("train")[:2]
    first.reset(one.id)
    second.reset(two.id)
    for left, right in zip(suite.walkthrough(one), suite.walkthrough(two), strict=False):
        last = first.step(left), second.step(right)
    assert [result.info["task"] for result in last] == [suite.goal(one).instruction, suite.goal(two).instruction]


def test_anchor_kinds(suite):
    task = next(task for task in suite.tasks("train") if suite.goal(task).options)
    *way, _ = suite.walkthrough(task)
    chosen = {}
    for anchor in ("observation", "situation"):
        env = new_env(suite, anchor=anchor)
        before = replay(env, task.id, way[: -len(suite.goal(task).options)]).observation
        after = replay(env, task.id, way).observation
        assert before.text == after.text
        chosen[anchor] = before.anchor == after.anchor
    assert chosen == {"observation": True, "situation": False}
    with pytest.raises(ValueError, match="anchor must be"):
        new_env(suite, anchor="page")


def test_reward_kinds(suite):
    task = next(task for task in suite.tasks("train") if suite.goal(task).options)
    way = [action for action in suite.walkthrough(task) if action[6:-1] not in dict(suite.goal(task).options).values()]
    score = replay(new_env(suite), task.id, way)
    assert 0.0 < score.reward < 1.0
    assert not score.success
    assert replay(new_env(suite, reward="success"), task.id, way).reward == 0.0
    with pytest.raises(ValueError, match="reward must be"):
        new_env(suite, reward="money")


def test_splits_are_disjoint_ordered_and_equal_in_every_suite(suite):
    ids = {split: [task.id for task in suite.tasks(split)] for split in ("train", "eval", "test")}
    together = [task_id for split in ids.values() for task_id in split]
    assert len(together) == len(set(together)) == len(suite.shop.goals)
    again = WebShopSuite(ShopConfig(cache_dir=None, generated_products=240))
    assert {split: [task.id for task in again.tasks(split)] for split in ids} == ids
    few = WebShopSuite(CONFIG, limits={"eval": 7})
    assert [task.id for task in few.tasks("eval")] == ids["eval"][:7]


def test_suite_rejects_what_it_cannot_use(suite):
    with pytest.raises(ValueError, match="name must be one of"):
        suite.tasks("validation")
    for wrong in ({"privileged": "all"}, {"max_turns": 0}, {"limits": {"dev": 3}}, {"limits": {"eval": 0}}):
        with pytest.raises(ValueError, match="WebShopSuite"):
            WebShopSuite(CONFIG, **wrong)


def test_privileged_context(suite):
    task = suite.tasks("train")[0]
    goal = suite.goal(task)
    assert goal.name in suite.privileged_context(task)
    assert "Useful skills:" in suite.privileged_context(task)
    assert WebShopSuite(CONFIG, privileged="none").privileged_context(task) is None
    assert goal.name not in WebShopSuite(CONFIG, privileged="skills").privileged_context(task)


def test_messages_hold_the_wish_and_the_actions(suite):
    task = suite.tasks("train")[0]
    observation = new_env(suite).reset(task.id)
    (message,) = suite.messages(task, [], observation)
    assert suite.goal(task).instruction in message["content"]
    assert "- search[<your query>]" in message["content"]
    replaced = WebShopSuite(CONFIG, build_messages=lambda *_: [{"role": "user", "content": "short"}])
    assert replaced.messages(task, [], observation)[0]["content"] == "short"


def test_tokens_follow_the_analyser():
    assert analyze("The Women's 2.5-inch Hair Extensions") == ["women", "2.5", "inch", "hair", "extens"]
    assert analyze("size:large a_b x,y 1,000 \u2605\u2605 \u4e2d\u6587 oak\u00ae \u00bd") == [
        "size:larg", "a_b", "x", "y", "1,000", "\u2605", "\u2605", "\u4e2d", "\u6587", "oak", "\u00ae",
    ]  # fmt: skip
    assert [stem(word) for word in ("assembly", "possibly", "technology", "biology", "us", "desks")] == [
        "assembl", "possibl", "technolog", "biologi", "us", "desk",
    ]  # fmt: skip


def test_stored_lengths():
    """Exact below 40; 40 = 24 + 16 starts steps of 2, 56 = 24 + 32 steps of 4, 24 + 64 steps of 8."""
    lengths = np.array([0, 1, 23, 24, 39, 40, 41, 42, 55, 56, 59, 60, 87, 88, 95, 96])
    assert stored_length(lengths).tolist() == [0, 1, 23, 24, 39, 40, 40, 42, 54, 56, 56, 60, 84, 88, 88, 96]


def test_scores_equal_a_naive_bm25():
    products = build_products(*generate_catalogue(60, 5))
    index = SearchIndex(products)
    terms = {product.asin: Counter(analyze(document(product))) for product in products}
    lengths = {asin: sum(counts.values()) for asin, counts in terms.items()}
    mean = sum(lengths.values()) / len(lengths)
    query = analyze("black rain jacket quick drying black")
    naive = {}
    for asin, counts in terms.items():
        length = int(stored_length(np.array([lengths[asin]]))[0])
        norm = 0.9 * (0.6 + 0.4 * length / mean)
        for term in query:
            holding = sum(term in other for other in terms.values())
            if counts[term]:
                idf = math.log(1 + (60 - holding + 0.5) / (holding + 0.5))
                naive[asin] = naive.get(asin, 0.0) + idf * counts[term] / (counts[term] + norm)
    found = index.scored("black rain jacket quick drying black", limit=60)
    assert dict(found) == pytest.approx(naive, abs=1e-4)
    assert [asin for asin, _ in found] == [asin for asin, _ in sorted(found, key=lambda hit: (-hit[1], hit[0]))]


def test_ties_go_to_the_smaller_id_whatever_the_order():
    products = build_products(*generate_catalogue(1, 0))
    twins = [type(products[0])(**{**vars(products[0]), "asin": asin}) for asin in ("B3", "B1", "B2")]
    assert SearchIndex(twins).search("rain jacket") == ("B1", "B2", "B3")
    assert SearchIndex(twins).search("") == SearchIndex(twins).search("the !") == ()


def test_an_empty_index_fails_at_start():
    with pytest.raises(ValueError, match="products must not be empty"):
        SearchIndex([])
    (product,) = build_products(*generate_catalogue(1, 0))
    blank = {"title": "!", "description": "", "bullets": ("",), "options": {}}
    with pytest.raises(ValueError, match="words to search"):
        SearchIndex([type(product)(**{**vars(product), **blank})])


def test_the_index_is_cached_by_content_and_repaired(tmp_path: Path):
    products = build_products(*generate_catalogue(40, 0))
    built = SearchIndex(products, tmp_path)
    (folder,) = tmp_path.iterdir()
    assert not any(path.suffix in (".pkl", ".pickle") for path in folder.iterdir())
    loaded = SearchIndex(list(reversed(products)), tmp_path)
    query = "wireless headphones fast charging"
    assert loaded.scored(query) == built.scored(query)
    for path in folder.glob("*.npy"):
        path.write_bytes(path.read_bytes()[:40])
    assert SearchIndex(products, tmp_path).scored(query) == built.scored(query)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    SearchIndex(products[:-1], tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert SearchIndex(build_products(*generate_catalogue(5, 0)), blocked / "cache").search("rain jacket")


def test_prices_depend_on_a_seed_in_strict_mode_only():
    def prices(**options):
        shop = load_shop(ShopConfig(cache_dir=None, generated_products=24, **options))
        return [product.price for product in shop.products.values()], [goal.price_upper for goal in shop.goals.values()]

    assert prices() == prices(seed=1)
    assert prices(strict_original=True) != prices(strict_original=True, seed=1)
    assert prices(strict_original=True) != prices()
    raw, _ = generate_catalogue(24, 0)
    assert prices()[0] == [fixed_price(record["asin"], parse_price(record["pricing"])) for record in raw]


def test_equal_configurations_share_a_shop(monkeypatch, tmp_path: Path):
    assert load_shop(CONFIG) is load_shop(ShopConfig(cache_dir=None, generated_products=240))
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="folder must exist"):
        load_shop(CONFIG)


def test_workers_play_the_same_episodes(suite):
    tasks = suite.tasks("eval")[:4]
    played = []
    for workers in (0, 2):
        with VectorEnv(suite.make_env(), num_envs=4, num_workers=workers) as envs:
            seen = [envs.reset({slot: task.id for slot, task in enumerate(tasks)})]
            for turn in range(3):
                seen.append(envs.step({slot: suite.walkthrough(task)[turn] for slot, task in enumerate(tasks)}))
            played.append(seen)
    assert played[0] == played[1]
    assert all(result.valid for result in played[0][-1].values())
