"""What each page of the shop shows and what can be clicked on it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .data import Product

SEPARATOR = " [SEP] "
PAGE_SIZE = 10

SEARCH_ACTION = "search[<your query>]"
"""How the search bar is listed among the admissible actions."""

BACK = "Back to Search"
NEXT = "Next >"
PREVIOUS = "< Prev"
BUY = "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")

_DONE_FIELDS = "price upper", "instuction text", "category", "product category", "query"
_HTML_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"})


@dataclass(frozen=True)
class Page:
    """A page as the agent meets it.

    Args:
        body: the visible strings after the instruction, joined.
        clickables: what a click may name, in page order, lower case.
        search_bar: whether the page shows the search bar (a search is accepted on every page).
        options: option value -> option name, for the values that can be chosen.
        actions: the admissible actions, sorted; the search bar is listed with a placeholder for the words.
    """

    body: str
    clickables: tuple[str, ...]
    search_bar: bool = False
    options: Mapping[str, str] | None = None
    actions: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        """Derive `actions`."""
        clicks = [f"click[{text}]" for text in self.clickables if text != "search"]
        listed = sorted([*clicks, *([SEARCH_ACTION] if self.search_bar else [])])
        object.__setattr__(self, "actions", tuple(listed))

    def text(self, instruction: str) -> str:
        """The whole observation."""
        head = f"Instruction:{SEPARATOR}{instruction}"
        if self.search_bar:
            head = f"WebShop{SEPARATOR}{head}"
        return f"{head}{SEPARATOR}{self.body}"


SEARCH_PAGE = Page(body="Search", clickables=("search",), search_bar=True)


def results_page(products: Sequence[Product], page: int, total: int) -> Page:
    """Results `page` (from 1): `products` are the hits on it, `total` all hits."""
    buttons = [BACK, *((PREVIOUS,) if page > 1 else ()), NEXT]
    shown = [BACK, f"Page {page} (Total results: {total})", *buttons[1:]]
    for product in products:
        shown += [product.asin, product.title, product.price_tag]
    return Page(_join(shown), _unique([*buttons, *(product.asin for product in products)]))


def item_page(product: Product) -> Page:
    """A product's page; chosen options are not marked on it."""
    shown = [BACK, PREVIOUS]
    options: dict[str, str] = {}
    for name, values in product.options.items():
        shown += [name, *values]
        options.update(dict.fromkeys(values, name))
    shown += [product.title, f"Price: {product.price_tag}", "Rating: N.A.", *SUB_PAGES, BUY]
    buttons = [BACK, PREVIOUS, *SUB_PAGES, BUY]
    return Page(_join(shown), _unique([*buttons, *options]), options=options)


def sub_page(product: Product, name: str) -> Page:
    """Description, Features or Reviews of a product; the data holds no reviews."""
    shown = {"Description": (product.description,), "Features": product.bullets, "Reviews": ()}[name]
    return Page(_join([BACK, PREVIOUS, *shown]), _unique([BACK, PREVIOUS]))


def done_text(asin: str, options: Mapping[str, str], reward: float) -> str:
    """The page after a purchase, with the original's wording and its empty fields."""
    bought = json.dumps(dict(sorted(options.items()))).translate(_HTML_ESCAPES)
    shown = [
        "Thank you for shopping with us!",
        "Your code:",
        "None",
        "(Paste it in your MTurk interface.)",
        "Purchased",
    ]
    shown += ["asin", asin, "options", bought]
    for label in ("attrs", "category", "query", "product category"):
        shown += [label, "None"]
    shown += ["Target", "asin", "options", "attrs", *_DONE_FIELDS, "Goal", "None"]
    shown += ["Reward", "Your score (min 0.0, max 1.0)", str(reward), "Reward Details", "None"]
    return SEPARATOR.join(shown)


def _join(shown: Sequence[str]) -> str:
    """Visible strings as one text; empty ones have no text node in the page and so leave no gap."""
    return SEPARATOR.join(text.strip() for text in shown if text and text != "\n")


def _unique(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.lower() for text in texts))
