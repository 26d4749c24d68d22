"""What a shopper who pays attention knows: the wish, and notes on the shop kept from the episode so far.

Everything follows from what the agent read and did; nothing is asked of the shop. The notes hold what the
pages themselves forget: which options were chosen, which products were already opened, and which of the wished
properties were read about the product on display. The wording is that of the generated shop's wishes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

LISTED = 6
"""How many fitting results, and how many others, a prompt lists."""

_SEPARATOR = " [SEP] "
_WISH = re.compile(
    r"(?:looking for|find|need) (?P<things>.+?) with (?P<wishes>.+?)"
    r"(?: with (?P<options>\w+: .+?))?(?:, and price lower than (?P<limit>[\d.]+) dollars)?$"
)
_OPTION = re.compile(r"(\w+): (.+?)(?:, and |$)")
_AMOUNT = re.compile(r"\$([\d.]+)")
_CLICK = re.compile(r"click\[(.+)\]")


@dataclass(frozen=True)
class Wish:
    """An instruction taken apart.

    Args:
        things: what to buy, such as ``"rain jackets"``.
        properties: what it must be, such as ``("hidden pockets", "wrinkle free")``.
        options: option name -> wanted value.
        limit: dollars it may cost at most; infinity where none is named.
    """

    things: str
    properties: tuple[str, ...]
    options: dict[str, str]
    limit: float


@dataclass(frozen=True)
class Hit:
    """A line of a results page.

    Args:
        id: product id, lower case.
        dear: whether its price may be over the limit.
        other: whether its title names another kind of thing.
    """

    id: str
    dear: bool
    other: bool


@dataclass
class Notebook:
    """What a shopper who pays attention knows after some turns.

    Args:
        wish: what was asked for.
        page: ``"search"``, ``"results"``, ``"item"``, ``"sub"``.
        number: which results page was opened last.
        hits: what that page lists.
        opened: products whose page was opened, in order, the one on display last.
        item: the product on display, or None.
        dear: whether its price may be over the limit.
        offers: option value on its page -> option name.
        choice: option name -> value clicked last since it was opened.
        found: product -> wished properties read about it, in its title or on its sub-pages.
        looked: products whose features were read.
    """

    wish: Wish
    page: str = "search"
    number: int = 0
    hits: tuple[Hit, ...] = ()
    opened: list[str] = field(default_factory=list)
    item: str | None = None
    dear: bool = False
    offers: dict[str, str] = field(default_factory=dict)
    choice: dict[str, str] = field(default_factory=dict)
    found: dict[str, list[str]] = field(default_factory=dict)
    looked: list[str] = field(default_factory=list)

    @property
    def fitting(self) -> list[str]:
        """Listed products of the right kind and price that were not opened yet, best match first."""
        return [hit.id for hit in self.hits if not (hit.dear or hit.other or hit.id in self.opened)]

    @property
    def rest(self) -> list[str]:
        """The other listed products."""
        return [hit.id for hit in self.hits if hit.id not in self.fitting]

    @property
    def left(self) -> list[str]:
        """Wanted option values that are offered and not chosen yet, in the order of the wish."""
        return [v for v in self.wish.options.values() if v in self.offers and v not in self.choice.values()]

    @property
    def lacking(self) -> list[str]:
        """Wanted option values that the product on display does not come in."""
        return [value for value in self.wish.options.values() if value not in self.offers]

    @property
    def properties(self) -> list[str]:
        """Wished properties that were read about the product on display."""
        return [p for p in self.wish.properties if p in self.found.get(self.item or "", [])]

    def read(self, action: str, observation: str) -> None:
        """Take in an action and the page it led to."""
        clicked = _CLICK.match(action)
        target = clicked[1].lower() if clicked else ""
        parts = _body(observation)
        if parts == ["Search"]:
            self.page, self.item = "search", None
        elif len(parts) > 1 and parts[1].startswith("Page "):
            self._read_results(parts)
        elif any(part.startswith("Price: ") for part in parts):
            self._read_item(target, parts)
        else:
            self.page = "sub"
            self._find(" ".join(parts))
            if target == "features" and self.item not in (None, *self.looked):
                self.looked.append(str(self.item))

    def _read_results(self, parts: list[str]) -> None:
        self.page, self.item, self.choice = "results", None, {}
        self.number = int(parts[1].split()[1])
        rows = parts[parts.index("Next >") + 1 :]
        self.hits = tuple(
            Hit(rows[i].lower(), self._dear(rows[i + 2]), not self._is_kind(rows[i + 1]))
            for i in range(0, len(rows) - 2, 3)
        )

    def _read_item(self, target: str, parts: list[str]) -> None:
        price = next(i for i, part in enumerate(parts) if part.startswith("Price: "))
        if self.page == "results" and target in {hit.id for hit in self.hits}:
            self.item, self.choice = target, {}
            self.opened = [*(product for product in self.opened if product != target), target]
        self.page = "item"
        self.dear = self._dear(parts[price])
        self.offers, name = {}, ""
        for part in parts[2 : price - 1]:
            if part in self.wish.options:
                name = part
            else:
                self.offers[part] = name
        self._find(parts[price - 1])
        if target in self.offers:
            self.choice[self.offers[target]] = target

    def _find(self, text: str) -> None:
        known = self.found.setdefault(self.item or "", [])
        known += [name for name in self._named(text) if name not in known]

    def _named(self, text: str) -> tuple[str, ...]:
        return tuple(name for name in self.wish.properties if name in text.lower())

    def _is_kind(self, title: str) -> bool:
        singular = re.sub("s$", "", re.sub("ves$", "f", self.wish.things))
        return singular in title.lower()

    def _dear(self, tag: str) -> bool:
        return max((float(amount) for amount in _AMOUNT.findall(tag)), default=0.0) > self.wish.limit


def read_wish(observation: str) -> Wish:
    """The instruction that stands on every page, taken apart.

    Raises:
        ValueError: there is none, or it is worded in another way than the generated shop's.
    """
    _, found, rest = observation.partition(f"Instruction:{_SEPARATOR}")
    text = rest.split(_SEPARATOR)[0] if found else ""
    match = _WISH.search(text.lower().strip())
    if match is None:
        raise ValueError(
            f"read_wish: observation must hold a wish of the generated shop, got {observation[:90]!r}; "
            "leave build_messages out for other shops"
        )
    return Wish(
        match["things"],
        tuple(match["wishes"].split(" and ")),
        dict(_OPTION.findall(match["options"] or "")),
        float(match["limit"] or "inf"),
    )


def keep_notes(observations: Sequence[str], actions: Sequence[str]) -> Notebook:
    """The notebook after all `observations` (the first page onwards) and the `actions` between them.

    Raises:
        ValueError: there is not one observation more than actions, or no wish can be read.
    """
    if len(observations) != len(actions) + 1:
        raise ValueError(
            f"keep_notes: observations must be one more than actions, got {len(observations)} and {len(actions)}; "
            "pass every page since the start"
        )
    notes = Notebook(read_wish(observations[0]))
    for action, observation in zip(actions, observations[1:], strict=True):
        notes.read(action, observation)
    return notes


def _body(observation: str) -> list[str]:
    """The visible strings after the instruction."""
    parts = observation.split(_SEPARATOR)
    return parts[parts.index("Instruction:") + 2 :] if "Instruction:" in parts else parts
