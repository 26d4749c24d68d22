"""The words that small ALFWorld houses, their tasks and hints, and the scripted player use."""

from __future__ import annotations

from turncredit.envs.alfworld.houses import ROOMS, wheel_facts

_TEXT = """
task left searched seen at holding last now start then nothing in
put a an some on the clean and it cool cold heat hot find two them look under examine with
hint for this house is both use take to more there already
go open close move from inventory help
you are arrive closed see pick up using turn off happens carrying not anything
middle of room looking quickly around facing next s special about normal
think search check place wander
"""
PLAIN_WORDS = tuple(_TEXT.split())
"""Every word that is not a kind of thing or furniture."""


def kinds_of_names() -> list[str]:
    """Kinds of things, lamps and furniture that a generated house can hold, sorted and lower-cased."""
    kinds = set()
    for room in ROOMS.values():
        kinds.update(room.receptacles, room.objects, room.lamps)
    for things in wheel_facts().holds.values():
        kinds.update(thing for thing in things if not thing.endswith("Sliced"))
    return sorted(kind.lower() for kind in kinds)
