"""Policy and teacher side by side over the whole vocabulary: what `Run.compare` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from ...rollout.divergence import Comparison

if TYPE_CHECKING:
    from .run import Run

Ids = Sequence[int]


def compare(
    run: Run,
    prompts: Sequence[Ids],
    responses: Sequence[Ids],
    teacher_prompts: Sequence[Ids] | None,
    teacher_hidden: Tensor | None,
) -> Comparison:
    """See `Run.compare`; every process calls.

    Raises:
        ValueError: the teacher's head is not kept, or it is told both what to read and what it read.
    """
    check_head(run, "Run.compare")
    if teacher_hidden is not None and teacher_prompts is not None:
        raise ValueError("Run.compare: teacher_prompts must be left out beside teacher_hidden, got both; give one")
    if teacher_hidden is None:
        read = prompts if teacher_prompts is None else teacher_prompts
        teacher_hidden = run.score(read, responses, weights="teacher", modules=("hidden",)).outputs["hidden"]
    scores = run.score(prompts, responses, teacher_hidden=teacher_hidden, kind="compare")
    return Comparison.of(scores.mask, scores.logprobs, scores.outputs["divergence"])


def check_head(run: Run, owner: str) -> None:
    """Raise where the teacher's weights are earlier ones of the policy's, whose output embedding is not kept.

    Raises:
        ValueError: they are.
    """
    teacher = run.method.teacher
    if teacher is not None and teacher.lags:
        raise ValueError(
            f"{owner}: teacher must be the policy as it is, or another model, where whole distributions are "
            f"compared, got {teacher.weights!r}, whose output embedding is not kept; choose one of these, or an "
            "estimator that reads sampled tokens"
        )
