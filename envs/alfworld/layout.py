"""A house drawn at random for one task: furniture, things, where each lies, and what must be done."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from dataclasses import dataclass, field

from .houses import LAMP_STANDS, ROOMS, SIZES, STATIONS, TASK_ROOMS, HouseSize, Room, WheelFacts


@dataclass(frozen=True)
class Item:
    """A piece of furniture or a thing. Args: kind ("Mug"), identifier as the game files spell it."""

    kind: str
    identifier: str


@dataclass(frozen=True)
class Layout:
    """One game before it is written down.

    Args:
        task_type: one of the six.
        scene: ALFRED's scene number for the room.
        target: kind of the thing to bring or to look at.
        destination: kind of furniture where it must go; empty for the light task.
        lamp: kind of lamp to use; empty for the other tasks.
        wording: which of the task's wordings is used.
        receptacles: the furniture, in order.
        placed: every thing with the position (in ``receptacles``) of where it lies; target things first.
        serial: digits for the trial's name.
    """

    task_type: str
    scene: int
    target: str
    destination: str
    lamp: str
    wording: int
    receptacles: tuple[Item, ...]
    placed: tuple[tuple[Item, int], ...]
    serial: int = field(default=0, compare=False)

    @property
    def signature(self) -> str:
        """What makes two games the same for a player: the task and which kinds lie together in which furniture."""
        contents: list[list[str]] = [[] for _ in self.receptacles]
        for thing, where in self.placed:
            contents[where].append(thing.kind)
        shelves = sorted([item.kind, *sorted(things)] for item, things in zip(self.receptacles, contents, strict=True))
        text = json.dumps([self.task_type, self.target, self.destination, self.lamp, shelves])
        return hashlib.sha256(text.encode()).hexdigest()


def draw_layout(task_type: str, size: str, rng: random.Random, wheel: WheelFacts) -> Layout:
    """Draw a house in which `task_type` can be done; the same generator state gives the same house."""
    while True:
        layout = _attempt(task_type, SIZES[size], rng, wheel)
        if layout is not None:
            return layout


def _attempt(task_type: str, size: HouseSize, rng: random.Random, wheel: WheelFacts) -> Layout | None:
    room = ROOMS[rng.choice(TASK_ROOMS[task_type])]
    station = STATIONS.get(task_type)
    light = task_type == "look_at_obj_in_light"
    candidates = [kind for kind in room.objects if station is None or kind in wheel.able[station.property]]
    target = rng.choice(candidates)
    homes = [kind for kind in room.receptacles if target in wheel.holds.get(kind, ())]
    destination = "" if light else rng.choice([kind for kind in homes if station is None or kind != station.receptacle])
    sources = [kind for kind in homes if kind != destination]
    if not sources:
        return None
    needed = [rng.choice(sources)] + [kind for kind in (destination, station.receptacle if station else "") if kind]
    lamp = rng.choice(room.lamps) if light else ""
    if light:
        needed.append(rng.choice([kind for kind in room.receptacles if kind in LAMP_STANDS]))
    kinds = _furnish(room, needed, size, rng)
    namer = _Namer(rng)
    receptacles = tuple(Item(kind, namer(kind)) for kind in kinds)
    placed = _place(task_type, room, target, destination, lamp, receptacles, size, rng, wheel, namer)
    if placed is None:
        return None
    return Layout(
        task_type=task_type,
        scene=rng.randint(*room.scenes),
        target=target,
        destination=destination,
        lamp=lamp,
        wording=rng.randrange(len(wheel.goals[task_type]["templates"])),
        receptacles=receptacles,
        placed=placed,
        serial=rng.randrange(10**6),
    )


def _furnish(room: Room, needed: list[str], size: HouseSize, rng: random.Random) -> list[str]:
    chosen = Counter(dict.fromkeys(needed, 1))
    total = rng.randint(*size.receptacles)
    for kind in room.core:
        if chosen[kind] == 0 and chosen.total() < total - 1:
            chosen[kind] = 1
    spare = [
        kind for kind, most in room.receptacles.items() for _ in range(min(most, size.copies) - min(chosen[kind], most))
    ]
    rng.shuffle(spare)
    chosen.update(spare[: max(0, total - chosen.total())])
    return [kind for kind in sorted(chosen) for _ in range(chosen[kind])]


def _place(
    task_type: str, room: Room, target: str, destination: str, lamp: str, receptacles: tuple[Item, ...],
    size: HouseSize, rng: random.Random, wheel: WheelFacts, namer: _Namer,
) -> tuple[tuple[Item, int], ...] | None:  # fmt: skip
    load = Counter[int]()
    placed: list[tuple[Item, int]] = []

    def put(kind: str, spots: list[int]) -> bool:
        spots = [spot for spot in spots if load[spot] < size.crowding]
        if not spots:
            return False
        where = rng.choice(spots)
        load[where] += 1
        placed.append((Item(kind, namer(kind)), where))
        return True

    def homes(kind: str) -> list[int]:
        return [i for i, item in enumerate(receptacles) if kind in wheel.holds.get(item.kind, ())]

    wanted = (2 if task_type == "pick_two_obj_and_place" else 1) + (rng.random() < 0.3)
    sources = [spot for spot in homes(target) if receptacles[spot].kind != destination]
    if not all(put(target, sources) for _ in range(wanted)):
        return None
    if lamp and not put(lamp, [i for i, item in enumerate(receptacles) if item.kind in LAMP_STANDS]):
        return None
    others = [kind for kind in room.objects if kind != target and homes(kind)]
    copies = Counter[str]()
    for _ in range(rng.randint(*size.objects) - len(placed)):
        kind = rng.choice(others)
        if copies[kind] < 3 and put(kind, homes(kind)):
            copies[kind] += 1
    return tuple(placed)


class _Namer:
    """Identifiers with coordinates in ALFRED's spelling, all different."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._used: set[tuple[int, ...]] = set()

    def __call__(self, kind: str) -> str:
        while True:
            spot = (self._rng.randint(-300, 300), self._rng.randint(0, 200), self._rng.randint(-300, 300))
            if spot not in self._used:
                break
        self._used.add(spot)
        where = "_bar_".join(_coordinate(value) for value in spot)
        return f"{kind[:-5]}_bar_{where}_bar_{kind}" if kind.endswith("Basin") else f"{kind}_bar_{where}"


def _coordinate(hundredths: int) -> str:
    sign = "minus" if hundredths < 0 else "plus"
    whole, rest = divmod(abs(hundredths), 100)
    return f"_{sign}_{whole:02d}_dot_{rest:02d}"
