"""Corners that the original environments have and ours leave out by default: strict mode has them all."""

from __future__ import annotations

import json

import pytest

from turncredit.envs.search_qa import (
    Bm25Retriever,
    Document,
    NoListsError,
    Question,
    RetrievalError,
    SearchQAEnv,
    SearchQASuite,
    parse_response,
)
from turncredit.envs.search_qa.http_retriever import read_reply

# ---- Search-QA


class Replies:
    """A retriever that replies by query and remembers what it was asked."""

    def __init__(self, replies):
        self.replies, self.asked = replies, []

    def search(self, queries, topk):
        self.asked.append((list(queries), topk))
        reply = self.replies[queries[0]]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self):
        self.asked = []


def reply_of(body):
    """What the HTTP client makes of a server's reply."""
    try:
        return read_reply(json.dumps(body).encode(), 1)
    except RetrievalError as error:
        return error


def play(query, reply, **options):
    shelf = Replies({query.strip(): reply})
    env = SearchQAEnv({"t": Question("q", "Which?", ("Rome",), "nq")}, shelf, **options)
    env.reset("t")
    return env.step(parse_response(f"<search>{query}</search>").action), shelf.asked


PASSAGE = [[Document("1", '"Rome"\nRome fell.')]]


@pytest.mark.parametrize("query", ["", "   ", "\n\t"])
def test_an_empty_query_is_a_turn_of_its_own_in_strict_mode(query):
    assert parse_response(f"<search>{query}</search>").valid
    result, asked = play(query, PASSAGE, strict_original=True)
    assert asked == [([""], 3)]
    assert (result.valid, result.info["tool_input"], result.info["searches"]) == (True, "", 1)
    assert "Rome fell." in result.observation.text
    result, asked = play(query, PASSAGE)
    assert (asked, result.valid, result.info["tool_input"], result.observation.text) == ([], False, None, "")


@pytest.mark.parametrize("action", ["", "no tags", "<search>never closed", None])
def test_what_is_no_search_stays_none_in_strict_mode(action):
    shelf = Replies({})
    env = SearchQAEnv({"t": Question("q", "Which?", ("Rome",), "nq")}, shelf, strict_original=True)
    env.reset("t")
    result = env.step(action)
    assert (result.valid, result.observation.text, result.info["tool_input"], shelf.asked) == (False, "", None, [])


def test_an_empty_query_on_the_last_turn_is_not_sent_and_valid_in_strict_mode():
    for strict in (False, True):
        result, asked = play(" ", PASSAGE, strict_original=strict, max_turns=1)
        assert (result.done, result.valid, result.reward, asked) == (True, strict, 0.0, [])


NO_RESULTS = '<information>{"result": "No search results found."}</information>'
EMPTY = '<information>{"result": ""}</information>'


@pytest.mark.parametrize(
    ("body", "strict", "default"),
    [
        ({"result": [[]]}, EMPTY, NO_RESULTS),
        ({"result": []}, NO_RESULTS, '<information>{"result": "Search error: malformed"}</information>'),
        ({"result": None}, NO_RESULTS, '<information>{"result": "Search error: malformed"}</information>'),
        ({"other": 1}, NO_RESULTS, '<information>{"result": "Search error: malformed"}</information>'),
    ],
)
def test_an_empty_list_and_no_list_are_two_things_in_strict_mode(body, strict, default):
    result, _ = play("q", reply_of(body), strict_original=True)
    assert result.observation.text == strict
    assert "retrieval_error" not in result.info
    result, _ = play("q", reply_of(body))
    assert result.observation.text == default
    assert ("retrieval_error" in result.info) == ("error" in default)


def test_other_malformed_replies_stay_errors_in_strict_mode():
    for body in ([], "text", {"result": [1]}, {"result": [[], []]}, {"result": "none"}):
        error = reply_of(body)
        assert (error.cause, isinstance(error, NoListsError)) == ("malformed", False), body
        result, _ = play("q", error, strict_original=True)
        assert result.info["retrieval_error"] == "malformed"


def test_a_retriever_in_process_without_any_list_is_worded_as_the_original_does():
    result, _ = play("q", [], strict_original=True)
    assert (result.observation.text, "retrieval_error" in result.info) == (NO_RESULTS, False)
    result, _ = play("q", None, strict_original=True)
    assert "Unknown API state" in result.observation.text


def test_the_suite_hands_strict_mode_to_its_environments_and_answers():
    questions = {"train": [Question("q", "Which?", ("!",), "nq")]}
    for strict in (False, True):
        suite = SearchQASuite(questions, retriever=corpus, strict_original=strict)
        env = suite.make_env()()
        env.reset("train/q")
        searched = env.step("<search>unheard</search>")
        assert searched.observation.text == (EMPTY if strict else NO_RESULTS)
        assert env.step("<search> </search>").valid is strict
        # a gold that normalises to nothing
        assert env.step("<answer>the</answer>").success is strict


