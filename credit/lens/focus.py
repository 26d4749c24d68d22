"""Refine: the tokens of the proposed turn at which the student disagrees and the teacher is sure weigh more."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..checks import check_range


def token_focus(
    student_own: Tensor, student_teachers: Tensor, teacher_own: Tensor, teacher_students: Tensor, *, tau: float = 1.0
) -> Tensor:
    """``s = [log pi(v_S) - log pi(v_T)]_+ sigmoid((log pi_T(v_T) - log pi_T(v_S)) / tau)`` of every token.

    Source: LENS-OPD (arXiv 2609.33409), Eq. 11 and 12.

    Args:
        student_own, student_teachers: ``[..]`` float, the student's log-probs of its own likeliest token v_S and of the
            teacher's, v_T.
        teacher_own, teacher_students: the teacher's, of v_T and of v_S.
        tau: temperature, above 0.

    Raises:
        ValueError: `tau` is out of range.
    """
    check_range("token_focus", "tau", tau, 0, math.inf, "()")
    return (student_own - student_teachers).clamp(min=0) * torch.sigmoid((teacher_own - teacher_students) / tau)


def focus_weights(
    scores: Tensor, mask: Tensor, focused: Tensor, *, beta: float = 1.0, cap: float = 5.0, eps: float = 1e-8
) -> Tensor:
    """Weights of tokens in the base loss: ``r = rbar / mean rbar`` in focused turns, 1 elsewhere.

        rbar = min(cap, 1 + beta s);    a focused turn keeps its budget, the sum of its weights is its number of tokens

    Source: LENS-OPD (arXiv 2609.33409), Eq. 12. The paper adds eps to the mean; so does this.

    Args:
        scores: ``[M, T]`` float, s of :func:`token_focus`.
        mask: ``[M, T]`` bool, content tokens.
        focused: ``[M]`` bool, proposed turns whose gate is open.
        beta: at least 0; 0 is no focus.
        cap: at least 1.
        eps: stabiliser.

    Returns:
        ``[M, T]`` float in the dtype of `scores`; 1 outside focused turns and outside the mask.

    Raises:
        ValueError: an option is out of range.
    """
    where = "focus_weights"
    check_range(where, "beta", beta, 0, math.inf, ")")
    check_range(where, "cap", cap, 1, math.inf, ")")
    check_range(where, "eps", eps, 0, math.inf, ")")
    raw = torch.where(mask, (1 + beta * scores.double()).clamp(max=cap), 0.0)
    mean = raw.sum(1) / mask.sum(1).clamp(min=1)
    inside = mask & focused[:, None]
    return torch.where(inside, raw / (mean + eps)[:, None], 1.0).to(scores.dtype)
