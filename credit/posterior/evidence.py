"""What the teacher says of each turn, without its drift and in units of its own size."""

from __future__ import annotations

import torch
from torch import Tensor

from .facts import Facts

_ROUNDING = 1e-5
_SILENCE = 1e-3  # nats a turn, root mean square: what is less than noise is not blown up


def turn_evidence(facts: Facts) -> Tensor:
    """``[M]`` wide float: ``x_k = (g_k - c n_k) / rms``, the evidence of each turn.

    ``c`` is the batch's median of ``g_k / n_k``, ``rms`` the root of the batch's mean square of what remains. A
    remainder that is rounding is exactly 0.
    """
    drift = (facts.gaps / facts.tokens).median() * facts.tokens
    centred = facts.gaps - drift
    centred = torch.where(centred.abs() <= _ROUNDING * drift.abs(), 0.0, centred)
    return centred / centred.square().mean().sqrt().clamp(min=_SILENCE)
