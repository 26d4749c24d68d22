"""What a teacher may read of a task, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from .checks import check_choice


class Contexts(Mapping[str, "str | None"]):
    """The contexts of one task; a text is made when it is asked for, so that an unread hint costs nothing.

    Args:
        names: of the contexts, in order.
        make: the text of a name, or None where the task has none.
    """

    def __init__(self, names: Sequence[str], make: Callable[[str], str | None]) -> None:
        self._names = tuple(names)
        self._make = make

    def __getitem__(self, name: str) -> str | None:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def chosen_contexts(owner: str, privileged: str, names: Sequence[str], both: str = "") -> tuple[str, ...]:
    """The names that `privileged` stands for: one, several joined by ``+``, ``"both"`` for `both`, or ``"none"``.

    Raises:
        ValueError: there is no such context.

    >>> chosen_contexts("Suite", "both", ("skills", "hint"), both="hint+skills")
    ('hint', 'skills')
    """
    if privileged == "none":
        return ()
    wanted, argument, known = privileged, "privileged", [*names, *(["both"] if both else []), "none"]
    if privileged == "both" and both:
        wanted, argument, known = both, "both", [*names]
    chosen = tuple(wanted.split("+")) if isinstance(wanted, str) else ()
    if not chosen or not {*chosen} <= {*names}:
        check_choice(owner, argument, wanted, known, 'name one, or join several with "+"')
    return chosen
