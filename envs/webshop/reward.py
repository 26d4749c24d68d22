"""The reward of a purchase, with every part reported.

    reward = r_type (n_att + n_opt + [price <= limit]) / (|attributes| + |options| + 1)

Source: WebShop (arXiv 2207.01206), section 4, as its text environment computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .data import Product
from .goals import Goal
from .matching import COLOURS, alike, normalize_colour

_ARROW = "\u203a"


@dataclass(frozen=True)
class Reward:
    """A purchase judged. `value` is in [0, 1]; the r_ fields are the parts, the w_ fields their weights.

    Args:
        value: the reward.
        r_type: 1, 0.5, 0.1 or 0, by how well the kind of product agrees; from query_match, category_match, title_score.
        r_att, w_att: share of the goal's attributes found, and the weight of that share.
        r_option, w_option: the same for options; None where the goal has no options.
        r_price, w_price: whether the price is within the limit, and its weight.
    """

    value: float
    r_type: float
    r_att: float
    w_att: float
    query_match: bool
    category_match: bool
    title_score: float
    r_option: float | None
    w_option: float | None
    r_price: bool
    w_price: float

    def parts(self) -> dict[str, float | bool]:
        """All parts by name, without the option parts where the goal has no options."""
        fields = {name: value for name, value in vars(self).items() if name != "value"}
        return {name: value for name, value in fields.items() if value is not None}


def purchase_reward(
    product: Product,
    goal: Goal,
    options: Mapping[str, str],
    nouns: Callable[[str], Sequence[str]],
    *,
    price: float | None = None,
    strict_original: bool = False,
) -> Reward:
    """Judge a purchase.

    Args:
        product: what was bought; options: option name -> value chosen on its page.
        goal: what was asked for.
        nouns: title -> lower-case nouns.
        price: dollars paid; None takes the product's price.
        strict_original: compare the options of a synthetic goal as the original does, as (name, value) pairs turned
            into text; then some goals cannot reach 1 with their own product. The default compares values.
    """
    r_type, query_match, category_match, title_score = type_reward(product, goal, nouns)
    found = sum(has_attribute(product, attribute) for attribute in goal.attributes)
    chosen = sum(option_match(target, options) for target in option_targets(goal, strict_original))
    affordable = (product.price if price is None else price) <= goal.price_upper
    asked, wanted = len(goal.attributes), len(goal.options)
    total = asked + wanted + 1
    return Reward(
        value=(found + chosen + affordable) / total * r_type,
        r_type=r_type,
        r_att=found / asked if asked else 0.0,
        w_att=asked / total,
        query_match=query_match,
        category_match=category_match,
        title_score=title_score,
        r_option=chosen / wanted if wanted else None,
        w_option=wanted / total if wanted else None,
        r_price=affordable,
        w_price=1 / total,
    )


def type_reward(product: Product, goal: Goal, nouns: Callable[[str], Sequence[str]]) -> tuple[float, bool, bool, float]:
    """(r_type, query_match, category_match, title_score) of a product for a goal."""
    query_match = product.query == goal.query
    category_match = len(_levels(product.product_category) & _levels(goal.product_category)) >= 2
    wanted = nouns(goal.name)
    title_score = len(set(nouns(product.title)) & set(wanted)) / len(wanted) if wanted else 0.2
    if title_score == 0.0:
        r_type = 0.0
    elif title_score < 0.1:
        r_type = 0.1
    else:
        r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    return r_type, query_match, category_match, title_score


@lru_cache(maxsize=1 << 16)
def has_attribute(product: Product, attribute: str) -> bool:
    """Whether a goal attribute is like one of the product's, or stands in its title, features or description."""
    return any(alike(own, attribute) for own in product.attributes) or any(
        attribute in text.lower() for text in (product.title, " ".join(product.bullets), product.description)
    )


def option_match(target: str, chosen: Mapping[str, str]) -> bool:
    """Whether the value of some chosen option, its colour normalised, is like `target`."""
    return any(alike(normalize_colour(value), target) for value in chosen.values())


def option_targets(goal: Goal, strict_original: bool = False) -> list[str]:
    """The goal's options as they are compared: values with colours normalised.

    The original hands on (name, value) pairs where the goal came as a table: a pair counts as a colour only if its
    value is exactly one, and is compared as the text of a tuple otherwise. `strict_original` repeats that.
    """
    if strict_original and goal.named_options:
        return [next((colour for colour in COLOURS if colour in pair), str(pair)) for pair in goal.options]
    return [normalize_colour(value) for _, value in goal.options]


@lru_cache(maxsize=1 << 14)
def _levels(path: str) -> frozenset[str]:
    return frozenset(level.strip() for level in path.split(_ARROW))
