"""The catalogue: products from the official raw files, read one at a time, with prices fixed per product."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA_VARIABLE = "WEBSHOP_DATA"
UNKNOWN_ATTRIBUTE = "DUMMY_ATTR"
"""What the original puts where a product has no attribute record; it takes part in the matching, so parity needs it."""

_CHUNK = 1 << 22
_NOT_PRICE = re.compile(r"[^\d.]")


@dataclass(frozen=True, eq=False)
class Product:
    """One product.

    Args:
        asin: its id, at most ten characters.
        title, description: as the shop shows them.
        bullets: the feature list, at least one entry (possibly empty text).
        category: the shop's department ("fashion", "beauty", ...); query: the search phrase it was found under.
        product_category: category path with arrow signs between its levels.
        options: option name -> its values, in page order.
        attributes: hidden attributes that goals ask for.
        price: in dollars, fixed; price_tag: as the shop shows it, possibly a range.
        instruction: text of the synthetic goal, None where there is none; instruction_attributes: what it asks for.
        human: instructions written by people, as raw records.
    """

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    category: str
    query: str
    product_category: str
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    price: float
    price_tag: str
    instruction: str | None = None
    instruction_attributes: tuple[str, ...] = ()
    human: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class DataFiles:
    """The files of a data folder. Args: products, attributes (required), human, nouns (optional)."""

    products: Path
    attributes: Path
    human: Path | None = None
    nouns: Path | None = None


def data_files(folder: str | os.PathLike[str]) -> DataFiles:
    """Find the official files in `folder`: ``items_shuffle*.json``, ``items_ins_v2*.json``, ``items_human_ins.json``
    and, where there is one, the noun cache ``title_nouns.json``.

    With several catalogues in one folder the smallest stands for the common ``*_1000.json`` set.

    Raises:
        FileNotFoundError: the folder, the catalogue or its attributes are missing.
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(
            f"data_files: folder must exist, got {str(root)!r}; name the folder with items_shuffle*.json, "
            f"or unset {DATA_VARIABLE} to play the generated shop"
        )
    found = {}
    for name, pattern in (("products", "items_shuffle*.json"), ("attributes", "items_ins_v2*.json")):
        matches = sorted(root.glob(pattern), key=lambda path: (path.stat().st_size, path.name))
        if not matches:
            raise FileNotFoundError(
                f"data_files: folder must hold {pattern}, got {str(root)!r} without it; "
                "download the shop's data files into it"
            )
        found[name] = matches[0]
    human, nouns = root / "items_human_ins.json", root / "title_nouns.json"
    return DataFiles(**found, human=human if human.is_file() else None, nouns=nouns if nouns.is_file() else None)


def iter_json_array(path: str | os.PathLike[str], chunk_chars: int = _CHUNK) -> Iterator[Any]:
    """The elements of a JSON array, one at a time, without holding the file: the full catalogue has gigabytes.

    Raises:
        ValueError: the file is not one JSON array, or is cut off.
    """
    decoder = json.JSONDecoder()
    with open(path, encoding="utf-8") as handle:
        buffer = handle.read(chunk_chars).lstrip()
        if not buffer.startswith("["):
            raise ValueError(
                f"iter_json_array: path must hold a JSON array, got {str(path)!r} starting with {buffer[:20]!r}; "
                "name the items_shuffle file"
            )
        position = 1
        while True:
            position = _skip(buffer, position)
            if buffer[position : position + 1] == "]":
                return
            try:
                value, end = decoder.raw_decode(buffer, position)
                complete = end < len(buffer)
            except json.JSONDecodeError:
                value, end, complete = None, position, False
            if complete:
                yield value
                position = end
                continue
            more = handle.read(max(chunk_chars, len(buffer) - position))
            if not more:
                raise ValueError(
                    f"iter_json_array: path must hold a whole JSON array, got {str(path)!r}, which breaks off or is "
                    "malformed; download it again"
                )
            buffer, position = buffer[position:] + more, 0


