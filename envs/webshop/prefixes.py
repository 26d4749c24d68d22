"""The original's searches by prefix: ``<q>``, ``<c>``, ``<a>`` and ``<r>`` list products without ranking them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from .data import Product
from .search import MAX_HITS


def prefixed_search(products: Sequence[Product], query: str, seed: int = 0) -> tuple[str, ...] | None:
    """Ids of the products that a prefixed query lists, in catalogue order and without a limit; None for other queries.

    ``<q> phrase`` lists the products found under that phrase, ``<c> department`` those of the department that the
    second word names, ``<a> attribute`` those that have the attribute. ``<r>`` draws 50 products at random; here the
    draw depends on `seed` and the query alone, so that a result's pages belong together and a replay sees them again.

    Source: WebShop's engine, which splits the query at single blanks.

    Args:
        products: the catalogue.
        query: the words between the brackets, lower case.
        seed: of the random sample.
    """
    first, *rest = query.split(" ")
    phrase = " ".join(rest).strip()
    if first == "<r>":
        asins = [product.asin for product in products]
        return tuple(random.Random(f"search:{seed}:{query}").sample(asins, min(MAX_HITS, len(asins))))
    if first == "<q>":
        return tuple(product.asin for product in products if product.query == phrase)
    if first == "<c>":
        department = rest[0].strip() if rest else None
        return tuple(product.asin for product in products if product.category == department)
    if first == "<a>":
        return tuple(product.asin for product in products if phrase in product.attributes)
    return None
