"""The tokens that the generated shop's wishes, pages and hints, and the scripted player use."""

from __future__ import annotations

import random

from tiny_policy.tokenizer import END, PAD, ROLES, UNKNOWN, build_tokenizer
from transformers import PreTrainedTokenizerFast

from turncredit.envs.webshop import Shop
from turncredit.envs.webshop.words import package_json

VERBS = ("search", "click")
PUNCTUATION = '.,:;"()-'
MAX_LENGTH = 384
SPECIAL = (PAD, UNKNOWN, END, *ROLES)

_TEXT = """
want options last then nothing search page results item sub hits rest over read found lacks left chosen
hint for this task the product meant is properties that count are to choose price limit dollars
back to search < prev next > description features reviews buy now
open it any look on check choose
"""
PLAIN_WORDS = tuple(_TEXT.split())
"""Words that do not depend on the shop."""


def phrases(shop: Shop) -> list[str]:
    """Names of the shop that are one token each: kinds of things, properties, option values, price limits, ids."""
    words = package_json("generated.json")
    found: set[str] = {product.asin for product in shop.products.values()}
    for kind in words["kinds"]:
        found.update((kind["noun"], kind["query"], *kind["attributes"]))
        found.update(value for values in kind["options"].values() for value in values)
    found.update(f"{goal.price_upper:.2f}" for goal in shop.goals.values())
    return sorted(name.lower() for name in found)


def proper_names() -> list[str]:
    """Brands, product lines and option names, lower-cased."""
    words = package_json("generated.json")
    options = {name for kind in words["kinds"] for name in kind["options"]}
    return sorted(name.lower() for name in {*words["brands"], *words["lines"], *options})


def shop_tokenizer(shop: Shop) -> PreTrainedTokenizerFast:
    """The tokenizer of a policy that shops in a generated shop."""
    names = phrases(shop)
    return build_tokenizer(
        [*PLAIN_WORDS, *proper_names()],
        phrases=names,
        punctuation=PUNCTUATION,
        verbs=VERBS,
        max_length=MAX_LENGTH,
    )


def copying_rows(tokenizer: PreTrainedTokenizerFast, count: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Lists of names to read and to repeat, as (prompt ids, response ids): most of the policy's work is copying names.

    Args:
        tokenizer: of `shop_tokenizer`.
        count: number of rows.
        seed: of the names, 12 in a row, drawn from the whole vocabulary without its first special tokens.
    """
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        names = rng.sample(range(len(SPECIAL), len(tokenizer)), 12)
        rows.append((names, names))
    return rows
