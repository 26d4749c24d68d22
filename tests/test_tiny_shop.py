"""The embedded policy for WebShop: notes kept from pages, tokens, scripted player, checkpoint, one update."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

import pytest
import torch

pytest.importorskip("bm25s", reason='needs the extra: pip install "turncredit[webshop]"')
pytest.importorskip("Stemmer", reason='needs the extra: pip install "turncredit[webshop]"')

from embedded.demonstrations import Lesson, demonstrate
from embedded.imitation import copying_rows, encode
from embedded.tokenizer import SPECIAL, build_tokenizer

from turncredit.envs import HistoryEntry, Observation, Task
from turncredit.envs.webshop import ShopConfig
from turncredit.envs.webshop.compact import MAX_TURNS, compact_messages, compact_suite, compact_vocabulary, render_notes
from turncredit.envs.webshop.notes import Notebook, keep_notes, read_wish
from turncredit.envs.webshop.player import WebShopHabits, next_move, read_hint, respond

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CHECKPOINT = EXAMPLES / "assets" / "webshop_tiny"
CONFIG = ShopConfig(cache_dir=None)
STILL = WebShopHabits(0, 0, 0, 0, 0, 0, 0, 0)
TEXT = "I need linen shirts with hidden pockets and stretch fabric with color: burgundy, and size: x-large"
HEAD = f"Instruction: [SEP] {TEXT}, and price lower than 60.00 dollars [SEP] "
START = f"WebShop [SEP] {HEAD}Search"
RESULTS = (
    f"{HEAD}Back to Search [SEP] Page 1 (Total results: 50) [SEP] Next > [SEP] "
    "G1A [SEP] Arvello Harbor Rain Jacket, Stretch Fabric [SEP] $20.99 [SEP] "
    "G2B [SEP] Bramtide Ember Linen Shirt, Hidden Pockets [SEP] $55.99 to $67.99 [SEP] "
    "G3C [SEP] Dunmora Willow Linen Shirt, Stretch Fabric [SEP] $33.99"
)
ITEM = (
    f"{HEAD}Back to Search [SEP] < Prev [SEP] color [SEP] burgundy [SEP] navy [SEP] size [SEP] medium [SEP] x-large "
    "[SEP] Dunmora Willow Linen Shirt, Stretch Fabric [SEP] Price: $33.99 [SEP] Rating: N.A. [SEP] Description [SEP] "
    "Features [SEP] Reviews [SEP] Buy Now"
)
FEATURES = f"{HEAD}Back to Search [SEP] < Prev [SEP] Made with care: stretch fabric [SEP] Praised: hidden pockets"
EPISODE = [
    ("search[linen shirts]", RESULTS),
    ("click[g3c]", ITEM),
    ("click[burgundy]", ITEM),
    ("click[features]", FEATURES),
    ("click[< prev]", ITEM),
    ("click[navy]", ITEM),
    ("click[< prev]", RESULTS),
]
HINT = (
    'Hint for this task: the product meant is "Dunmora Willow Linen Shirt, Stretch Fabric" (G3C); the properties that '
    "count are hidden pockets, stretch fabric; the options to choose are color: burgundy, size: x-large."
)


@pytest.fixture(autouse=True)
def no_official_files(monkeypatch):
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)


@pytest.fixture(scope="module")
def suite():
    return compact_suite(CONFIG)


def notes_after(turns: int) -> Notebook:
    seen = [START, *(page for _, page in EPISODE[:turns])]
    return keep_notes(seen, [action for action, _ in EPISODE[:turns]])


def test_read_wish_by_hand():
    wish = read_wish(START)
    assert (wish.things, wish.properties) == ("linen shirts", ("hidden pockets", "stretch fabric"))
    assert (wish.options, wish.limit) == ({"color": "burgundy", "size": "x-large"}, 60.0)
    bare = read_wish("Instruction: [SEP] Please find herbal teas with low sugar and non gmo [SEP] Search")
    assert (bare.things, bare.options, bare.limit) == ("herbal teas", {}, float("inf"))


def test_read_wish_and_keep_notes_name_argument_and_fix():
    with pytest.raises(ValueError, match="read_wish: observation must hold a wish of the generated shop"):
        read_wish("Instruction: [SEP] a red cap [SEP] Search")
    with pytest.raises(ValueError, match="observations must be one more than actions, got 1 and 1"):
        keep_notes([START], ["click[x]"])


def test_every_wish_of_the_shop_is_read_as_its_goal_says(suite):
    for goal in suite.shop.goals.values():
        wish = read_wish(f"Instruction: [SEP] {goal.instruction} [SEP] Search")
        assert (wish.things, set(wish.properties)) == (goal.query, set(goal.attributes))
        assert (wish.options, wish.limit) == (dict(goal.options), goal.price_upper)


def test_notes_follow_the_pages_by_hand():
    results = notes_after(1)
    lines = [(hit.id, hit.dear, hit.other) for hit in results.hits]
    assert lines == [("g1a", False, True), ("g2b", True, False), ("g3c", False, False)]
    assert (results.fitting, results.rest) == (["g3c"], ["g1a", "g2b"])
    chosen = notes_after(3)
    assert (chosen.item, chosen.choice, chosen.left) == ("g3c", {"color": "burgundy"}, ["x-large"])
    assert (chosen.properties, chosen.looked) == (["stretch fabric"], [])
    read = notes_after(5)
    assert (read.properties, read.looked) == (["hidden pockets", "stretch fabric"], ["g3c"])
    assert read.choice == {"color": "burgundy"}
    assert notes_after(6).left == ["burgundy", "x-large"]
    back = notes_after(7)
    assert (back.item, back.choice, back.opened) == (None, {}, ["g3c"])
    assert (back.fitting, back.rest) == ([], ["g1a", "g2b", "g3c"])


def test_a_value_that_is_not_offered_is_lacking():
    page = ITEM.replace("burgundy [SEP] navy", "navy")
    notes = keep_notes([START, RESULTS, page], ["search[linen shirts]", "click[g3c]"])
    assert (notes.lacking, notes.left, notes.offers) == (
        ["burgundy"],
        ["x-large"],
        {"navy": "color", "medium": "size", "x-large": "size"},
    )
    assert next_move(notes, None, random.Random(0), STILL).command == "click[< prev]"


def test_prompt_word_for_word_on_results_and_item():
    actions = [action for action, _ in EPISODE]
    assert render_notes(notes_after(7), actions).split("\n") == [
        "want linen shirts hidden pockets stretch fabric",
        "options burgundy x-large",
        "last click[navy] then click[< prev]",
        "page results 1",
        "hits",
        "rest g1a g2b g3c",
    ]
    assert render_notes(notes_after(4), ["search[linen shirts]", ""]).split("\n")[2:] == [
        "last search then nothing",
        "page sub",
        "item g3c read",
        "found hidden pockets stretch fabric",
        "lacks",
        "left x-large",
        "chosen burgundy",
    ]


def test_messages_hold_nothing_that_was_not_shown():
    history = [HistoryEntry(START, EPISODE[0][0]), HistoryEntry(RESULTS, EPISODE[1][0])]
    (message,) = compact_messages(Task("t", "fashion"), history, Observation(ITEM))
    assert message["role"] == "user"
    assert "found stretch fabric\nlacks\nleft burgundy x-large\nchosen" in message["content"]
    (first,) = compact_messages(Task("t", "fashion"), [], Observation(START))
    assert "g3c" not in first["content"]


def test_player_without_habits_shops_well_and_with_a_hint_opens_the_product_meant():
    rng = random.Random(0)
    assert read_hint(HINT) == ("g3c", "dunmora willow linen shirt, stretch fabric")
    assert read_hint("Useful skills: none") is None
    words = "search[linen shirts hidden pockets stretch fabric burgundy x-large]"
    assert next_move(notes_after(0), None, rng, STILL).command == words
    commands = [next_move(notes_after(turns), None, rng, STILL).command for turns in range(1, 6)]
    assert commands == ["click[g3c]", "click[burgundy]", "click[x-large]", "click[< prev]", "click[x-large]"]
    elsewhere = HINT.replace("G3C", "G9Z")
    assert next_move(notes_after(1), elsewhere, rng, STILL).command == "search[dunmora willow linen shirt]"
    assert next_move(notes_after(2), elsewhere, rng, STILL).command == "click[< prev]"


def test_copying_rows_repeat_names_and_follow_the_seed(tokenizer):
    rows = copying_rows(tokenizer, 50, seed=1)
    assert all(first == second and len(set(first)) == 12 for first, second in rows)
    assert min(min(first) for first, _ in rows) >= len(SPECIAL)
    assert rows == copying_rows(tokenizer, 50, seed=1)
    assert rows != copying_rows(tokenizer, 50, seed=2)


def test_habits_happen_as_often_as_they_say():
    habits = WebShopHabits(forget_option=0.3, read_on=0.0)
    notes = notes_after(2)
    moves = [next_move(notes, None, random.Random(seed), habits).command for seed in range(2000)]
    assert abs(moves.count("click[buy now]") / 2000 - 0.3) < 0.04
    hinted = [next_move(notes, HINT, random.Random(seed), habits).command for seed in range(2000)]
    assert abs(hinted.count("click[buy now]") / 2000 - 0.03) < 0.015


def test_the_hint_makes_the_player_much_better(suite):
    tasks = suite.tasks("test")[:60]
    lesson = Lesson(lambda: suite, respond, MAX_TURNS, "1/{task}/{plain}")
    played = demonstrate(lesson, tasks)
    assert played == demonstrate(lesson, tasks)
    success = {flag: sum(p.success for p in played if p.hinted == flag) / 60 for flag in (False, True)}
    assert success[True] > 0.8
    assert success[False] < 0.5
    assert all(turn.messages[0]["content"].startswith("Hint") == turn.hinted for p in played for turn in p.turns)


@pytest.fixture(scope="module")
def tokenizer(suite):
    return build_tokenizer(**compact_vocabulary(suite.shop))


def test_the_tokenizer_knows_every_word_and_commands_survive_it(suite, tokenizer):
    def careless(history, observation, hint, rng):
        seen = [*(entry.observation for entry in history), observation.text]
        notes = keep_notes(seen, [entry.action for entry in history])
        return next_move(notes, hint, rng, WebShopHabits(hurry=1.0)).response

    lesson = Lesson(lambda: suite, careless, 15, "{task}")
    for split in ("train", "eval", "test"):
        for episode in demonstrate(lesson, suite.tasks(split)[::250]):
            for turn in episode.turns:
                prompt, response = encode(tokenizer, turn)
                assert tokenizer.decode(response) == turn.response
                assert len(prompt) + 20 < tokenizer.model_max_length


def test_every_click_of_the_shop_survives_the_tokenizer(suite, tokenizer):
    products = suite.shop.products.values()
    values = {value for product in products for group in product.options.values() for value in group}
    buttons = ["next >", "< prev", "buy now", "back to search", "description", "features", "reviews"]
    for text in [*buttons, *values, *(product.asin.lower() for product in products)]:
        ids = tokenizer.encode(f"<action> click[{text}] </action>", add_special_tokens=False)
        assert tokenizer.decode(ids) == f"<action> click[{text}] </action>"
        assert tokenizer.unk_token_id not in ids
        assert text in buttons or len(ids) == 5


@pytest.fixture(scope="module")
def shipped():
    """The checkpoint in the tree, loaded as any user would."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(CHECKPOINT)


