"""What a game file gives away: where the wanted things are, which station changes them, and where they must go."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_COMMAND = re.compile(
    r"(?P<verb>go to|take|move|heat|cool|clean|use) (?P<thing>.+?)(?: (?:from|to|with) (?P<place>.+))?"
)
_CLOSABLE = ("fridge", "cabinet", "microwave", "drawer", "safe")


@dataclass(frozen=True)
class Hint:
    """The facts that solve one game, all names as the player sees them.

    Args:
        things: (thing, where it lies at the start) for each thing to fetch, in a good order.
        change: (verb, station), for example ("heat", "microwave 1"); None where nothing is to be changed.
        lamp: (lamp, where it stands) for the light task, else None.
        destination: where everything must be put; None for the light task.
        already_there: how many further wanted things lie at the destination from the start.
    """

    things: tuple[tuple[str, str], ...]
    change: tuple[str, str] | None = None
    lamp: tuple[str, str] | None = None
    destination: str | None = None
    already_there: int = 0

    @property
    def text(self) -> str:
        """One sentence, in the words of the engine's commands.

        >>> Hint((("apple 1", "fridge 1"),), ("heat", "microwave 1"), destination="countertop 2").text
        'the apple 1 is in fridge 1; heat it with microwave 1; move it to countertop 2'
        """
        clauses = [
            f"the {thing} is {'in' if place.startswith(_CLOSABLE) else 'on'} {place}" for thing, place in self.things
        ]
        them = "both" if len(self.things) > 1 else "it"
        if self.change is not None:
            clauses.append(f"{self.change[0]} {them} with {self.change[1]}")
        if self.lamp is not None:
            clauses.append(f"take it to {self.lamp[1]} and use {self.lamp[0]}")
        if self.destination is not None:
            clauses.append(f"move {them} to {self.destination}")
        if self.already_there:
            clauses.append(f"{self.already_there} more is there already")
        return "; ".join(clauses)


def hint_from_walkthrough(walkthrough: Sequence[str], task_type: str) -> Hint:
    """Read the facts off a winning walkthrough, which every game file holds.

    Args:
        walkthrough: commands that win the game.
        task_type: one of the six folder names.

    Raises:
        ValueError: the walkthrough fetches nothing.
    """
    here = ""
    taken: dict[str, str] = {}
    put: dict[str, str] = {}
    change = lamp = None
    for command in walkthrough:
        match = _COMMAND.fullmatch(command)
        if match is None:
            continue
        verb, thing, place = match["verb"], match["thing"], match["place"]
        if verb == "go to":
            here = thing
        elif verb == "take":
            taken.setdefault(thing, place)
        elif verb == "move":
            put[thing] = place
        elif verb == "use":
            lamp = (thing, here)
        else:
            change = (verb, place)
    if not taken:
        raise ValueError(
            f"hint_from_walkthrough: walkthrough must take something, got {list(walkthrough)!r}; "
            "check that the game file is whole"
        )
    if task_type == "look_at_obj_in_light":
        return Hint(things=tuple(taken.items())[-1:], lamp=lamp)
    destination = list(put.values())[-1] if put else None
    things = tuple((thing, place) for thing, place in taken.items() if put.get(thing) == destination)
    wanted = 2 if task_type == "pick_two_obj_and_place" else 1
    return Hint(things[-wanted:], change, None, destination, already_there=max(0, wanted - len(things)))
