"""What only the shop knows about a goal, as privileged context: the product it was made from and what counts."""

from __future__ import annotations

from dataclasses import dataclass

from .data import Product
from .goals import NO_LIMIT, Goal
from .matching import alike, normalize_colour


@dataclass(frozen=True)
class Hint:
    """The facts that solve a goal.

    Args:
        name, asin: the product it was made from; attributes: what the reward looks for.
        options: (option name, value) to click, name empty where it is not known; price_upper: dollars, None without
            one.
    """

    name: str
    asin: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    price_upper: float | None

    @property
    def text(self) -> str:
        """The facts in words."""
        parts = [
            f'the product meant is "{self.name}" ({self.asin})',
            f"the properties that count are {', '.join(self.attributes)}",
        ]
        if self.options:
            wanted = ", ".join(f"{name}: {value}" if name else value for name, value in self.options)
            parts.append(f"the options to choose are {wanted}")
        if self.price_upper is not None:
            parts.append(f"the price limit is {self.price_upper:.2f} dollars")
        return "; ".join(parts)


def goal_hint(goal: Goal) -> Hint:
    """The hint of a goal."""
    limit = None if goal.price_upper == NO_LIMIT else goal.price_upper
    return Hint(goal.name, goal.asin, goal.attributes, goal.options, limit)


def wanted_values(goal: Goal, product: Product) -> list[str]:
    """The option values to click on the page of `product` for `goal`, one per wanted option.

    Raises:
        ValueError: no value of the product is like a wanted one.
    """
    values = [value for group in product.options.values() for value in group]
    chosen = []
    for name, wanted in goal.options:
        own = product.options.get(name, values)
        target = normalize_colour(wanted)
        likely = [wanted] if wanted in own else [value for value in own if alike(normalize_colour(value), target)]
        if not likely:
            raise ValueError(
                f"wanted_values: product must offer {wanted!r}, got {product.asin!r} without it; take another product"
            )
        chosen.append(likely[0])
    return chosen
