"""Traces of ALFWorld before 0.4.0 (December 2024) in the engine's present words.

That release changed three texts of the games: ``put X in/on Y`` became ``move X to Y``, "You put the X in/on the Y."
became "You move the X to the Y.", and an arrival names the place and no longer a location ("You arrive at loc 12.",
which many published traces leave out altogether). Everything else reads the same.
"""

from __future__ import annotations

import re

_PUT = re.compile(r"put (?P<thing>\S.*?) in/on (?P<place>\S.*)")
_HAVE_PUT = re.compile(r"^You put the (?P<thing>.+?) in/on the (?P<place>.+?)\.", re.MULTILINE)
_ARRIVED = re.compile(r"^You arrive at loc -?\d+\.\s*")
_SEEN = re.compile(r"(?:On the|The) (?P<place>.+? \d+)(?:, you see\b| is (?:open|closed)\.)")


def modern_action(action: str) -> str:
    """An old command as the engine wants it now; any other text is returned unchanged.

    >>> modern_action("put mug 1 in/on desk 1")
    'move mug 1 to desk 1'
    """
    match = _PUT.fullmatch(action)
    return f"move {match['thing']} to {match['place']}" if match else action


def modern_observation(observation: str, action: str = "") -> str:
    """What the engine says now where it said `observation` then; present text is returned unchanged.

    Args:
        observation: the old text.
        action: the command it answers. An arrival whose first sentence was left out cannot be told from a look
            without it.

    >>> modern_observation("The drawer 1 is closed.", "go to drawer 1")
    'You arrive at drawer 1. The drawer 1 is closed.'
    >>> modern_observation("You put the mug 1 in/on the desk 1.")
    'You move the mug 1 to the desk 1.'
    """
    text = _HAVE_PUT.sub(r"You move the \g<thing> to the \g<place>.", observation)
    rest = _ARRIVED.sub("", text)
    seen = _SEEN.match(rest)
    if seen is None:
        return text
    arrived = rest is not text or action.strip() == f"go to {seen['place']}"
    return f"You arrive at {seen['place']}. {rest}" if arrived else text
