"""What the teacher says of each turn, without its drift and in units of its own size."""

from __future__ import annotations

import torch
from torch import Tensor

from ..align.rectification import rectify
from ..inputs import CreditInputs
from ..tokens import spread

_ROUNDING = 1e-5
_SILENCE = 1e-3  # nats a turn: a teacher that says less counts as one that says nothing much


def turn_evidence(inputs: CreditInputs, *, by_sources: bool) -> Tensor:
    """``[M]`` wide float: ``x_k = (g_k - c n_k) / rms``, the evidence of each turn.

    ``g_k`` is the summed gap of teacher and student over the turn's ``n_k`` tokens, nats, ``c`` the batch's median of
    ``g_k / n_k``, ``rms`` the root of the batch's mean square of what remains. What remains of rounding is 0.

    Args:
        inputs: a batch with ``teacher_logprobs``.
        by_sources: rectify the teacher by the scores of corresponding turns of siblings first.
    """
    gaps = _rectified_gaps(inputs) if by_sources else inputs.masked_sums
    drift = (gaps / inputs.token_counts).median() * inputs.token_counts
    centred = gaps - drift
    centred = torch.where(centred.abs() <= _ROUNDING * drift.abs(), 0.0, centred)
    return centred / centred.square().mean().sqrt().clamp(min=_SILENCE)


def _rectified_gaps(inputs: CreditInputs) -> Tensor:
    """``[M]`` the summed gaps after rectification.

    Raises:
        ValueError: the correspondence has no scored sources.
    """
    found = inputs.correspondence
    assert found is not None  # required by the registration
    assert inputs.teacher_logprobs is not None
    if found.sources is None or found.cross_logprobs is None:
        raise ValueError(
            "posterior: inputs.correspondence.sources and cross_logprobs must be given where use holds 'sources', got "
            "None; attach them with correspondence.with_scores(select_sources(correspondence), scores)"
        )
    better = rectify(inputs.teacher_logprobs, found.sources, found.cross_logprobs).logprobs
    gaps = better.to(inputs.dtype).sub_(inputs.student_logprobs.detach())
    return spread(gaps, inputs.response_mask).sum(-1).to(inputs.masked_sums.dtype)