def _skip(buffer: str, position: int) -> int:
    while position < len(buffer) and buffer[position] in " \t\r\n,":
        position += 1
    return position


def parse_price(text: str | None) -> tuple[float, ...]:
    """The one or two prices of a raw price text, in dollars; empty text is 100.

    >>> parse_price("$19.99 - $27.99"), parse_price("$1,200.50"), parse_price("")
    ((19.99, 27.99), (1200.5,), (100.0,))
    """
    if not text:
        return (100.0,)
    parts = (_NOT_PRICE.sub("", part) for part in text.split("$")[1:])
    return tuple(float(part) for part in parts)[:2]


def parse_options(raw: Mapping[str, Any] | str | None) -> dict[str, tuple[str, ...]]:
    """Option names and values as the shop shows them: lower case, stripped, a slash set apart as `` | ``.

    >>> parse_options({"Size": [{"value": " S/M "}], "Color": None})
    {'size': ('s | m',)}
    """
    if not raw or isinstance(raw, str):
        return {}
    return {
        name.lower(): tuple(entry["value"].strip().replace("/", " | ").lower() for entry in entries)
        for name, entries in raw.items()
        if entries is not None
    }


def fixed_price(asin: str, prices: Sequence[float]) -> float:
    """A product's price: the only one, or a point of its range that depends on its id and on nothing else."""
    if len(prices) == 1:
        return prices[0]
    return random.Random(f"price:{asin}").uniform(prices[0], prices[1])


def build_products(
    records: Iterable[Mapping[str, Any]],
    attributes: Mapping[str, Mapping[str, Any]],
    human: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    *,
    limit: int | None = None,
    rng: random.Random | None = None,
) -> list[Product]:
    """Products from raw records, in file order; a repeated id, ``"nan"`` and over-long ids are left out.

    Args:
        records: raw product records.
        attributes: asin -> record with "attributes" and, where there is a goal, "instruction" and
            "instruction_attributes".
        human: asin -> instructions by people.
        limit: read this many records at most; None reads all.
        rng: draws the price of a range, in file order, as the original does; None fixes it per product.

    Raises:
        ValueError: no product is left, or a record lacks a field.
    """
    products: dict[str, Product] = {}
    for number, record in enumerate(records):
        if limit is not None and number >= limit:
            break
        asin = record.get("asin", "nan")
        if asin == "nan" or len(asin) > 10 or asin in products:
            continue
        try:
            products[asin] = _product(record, attributes.get(asin, {}), (human or {}).get(asin, ()), rng)
        except KeyError as error:
            raise ValueError(
                f"build_products: records must hold {error.args[0]!r}, got none for {asin!r}; "
                "use the shop's items_shuffle file"
            ) from None
    if not products:
        raise ValueError("build_products: records must hold at least one product, got none; check the catalogue file")
    return list(products.values())


def _product(
    record: Mapping[str, Any],
    extra: Mapping[str, Any],
    human: Sequence[Mapping[str, Any]],
    rng: random.Random | None,
) -> Product:
    prices = parse_price(record.get("pricing"))
    if rng is None or len(prices) == 1:
        price = fixed_price(record["asin"], prices)
    else:
        price = rng.uniform(prices[0], prices[1])
    small = record["small_description"]
    return Product(
        asin=record["asin"],
        title=record["name"],
        description=record["full_description"],
        bullets=tuple(small) if isinstance(small, list) else (small,),
        category=record["category"],
        query=record["query"].lower().strip(),
        product_category=record["product_category"],
        options=parse_options(record.get("customization_options")),
        attributes=tuple(extra["attributes"]) if "attributes" in extra else (UNKNOWN_ATTRIBUTE,),
        price=price,
        price_tag=" to ".join(f"${value}" for value in prices),
        instruction=extra.get("instruction"),
        instruction_attributes=tuple(extra.get("instruction_attributes") or ()),
        human=tuple(human),
    )
