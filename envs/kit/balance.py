"""A panel in which every type of task has its share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from operator import attrgetter
from typing import Any, TypeVar

from .checks import check_counts

Item = TypeVar("Item")


def balanced(items: Iterable[Item], limit: int, key: Callable[[Any], Hashable] = attrgetter("type")) -> list[Item]:
    """At most `limit` items, dealt from their types in turn: the counts of two types differ by one at most, unless one
    has no more.

    Types come in the order in which they first appear, the items of a type in their own. A larger limit only adds.

    Args:
        items: tasks, or anything that `key` reads a type from.
        limit: how many are kept.
        key: the type of an item; ``item.type`` if left out.

    Raises:
        TypeError, ValueError: the limit is no int, or below 1.

    >>> balanced(["a1", "a2", "a3", "b1"], 3, key=lambda item: item[0])
    ['a1', 'b1', 'a2']
    """
    check_counts("balanced", limit=(limit, 1, "leave it out for all"))
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    longest = max(map(len, groups.values()), default=0)
    return [group[place] for place in range(longest) for group in groups.values() if place < len(group)][:limit]
