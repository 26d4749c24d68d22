"""A layout written down as a game: PDDL problem, task text, shortest plain walkthrough, and ALFRED's metadata."""

from __future__ import annotations

import random
from typing import Any

from .houses import OPENABLE, PROPERTIES, STATIONS, WheelFacts
from .layout import Item, Layout
from .names import entity_names

_DOMAIN_TYPES = {"otype": ("SinkType", "KnifeType", "ButterKnifeType"),
                 "rtype": ("SinkBasinType", "MicrowaveType", "FridgeType")}  # fmt: skip


def task_wording(layout: Layout, wheel: WheelFacts) -> str:
    """The task as the player reads it, without full stop."""
    template = wheel.goals[layout.task_type]["templates"][layout.wording]
    return template.format(
        obj=layout.target.lower(), recep=layout.destination.lower(), toggle=layout.lamp.lower(), mrecep=""
    )


def pddl_problem(layout: Layout, name: str, wheel: WheelFacts) -> str:
    """The problem in PDDL. Everything openable is closed, and the agent stands in the middle of the room."""
    places = _locations(layout)
    furniture = list(zip(layout.receptacles, places[1:], strict=True))
    things = [(thing, furniture[where]) for thing, where in layout.placed]
    kinds = sorted({thing.kind for thing, _ in things})
    declared = [
        "agent1 - agent",
        *(f"{kind} - otype" for kind in sorted({*_DOMAIN_TYPES["otype"], *(f"{kind}Type" for kind in kinds)})),
        *(
            f"{kind} - rtype"
            for kind in sorted({*_DOMAIN_TYPES["rtype"], *(f"{item.kind}Type" for item in layout.receptacles)})
        ),
        *(f"{thing.identifier} - object" for thing, _ in things),
        *(f"{item.identifier} - receptacle" for item in layout.receptacles),
        *(f"{place} - location" for place in places),
    ]
    facts = [f"(atLocation agent1 {places[0]})"]
    for item, place in furniture:
        facts += [
            f"(receptacleType {item.identifier} {item.kind}Type)",
            f"(receptacleAtLocation {item.identifier} {place})",
        ]
        facts += [f"(openable {item.identifier})"] * (item.kind in OPENABLE)
    for kind in sorted({item.kind for item in layout.receptacles}):
        facts += [f"(canContain {kind}Type {thing}Type)" for thing in wheel.holds.get(kind, ()) if thing in kinds]
    for thing, (item, place) in things:
        facts += _facts_of(thing, wheel)
        facts += [
            f"(inReceptacle {thing.identifier} {item.identifier})",
            f"(objectAtLocation {thing.identifier} {place})",
        ]
    goal = wheel.goals[layout.task_type]["pddl"].format(
        obj=layout.target, recep=layout.destination, toggle=layout.lamp, mrecep=""
    )
    lines = [
        "",
        f"(define (problem plan_{name})",
        "(:domain alfred)",
        "(:objects",
        *declared,
        ")",
        "(:init",
        *facts,
        ")",
    ]
    return "\n".join(lines) + goal.replace("#", "-")


def _facts_of(thing: Item, wheel: WheelFacts) -> list[str]:
    lamp = thing.kind in wheel.able["Toggleable"]
    facts = [f"(objectType {thing.identifier} {thing.kind}Type)"]
    facts.append(f"({'toggleable' if lamp else 'pickupable'} {thing.identifier})")
    facts += [f"({word} {thing.identifier})" for able, word in PROPERTIES.items() if thing.kind in wheel.able[able]]
    facts += [f"(isReceptacleObject {thing.identifier})"] * (thing.kind in wheel.movable)
    return facts


def _locations(layout: Layout) -> list[str]:
    """A place for the start and one for each receptacle, all different, fixed by the layout's serial number."""
    rng = random.Random(layout.serial)
    cells = rng.sample([(x, z) for x in range(-8, 9) for z in range(-8, 9)], len(layout.receptacles) + 1)
    return [
        f"loc_bar_{_signed(x)}_bar_{_signed(z)}_bar_{rng.randrange(4)}_bar_{rng.choice((0, 30, 45, 60))}"
        for x, z in cells
    ]


def _signed(value: int) -> str:
    return f"_minus_{-value}" if value < 0 else str(value)


def walkthrough(layout: Layout) -> list[str]:
    """Commands that win: straight to each target thing, to the station if there is one, and to the destination."""
    names = entity_names(
        item.identifier.lower() for item in (*layout.receptacles, *(thing for thing, _ in layout.placed))
    )
    furniture = [(names[item.identifier.lower()], item.kind in OPENABLE) for item in layout.receptacles]
    commands: list[str] = []
    opened: set[int] = set()

    def go(spot: int, *, open_it: bool) -> str:
        name, openable = furniture[spot]
        if not commands or _place_of(commands) != name:
            commands.append(f"go to {name}")
        if open_it and openable and spot not in opened:
            commands.append(f"open {name}")
            opened.add(spot)
        return name

    kinds = [item.kind for item in layout.receptacles]
    station = STATIONS.get(layout.task_type)
    for thing, spot in layout.placed[: 2 if layout.task_type == "pick_two_obj_and_place" else 1]:
        held = names[thing.identifier.lower()]
        commands.append(f"take {held} from {go(spot, open_it=True)}")
        if station is not None:
            commands.append(f"{station.verb} {held} with {go(kinds.index(station.receptacle), open_it=False)}")
        if layout.lamp:
            lamp, stand = next((item, where) for item, where in layout.placed if item.kind == layout.lamp)
            go(stand, open_it=False)
            commands.append(f"use {names[lamp.identifier.lower()]}")
        else:
            commands.append(f"move {held} to {go(kinds.index(layout.destination), open_it=True)}")
    return commands


def _place_of(commands: list[str]) -> str:
    return next((command[len("go to ") :] for command in reversed(commands) if command.startswith("go to ")), "")


def game_content(layout: Layout, name: str, wheel: WheelFacts) -> dict[str, Any]:
    """The content of ``game.tw-pddl``."""
    return {
        "pddl_domain": wheel.domain,
        "grammar": wheel.grammar.replace("UNKNOWN GOAL", task_wording(layout, wheel)),
        "pddl_problem": pddl_problem(layout, name, wheel),
        "solvable": True,
        "walkthrough": walkthrough(layout),
    }


def trajectory_content(layout: Layout, name: str, house_size: str) -> dict[str, Any]:
    """The content of ``traj_data.json``: what text environments read, and the game's signature."""
    return {
        "task_type": layout.task_type,
        "task_id": name,
        "pddl_params": {
            "object_target": layout.target,
            "parent_target": layout.destination,
            "toggle_target": layout.lamp,
            "mrecep_target": "",
            "object_sliced": False,
        },
        "scene": {"scene_num": layout.scene, "floor_plan": f"FloorPlan{layout.scene}"},
        "turk_annotations": {"anns": []},
        "generated": {"house_size": house_size, "signature": layout.signature},
    }
