"""Validate: whether a hint at the proposed turn helped."""

from __future__ import annotations

import torch
from torch import Tensor


def gates(base: Tensor, hinted: Tensor) -> tuple[Tensor, Tensor]:
    """What a hint changed, and whether it helped: ``Delta = V(hinted) - V(base)``, ``g = 1[Delta > 0]``.

    Source: LENS-OPD (arXiv 2609.33409), Eq. 7. V is the mean log-likelihood of the continuation's tokens under the
    teacher (Eq. 8), or its return.

    Args:
        base, hinted: ``[P]`` float, values of paired continuations; NaN where one failed or does not exist.

    Returns:
        ``gains [P]`` float64, NaN for an incomplete pair, and ``open [P]`` bool, False there.
    """
    gains = hinted.double() - base.double()
    return gains, torch.where(gains.isnan(), False, gains > 0)
