"""A small made-up shop in our own words, seeded, in the raw form of the official files: it needs no data at all."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from .words import package_json


def generate_catalogue(count: int = 400, seed: int = 0) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Raw product records and raw attribute records of a made-up shop.

    Every product has a synthetic goal; its wished attributes are among its hidden ones, and one of the others is left
    out of the page, as in the real shop where pages do not tell everything.

    Args:
        count: number of products.
        seed: equal seeds give equal shops.

    Raises:
        ValueError: `count` is not positive.
    """
    if count < 1:
        raise ValueError(f"generate_catalogue: count must be at least 1, got {count}; 400 is the usual value")
    rng = random.Random(f"webshop:{seed}")
    records, attributes = [], {}
    words = package_json("generated.json")
    for number in range(count):
        kind = words["kinds"][number % len(words["kinds"])]
        asin = f"G{number:05d}{rng.randrange(16**4):04X}"
        own = rng.sample(kind["attributes"], 4)
        wished = sorted(rng.sample(own[:3], 2))
        records.append(_record(rng, words, kind, asin, own))
        attributes[asin] = {
            "attributes": own,
            "instruction": rng.choice(words["openings"]).format(things=kind["query"], wishes=" and ".join(wished)),
            "instruction_attributes": wished,
        }
    return records, attributes


def _record(
    rng: random.Random, words: Mapping[str, Any], kind: Mapping[str, Any], asin: str, own: list[str]
) -> dict[str, Any]:
    brand, line = rng.choice(words["brands"]), rng.choice(words["lines"])
    options = {
        name.title(): [{"value": value.title()} for value in _some(rng, values)]
        for name, values in kind["options"].items()
    }
    low = rng.randrange(*kind["prices"]) + 0.99
    price = f"${low:.2f}" if rng.random() < 0.8 else f"${low:.2f} - ${low + rng.randrange(5, 15):.2f}"
    return {
        "asin": asin,
        "name": f"{brand} {line} {kind['noun']}, {own[0].title()}",
        "full_description": words["description"].format(
            line=line, noun=kind["noun"].lower(), brand=brand, sentence=f"Think of it when you want {own[1]}."
        ),
        "small_description": [
            text.format(attribute) for text, attribute in zip(words["bullets"], own[:3], strict=True)
        ],
        "category": kind["department"],
        "query": kind["query"],
        "product_category": " \u203a ".join(kind["path"]),
        "customization_options": options,
        "pricing": price,
    }


def _some(rng: random.Random, values: Sequence[str]) -> list[str]:
    """Two to four of `values`, in their own order."""
    chosen = set(rng.sample(values, min(len(values), rng.randrange(2, 5))))
    return [value for value in values if value in chosen]
