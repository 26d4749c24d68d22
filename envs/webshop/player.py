"""A scripted shopper that knows how to shop and has bad habits: the source of the warm start.

Without a hint it often searches for the kind of thing alone, opens any result without reading the line, turns pages and
reads descriptions for nothing, and buys with options left out or before it knows the properties. With a hint it opens
the product meant and hardly ever does any of that. A policy that imitates both buys the wrong thing on its own and not
with the hint; which turns were to blame is left to be learned from reward. The player reads its notes and the hint
only, never the shop.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..base import HistoryEntry, Observation
from ..scripted import Habits, Move
from .notes import LISTED, Notebook, keep_notes

_HINTED_PRODUCT = re.compile(r'the product meant is "(?P<title>[^"]+)" \((?P<id>\w+)\)')


@dataclass(frozen=True)
class WebShopHabits(Habits):
    """Chances of doing the wrong thing.

    Args:
        lazy_search: leaving properties or options out of the query.
        turn_page: clicking "next" on the first page of results instead of choosing from it.
        careless: opening any line, whatever it says.
        read_on: opening the description or the reviews of a product just opened.
        skip_features: never checking the properties.
        forget_option: buying with one more option to choose; drawn each time.
        settle: buying a product although it lacks a wanted value or property, or is too dear.
    """

    lazy_search: float = 0.5
    turn_page: float = 0.15
    careless: float = 0.4
    read_on: float = 0.35
    skip_features: float = 0.5
    forget_option: float = 0.3
    settle: float = 0.35


def read_hint(hint: str) -> tuple[str, str] | None:
    """Id, in lower case, and title of the product that a hint names; None where it names none."""
    match = _HINTED_PRODUCT.search(hint)
    return (match["id"].lower(), match["title"].lower()) if match else None


def respond(history: Sequence[HistoryEntry], observation: Observation, context: str | None, rng: random.Random) -> str:
    """The player's response with its usual habits. Args: history, oldest first; context: the hint, or None."""
    seen = [*(entry.observation for entry in history), observation.text]
    return next_move(keep_notes(seen, [entry.action for entry in history]), context, rng, WebShopHabits()).response


def next_move(notes: Notebook, hint: str | None, rng: random.Random, habits: WebShopHabits) -> Move:
    """The player's next move.

    Args:
        notes: what was seen so far (see `notes.keep_notes`).
        hint: the privileged context, or None.
        rng: source of every chance.
        habits: how often things go wrong.
    """
    told = None if hint is None else read_hint(hint)

    def slips(chance: float) -> bool:
        return habits.tempt(chance, told is not None, rng)

    if notes.page == "search":
        return _search(notes, slips(habits.lazy_search), rng)
    if notes.page == "results":
        return _find_again(notes, *told) if told else _choose_hit(notes, slips, habits, rng)
    if notes.page == "sub":
        return Move("back", "click[< prev]")
    return _handle_item(notes, told[0] if told else None, slips, habits, rng)


def _search(notes: Notebook, lazy: bool, rng: random.Random) -> Move:
    wish = notes.wish
    words = [wish.things, *wish.properties, *wish.options.values()]
    if lazy:
        words = words[: rng.choice((1, 1, 2))]
    return Move("search", f"search[{' '.join(words)}]")


def _find_again(notes: Notebook, product: str, title: str) -> Move:
    """With a hint: open the product meant, or search for its brand, line and kind where it is not listed."""
    if product in (*notes.fitting[:LISTED], *notes.rest[:LISTED]):
        return Move("open it", f"click[{product}]")
    return Move("search", f"search[{title.partition(',')[0]}]")


def _choose_hit(notes: Notebook, slips: Callable[[float], bool], habits: WebShopHabits, rng: random.Random) -> Move:
    if notes.number == 1 and slips(habits.turn_page):
        return Move("look on", "click[next >]")
    listed = [*notes.fitting[:LISTED], *notes.rest[:LISTED]]
    if listed and slips(habits.careless):
        return Move("open any", f"click[{rng.choice(listed)}]")
    if notes.fitting:
        return Move("open it", f"click[{notes.fitting[0]}]")
    return Move("look on", "click[next >]") if notes.number < 3 else Move("back", "click[back to search]")


def _handle_item(
    notes: Notebook, meant: str | None, slips: Callable[[float], bool], habits: WebShopHabits, rng: random.Random
) -> Move:
    read = notes.item in notes.looked
    if not notes.choice and not read and slips(habits.read_on):
        return Move("read", f"click[{rng.choice(('description', 'reviews'))}]")
    complete = len(notes.properties) == len(notes.wish.properties)
    unfit = notes.dear or bool(notes.lacking) or (read and not complete)
    if (unfit if meant is None else meant != notes.item) and not slips(habits.settle):
        return Move("back", "click[< prev]")
    if notes.left and not slips(habits.forget_option):
        return Move("choose", f"click[{notes.left[0]}]")
    if not notes.left and not complete and not read and meant is None and not slips(habits.skip_features):
        return Move("check", "click[features]")
    return Move("buy", "click[buy now]")
