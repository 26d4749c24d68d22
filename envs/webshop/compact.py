"""Compact prompts and vocabulary of a policy of a million parameters: the wish, and notes on the shop.

The prompts hold what `notes.Notebook` knows; the vocabulary knows one generated shop, whose names are one token each.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..base import HistoryEntry, Message, Observation, Task
from .data import DATA_VARIABLE
from .notes import LISTED, Notebook, keep_notes
from .shop import Shop, ShopConfig
from .suite import WebShopSuite
from .words import package_json

LAST_ACTIONS = 2
"""How many past actions a prompt repeats."""

MAX_TURNS = 8
"""Turns of an episode: a shopper that wastes none needs five or six. The benchmark's own limit is 15."""

BUDGETS = {"max_completion_length": 20, "max_prompt_length": 384}
"""Tokens of a turn and of its prompt, as the shipped policy was trained for."""

_WORDS = """
want options last then nothing search page results item sub hits rest over read found lacks left chosen
hint for this task the product meant is properties that count are to choose price limit dollars
back to search < prev next > description features reviews buy now
open it any look on check choose
"""


def render_notes(notes: Notebook, actions: Sequence[str]) -> str:
    """A notebook and the last of all `actions` as the words of a prompt, about 40 tokens."""
    wish = notes.wish
    lines = [
        ("want", f"{wish.things} {' '.join(wish.properties)}"),
        ("options", " ".join(wish.options.values())),
        ("last", " then ".join(_short(action) for action in actions[-LAST_ACTIONS:])),
        ("page", f"{notes.page} {notes.number}" if notes.page == "results" else notes.page),
        *_page_lines(notes),
    ]
    return "\n".join(f"{name} {text}".strip() for name, text in lines)


def compact_messages(task: Task, history: Sequence[HistoryEntry], observation: Observation) -> list[Message]:
    """The chat messages of the next turn, for ``WebShopSuite(build_messages=compact_messages)``."""
    actions = [entry.action for entry in history]
    notes = keep_notes([*(entry.observation for entry in history), observation.text], actions)
    return [{"role": "user", "content": render_notes(notes, actions)}]


def _short(action: str) -> str:
    """An action as it is remembered: what was searched for is left out."""
    return "search" if action.startswith("search[") else action or "nothing"


def _page_lines(notes: Notebook) -> list[tuple[str, str]]:
    if notes.page == "results":
        return [("hits", " ".join(notes.fitting[:LISTED])), ("rest", " ".join(notes.rest[:LISTED]))]
    if notes.page == "search":
        return []
    state = [*["over"] * notes.dear, *["read"] * (notes.item in notes.looked)]
    return [
        ("item", " ".join([str(notes.item), *state])),
        ("found", " ".join(notes.properties)),
        ("lacks", " ".join(notes.lacking)),
        ("left", " ".join(notes.left)),
        ("chosen", " ".join(notes.choice.values())),
    ]


def compact_vocabulary(shop: Shop) -> dict[str, Any]:
    """What a tokenizer of a generated shop must know: words, names that are one token each, marks and verbs."""
    words = package_json("generated.json")
    kinds = words["kinds"]
    phrases: set[str] = {product.asin for product in shop.products.values()}
    for kind in kinds:
        phrases.update((kind["noun"], kind["query"], *kind["attributes"]))
        phrases.update(value for values in kind["options"].values() for value in values)
    phrases.update(f"{goal.price_upper:.2f}" for goal in shop.goals.values())
    options = {name for kind in kinds for name in kind["options"]}
    names = sorted(name.lower() for name in {*words["brands"], *words["lines"], *options})
    return {
        "words": [*_WORDS.split(), *names],
        "phrases": sorted(phrase.lower() for phrase in phrases),
        "punctuation": '.,:;"()-',
        "verbs": ("search", "click"),
        "max_length": 384,
    }


def compact_suite(config: ShopConfig | None = None, **options: Any) -> WebShopSuite:
    """The suite of the embedded policy: the generated shop, compact prompts, a teacher that reads the goal's hint.

    Official files are left aside, so ``WEBSHOP_DATA`` is taken out of this process's environment.

    Args:
        config: of a generated shop; None takes the usual one.
        options: other arguments of `WebShopSuite`.
    """
    os.environ.pop(DATA_VARIABLE, None)
    defaults = {"privileged": "hint", "max_turns": MAX_TURNS, "build_messages": compact_messages}
    return WebShopSuite(config or ShopConfig(), **{**defaults, **options})
