"""What may stand in which room: the tables that the generator draws from, and the facts of the alfworld wheel.

The room tables are ours, loosely after the 120 rooms that ALFWorld's games play in. What may lie where, which things
can be heated, cooled or cleaned, the goals and the rules of the game come from the installed wheel.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Room:
    """A kind of room.

    Args:
        scenes: first and last scene number that ALFRED gives this kind of room.
        receptacles: kinds of furniture and the most copies of each in a large house.
        core: furniture that every room of this kind has.
        objects: kinds of things that lie about.
        lamps: lamps that may stand here, for the tasks that need light.
    """

    scenes: tuple[int, int]
    receptacles: Mapping[str, int]
    core: tuple[str, ...]
    objects: tuple[str, ...]
    lamps: tuple[str, ...] = ()


@dataclass(frozen=True)
class HouseSize:
    """How much there is: inclusive ranges of receptacles and of things, and the most copies of one receptacle."""

    receptacles: tuple[int, int]
    objects: tuple[int, int]
    copies: int
    crowding: int


SIZES = {
    "small": HouseSize((6, 8), (5, 8), copies=2, crowding=3),
    "medium": HouseSize((11, 15), (12, 18), copies=4, crowding=5),
    "large": HouseSize((20, 28), (22, 34), copies=8, crowding=8),
}

ROOMS = {
    "kitchen": Room(
        scenes=(1, 30),
        receptacles={
            "Cabinet": 8, "Drawer": 6, "CounterTop": 3, "Shelf": 3, "StoveBurner": 4, "DiningTable": 2, "SideTable": 1,
            "Fridge": 1, "Microwave": 1, "SinkBasin": 1, "GarbageCan": 1, "CoffeeMachine": 1, "Toaster": 1,
        },
        core=("Fridge", "Microwave", "SinkBasin", "CounterTop"),
        objects=(
            "Apple", "Bowl", "Bread", "ButterKnife", "Cup", "DishSponge", "Egg", "Fork", "Glassbottle", "Kettle",
            "Knife", "Ladle", "Lettuce", "Mug", "Pan", "PepperShaker", "Plate", "Pot", "Potato", "SaltShaker",
            "SoapBottle", "Spatula", "Spoon", "Tomato", "WineBottle",
        ),
    ),
    "livingroom": Room(
        scenes=(201, 230),
        receptacles={
            "Drawer": 6, "Shelf": 6, "SideTable": 3, "ArmChair": 2, "CoffeeTable": 2, "Sofa": 1, "DiningTable": 1,
            "Dresser": 1, "Safe": 1, "Ottoman": 1, "TVStand": 1, "GarbageCan": 1, "Desk": 1, "Cabinet": 4,
        },
        core=("Sofa", "CoffeeTable"),
        objects=(
            "Book", "Box", "CellPhone", "CreditCard", "KeyChain", "Laptop", "Newspaper", "Pillow", "RemoteControl",
            "Statue", "Vase", "Watch", "WateringCan", "TissueBox", "Candle",
        ),
        lamps=("DeskLamp", "FloorLamp"),
    ),
    "bedroom": Room(
        scenes=(301, 330),
        receptacles={
            "Drawer": 8, "Shelf": 6, "SideTable": 2, "Desk": 2, "Bed": 1, "Dresser": 1, "Safe": 1, "ArmChair": 1,
            "GarbageCan": 1, "LaundryHamper": 1, "Cabinet": 4,
        },
        core=("Bed", "Desk"),
        objects=(
            "AlarmClock", "BaseballBat", "BasketBall", "Book", "Bowl", "Box", "CD", "CellPhone", "Cloth",
            "CreditCard", "KeyChain", "Laptop", "Mug", "Pen", "Pencil", "Pillow", "TennisRacket", "Watch", "TissueBox",
        ),
        lamps=("DeskLamp",),
    ),
    "bathroom": Room(
        scenes=(401, 430),
        receptacles={
            "Cabinet": 6, "Drawer": 4, "Shelf": 2, "SinkBasin": 2, "HandTowelHolder": 2, "TowelHolder": 1,
            "CounterTop": 1, "Toilet": 1, "BathtubBasin": 1, "ToiletPaperHanger": 1, "Cart": 1, "SideTable": 1,
            "GarbageCan": 1,
        },
        core=("SinkBasin", "Toilet", "CounterTop"),
        objects=(
            "Candle", "Cloth", "DishSponge", "HandTowel", "SoapBar", "SoapBottle", "SprayBottle", "TissueBox",
            "ToiletPaper", "Towel", "Plunger",
        ),
    ),
}  # fmt: skip

TASK_ROOMS: dict[str, tuple[str, ...]] = {
    "pick_and_place_simple": ("kitchen", "livingroom", "bedroom", "bathroom"),
    "look_at_obj_in_light": ("livingroom", "bedroom"),
    "pick_clean_then_place_in_recep": ("kitchen", "bathroom"),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_cool_then_place_in_recep": ("kitchen",),
    "pick_two_obj_and_place": ("kitchen", "livingroom", "bedroom", "bathroom"),
}


@dataclass(frozen=True)
class Station:
    """Where a thing is changed. Args: furniture, verb of the command, property that the thing must have."""

    receptacle: str
    verb: str
    property: str


STATIONS = {
    "pick_clean_then_place_in_recep": Station("SinkBasin", "clean", "Cleanable"),
    "pick_heat_then_place_in_recep": Station("Microwave", "heat", "Heatable"),
    "pick_cool_then_place_in_recep": Station("Fridge", "cool", "Coolable"),
}
OPENABLE = frozenset({"Fridge", "Cabinet", "Microwave", "Drawer", "Safe"})
LAMP_STANDS = frozenset({"Desk", "SideTable", "CoffeeTable", "DiningTable", "Dresser", "Shelf"})
PROPERTIES = {"Cleanable": "cleanable", "Heatable": "heatable", "Coolable": "coolable", "Sliceable": "sliceable"}


@dataclass(frozen=True)
class WheelFacts:
    """What the alfworld wheel says.

    Args:
        domain: the PDDL domain.
        grammar: the text grammar, with ``UNKNOWN GOAL`` where the task goes.
        goals: per task type, the goal in PDDL and the wordings of the task.
        holds: per receptacle kind, the kinds of things that may lie in it, sorted.
        able: per property ("Heatable", ..), the kinds of things that have it.
        movable: kinds of things that can themselves hold things.
    """

    domain: str
    grammar: str
    goals: Mapping[str, Mapping[str, Any]]
    holds: Mapping[str, tuple[str, ...]]
    able: Mapping[str, frozenset[str]]
    movable: frozenset[str]


@lru_cache(maxsize=1)
def wheel_facts() -> WheelFacts:
    """Read the wheel's data without importing the package, which would create folders and set ALFWORLD_DATA.

    Raises:
        ImportError: the wheel is not installed.
    """
    spec = importlib.util.find_spec("alfworld")
    if spec is None or spec.origin is None:
        raise ImportError(
            "wheel_facts: alfworld must be installed to generate games, got no such package; "
            'run: pip install "turncredit[alfworld]"'
        )
    folder = Path(spec.origin).parent
    constants, goals = (_module(folder / "gen" / f"{name}.py") for name in ("constants", "goal_library"))
    return WheelFacts(
        domain=(folder / "data" / "alfred.pddl").read_text(encoding="utf-8"),
        grammar=(folder / "data" / "alfred.twl2").read_text(encoding="utf-8"),
        goals=goals.gdict,
        holds={kind: tuple(sorted(things)) for kind, things in constants.VAL_RECEPTACLE_OBJECTS.items()},
        able={name: frozenset(things) for name, things in constants.VAL_ACTION_OBJECTS.items()},
        movable=frozenset(constants.MOVABLE_RECEPTACLES),
    )


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_alfworld_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"wheel_facts: {path.name} must be readable in the alfworld package; reinstall alfworld")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