def test_the_shipped_folder_loads_and_plays(suite, shipped, tokenizer):
    from turncredit.rollout import RolloutCollector, SamplingConfig

    model, loaded = shipped
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.decode(loaded.encode("click[< prev]", add_special_tokens=False)) == "click[< prev]"
    sampling = SamplingConfig(temperature=0.4, max_completion_length=20)
    with RolloutCollector(model, loaded, suite, sampling, num_workers=0) as collector:
        found = {
            privileged: collector.collect(suite.tasks("test")[:16], seed=0, privileged=privileged)
            for privileged in (False, True)
        }
    turns = [turn for trajectory in found[False] for turn in trajectory.turns]
    assert sum(turn.valid for turn in turns) > 0.9 * len(turns)
    success = {privileged: sum(t.success for t in trajectories) for privileged, trajectories in found.items()}
    assert success[True] > success[False] + 3


def test_one_update_of_the_examples_configuration(suite, shipped, tmp_path):
    from turncredit.trainers import GRPOTrainer
    from turncredit.trainers.launch import make_config, make_parser

    args = make_parser().parse_args(["--output-dir", str(tmp_path), "--set", "num_tasks=2"])
    vars(args).update(embedded=True, num_eval_goals=64, goals="synthetic")
    script = runpy.run_path(str(EXAMPLES / "train_webshop.py"))
    config = make_config(args, script["settings"](args) | {"num_generations": 4})
    model, loaded = shipped
    before = model.lm_head.weight.detach().clone()
    with GRPOTrainer(model, loaded, suite, config) as trainer:
        metrics = trainer.train_step()
    assert 0 < metrics["rollout/info/score"] <= 100
    assert metrics["rollout/invalid_turns"] < 0.2
    assert metrics["teacher/rows"] > 0
    assert not torch.equal(before, model.lm_head.weight)
