"""How credit is coloured everywhere: blue above 0, orange below, by its size; and what is said where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...inputs import CreditInputs
from ._frame import LESS, MORE, NEUTRAL

_WHITE = "#F7F7F7"


@dataclass(frozen=True)
class Shades:
    """Orange through near-white to blue, white at exactly 0.

    Args:
        limit: size of the credit that is painted in full, in its unit; above 0.
    """

    limit: float

    @classmethod
    def over(cls, values: Tensor) -> Shades:
        """Up to the largest size among ``values``."""
        return cls(float(values.detach().abs().max()) or 1.0)

    @property
    def colours(self) -> Any:
        """The colour map: the two colours of the bars, told apart by every kind of eye."""
        from matplotlib.colors import LinearSegmentedColormap

        return LinearSegmentedColormap.from_list("credit", [LESS, _WHITE, MORE], N=257)  # odd, so that 0 has a colour

    def scale(self) -> Any:
        """What a colour bar is drawn from."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        return ScalarMappable(Normalize(-self.limit, self.limit), self.colours)

    def fill(self, value: float) -> Any:
        """RGBA of a value."""
        return self.colours((value + self.limit) / (2 * self.limit))

    def ink(self, value: float) -> str:
        """The colour of text on it: white or black, whichever stands out more."""
        red, green, blue = (_linear(part) for part in self.fill(value)[:3])
        return "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.179 else "black"


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def signed_colour(value: float) -> str:
    """Blue for praise, orange for blame, grey for neither."""
    return MORE if value > 0 else LESS if value < 0 else NEUTRAL


def without_credit(inputs: CreditInputs, trajectories: Sequence[int], values: Tensor, what: str) -> str:
    """Why a picture has nothing to colour, in one sentence; empty where it has.

    Args:
        inputs: the batch.
        trajectories: indices whose turns are drawn, all of one group.
        values: credit of the turns that are drawn, any shape.
        what: how these trajectories are called, such as ``"this group"``.
    """
    if bool((values != 0).any()):
        return ""
    group = (inputs.group_ids == inputs.group_ids[trajectories[0]]).nonzero().flatten()
    returns = inputs.rewards[group].detach().double()
    low, high = float(returns.min()), float(returns.max())
    if len(group) == 1:
        why = "its group has one trajectory, so there is nothing to compare with"
    elif high - low <= 1e-9 * (1 + abs(high)):
        why = f"all {len(group)} returns of the group are {high:g}"
    else:
        why = f"the method gives none, though the returns of the group go from {low:g} to {high:g}"
    return f"No turn of {what} has an advantage: {why}."
