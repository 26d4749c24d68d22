"""Goals: what a shopper is asked to buy, in the original's order, each with an id that no worker changes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .data import Product

GoalSet = Literal["synthetic", "human"]

SHUFFLE_SEED = 233
NO_LIMIT = 1_000_000.0
"""Price limit of a goal whose product is dearer than the limits go."""

SPLIT_NAMES = ("train", "eval", "test")
_LIMITS = tuple(10.0 * step for step in range(1, 100))


@dataclass(frozen=True)
class Goal:
    """One shopping goal.

    Args:
        asin: the product it was made from; name, query, category, product_category: that product's.
        instruction: what the agent reads.
        attributes: hidden attributes asked for.
        options: (option name, value) pairs; a goal written by a person names values only, so names are empty there.
        price_upper: dollars the product may cost at most.
        named_options: whether `options` came as a name -> value table (synthetic goals).
        id: ``"<goal set>-<position after the shuffle>"``.
    """

    asin: str
    name: str
    query: str
    category: str
    product_category: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    price_upper: float
    named_options: bool = True
    id: str = ""


def goal_from_record(record: Mapping[str, Any]) -> Goal:
    """A goal from the original's form: ``goal_options`` is a table (synthetic) or a list (human)."""
    options = record["goal_options"]
    named = isinstance(options, Mapping)
    return Goal(
        asin=record["asin"],
        name=record["name"],
        query=record["query"],
        category=record.get("category", ""),
        product_category=record["product_category"],
        instruction=record.get("instruction_text", ""),
        attributes=tuple(record["attributes"]),
        options=tuple(options.items()) if isinstance(options, Mapping) else tuple(("", value) for value in options),
        price_upper=record["price_upper"],
        named_options=named,
    )


def build_goals(
    products: Sequence[Product],
    kind: GoalSet = "synthetic",
    *,
    rng: random.Random | None = None,
    shuffle_seed: int = SHUFFLE_SEED,
) -> list[Goal]:
    """All goals of a catalogue in the fixed order: catalogue order, shuffled once with seed 233.

    The position after the shuffle is the goal's id and decides its split; see `split_ranges`. Price limits are one of
    the four multiples of ten above the price.

    Args:
        products: the catalogue, in file order.
        kind: ``"synthetic"`` makes one goal per combination of option values, ``"human"`` takes people's instructions.
        rng: draws the price limits in catalogue order, as the original does; None fixes them per product.
        shuffle_seed: another seed gives other splits; only a comparison with foreign transcripts needs one.

    Raises:
        ValueError: an unknown `kind`, or a catalogue without such goals.
    """
    if kind not in ("synthetic", "human"):
        raise ValueError(f'build_goals: kind must be "synthetic" or "human", got {kind!r}; choose one of them')
    make = _synthetic if kind == "synthetic" else _human
    goals = [goal for product in products for goal in make(product, rng)]
    if not goals:
        raise ValueError(
            f"build_goals: products must hold {kind} goals, got none in {len(products)} products; "
            "check that the instruction file belongs to the catalogue"
        )
    random.Random(shuffle_seed).shuffle(goals)
    return [_with_id(goal, f"{kind}-{position}") for position, goal in enumerate(goals)]


def split_ranges(count: int) -> dict[str, range]:
    """Positions of each split: test 0-499, eval 500-1499, train the rest.

    Fewer than 2000 goals are divided in the same order and roughly the same spirit: one part in six each for test and
    eval, four for train.

    >>> split_ranges(6910)["train"]
    range(1500, 6910)
    >>> [len(part) for part in split_ranges(13).values()]
    [9, 2, 2]
    """
    test, held = (500, 1500) if count >= 2000 else (count // 6, count // 6 * 2)
    return {"train": range(held, count), "eval": range(test, held), "test": range(test)}


def _with_id(goal: Goal, goal_id: str) -> Goal:
    object.__setattr__(goal, "id", goal_id)
    return goal


def _price_limit(price: float, rng: random.Random) -> float:
    candidates = [limit for limit in _LIMITS if limit > price][:4]
    return max(rng.sample(candidates, 2)) if len(candidates) >= 2 else NO_LIMIT


def _limit_text(limit: float) -> str:
    return "" if limit == NO_LIMIT else f", and price lower than {limit:.2f} dollars"


def _synthetic(product: Product, rng: random.Random | None) -> list[Goal]:
    if product.instruction is None:
        return []
    limit = _price_limit(product.price, rng or random.Random(f"limit:{product.asin}"))
    names = sorted(product.options)
    goals = []
    for values in itertools.product(*(product.options[name] for name in names)):
        options = tuple(zip(names, values, strict=True))
        wanted = ", and ".join(f"{name}: {value}" for name, value in options)
        text = f"{product.instruction}{' with ' if wanted else ''}{wanted}{_limit_text(limit)}"
        goals.append(_goal(product, text, product.instruction_attributes, options, limit, named=True))
    return goals


def _human(product: Product, rng: random.Random | None) -> list[Goal]:
    goals = []
    for number, record in enumerate(product.human):
        attributes = tuple(record["instruction_attributes"])
        if not attributes:
            continue
        limit = _price_limit(product.price, rng or random.Random(f"limit:{product.asin}:{number}"))
        text = record["instruction"].strip(".") + _limit_text(limit)
        options = tuple(("", value) for value in record["instruction_options"])
        goals.append(_goal(product, text, attributes, options, limit, named=False))
    return goals


def _goal(
    product: Product,
    text: str,
    attributes: tuple[str, ...],
    options: tuple[tuple[str, str], ...],
    limit: float,
    *,
    named: bool,
) -> Goal:
    return Goal(
        asin=product.asin,
        name=product.title,
        query=product.query,
        category=product.category,
        product_category=product.product_category,
        instruction=text,
        attributes=attributes,
        options=options,
        price_upper=limit,
        named_options=named,
    )
