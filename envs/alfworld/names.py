"""Names that players see, from the identifiers of the game files: ``Apple_bar_..`` becomes ``apple 2``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def kind_of(identifier: str) -> str:
    """The kind in front of the coordinates; sinks and bathtubs with a basin are named for the basin."""
    head, separator, _ = identifier.partition("_bar_")
    return head + "basin" if separator and "basin" in identifier else head


def entity_names(identifiers: Iterable[str]) -> dict[str, str]:
    """The name of every entity of a game, as ALFWorld numbers them: sorted identifiers count down to 1 per kind.

    Args:
        identifiers: all entities of the game, lower-case as the translator gives them.

    >>> entity_names(["apple_bar_1", "apple_bar_2", "agent1"])
    {'agent1': 'agent1 ', 'apple_bar_1': 'apple 2', 'apple_bar_2': 'apple 1'}
    """
    ordered = sorted(set(identifiers))
    left = Counter(kind_of(identifier) for identifier in ordered if "_bar_" in identifier)
    names = {}
    for identifier in ordered:
        if "_bar_" not in identifier:
            names[identifier] = f"{identifier} "
            continue
        kind = kind_of(identifier)
        names[identifier] = f"{kind} {left[kind]}"
        left[kind] -= 1
    return names
