"""What only the shop knows about a goal, as privileged context: the product it was made from and what counts."""

from __future__ import annotations

from dataclasses import dataclass

from .goals import NO_LIMIT, Goal


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