def corpus():
    pytest.importorskip("bm25s", reason='needs the extra: pip install "turncredit[search]"')
    return Bm25Retriever([Document("1", '"Rome"\nRome fell.')])


def test_golden_searches_without_result_in_strict_mode(shared_dir):
    path = shared_dir / "search_qa" / "golden.json"
    if not path.is_file():
        pytest.skip("reference data (../shared/search_qa/golden.json) is not here")
    transcripts = {item["name"]: item for item in json.loads(path.read_text(encoding="utf-8"))["transcripts"]}
    for name, reply in (("no_result", reply_of({"result": []})), ("api_none", None)):
        step = transcripts[name]["steps"][0]
        result, asked = play(step["info"]["tool_input"][0], reply, strict_original=True)
        assert result.observation.text == step["observation"]
        assert asked == [([call["query"]], call["topk"]) for call in step["api_calls"]]


# ---- WebShop


@pytest.fixture(scope="module")
def shops(shared_dir):
    pytest.importorskip("bm25s", reason='needs the extra: pip install "turncredit[webshop]"')
    from turncredit.envs.webshop import ShopConfig, load_shop

    folder = shared_dir / "webshop"
    if not folder.is_dir():
        pytest.skip("reference data (../shared/webshop) is not here")
    return {
        strict: load_shop(ShopConfig(data=str(folder), strict_original=strict, cache_dir=None))
        for strict in (False, True)
    }


def search(shop, query):
    from turncredit.envs.webshop import WebShopEnv

    env = WebShopEnv(shop)
    env.reset(next(iter(shop.goals)))
    return env, env.step(f"search[{query}]")


def total(result):
    return int(result.observation.text.partition("(Total results: ")[2].partition(")")[0])


@pytest.mark.parametrize(("query", "count"), [("<q> men's jeans", 2), ("<c> garden", 216), ("<c> garden hose", 216)])
def test_prefixed_searches_list_products_by_their_fields(shops, query, count):
    _, result = search(shops[True], query)
    assert (total(result), result.valid) == (count, True)
    assert total(search(shops[False], query)[1]) <= 50


def test_a_listed_department_is_paged_to_its_end_in_catalogue_order(shops):
    shop = shops[True]
    wanted = [product.asin for product in shop.products.values() if product.category == "garden"]
    env, result = search(shop, "<C> Garden")
    seen = []
    for page in range(1, 23):
        assert f"Page {page} (Total results: 216)" in result.observation.text
        seen += [text.upper() for text in result.observation.info["clickables"] if text.upper() in shop.products]
        result = env.step("click[next >]")
    assert seen == wanted
    assert not any(text.upper() in shop.products for text in result.observation.info["clickables"])


def test_attributes_and_phrases_are_compared_whole(shops):
    shop = shops[True]
    attribute = "machine washable"
    wanted = [product.asin for product in shop.products.values() if attribute in product.attributes]
    assert wanted
    assert list(shop.hits(f"<a> {attribute}")) == wanted
    for query in ("<a> machine", "<a> no such attribute", "<a>", "<q>", "<q> men's", "<c>", "<c> no", "<c>  garden"):
        assert shop.hits(query) == (), query
    assert total(search(shop, "<a> no such attribute")[1]) == 0


def test_a_random_sample_is_the_same_for_the_same_seed_and_differs_between_queries(shops):
    from turncredit.envs.webshop import prefixed_search

    shop = shops[True]
    sample = shop.hits("<r>")
    assert (len(sample), len(set(sample))) == (50, 50)
    assert set(sample) <= set(shop.products)
    products = list(shop.products.values())
    assert sample == prefixed_search(products, "<r>", seed=0)
    assert sample != prefixed_search(products, "<r>", seed=1)
    assert sample != shop.hits("<r> again")
    assert len(prefixed_search(products[:7], "<r>")) == 7
    env, first = search(shop, "<r>")
    again = [env.step(action).observation.text for action in ("click[next >]", "click[< prev]")][1]
    assert first.observation.text == again


@pytest.mark.parametrize("query", ["men's jeans", " <c> garden", "<x> garden", "<garden> <c>", "jeans <q> men's"])
def test_anything_else_is_ranked_as_ever(shops, query):
    assert shops[True].hits(query) == shops[True].index.search(query) == shops[False].hits(query)


def test_the_default_ranks_prefixed_queries_too(shops):
    for query in ("<q> men's jeans", "<c> garden", "<r>"):
        assert shops[False].hits(query) == shops[False].index.search(query)
