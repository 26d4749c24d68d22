"""LENS-OPD's decisions as pure functions: how deep to train, where to look, if a hint helped, which tokens count."""

from .bridge import bridge_turns, preferred_share
from .focus import focus_weights, token_focus
from .locate import DepthController, frontier_compatibility, proposed_turns
from .validate import gates

__all__ = [
    "DepthController",
    "bridge_turns",
    "focus_weights",
    "frontier_compatibility",
    "gates",
    "preferred_share",
    "proposed_turns",
    "token_focus",
]
