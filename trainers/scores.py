"""Everything the credit and the loss need to know about sampled tokens: old, teacher and reference log-probs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..rollout.prompts import render_prompt, with_privileged_context
from ..rollout.scoring import score_responses
from .batch import TurnBatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScoringSettings:
    """Args: pad_token_id, temperature, max_tokens per forward pass, min_batches that every process must run."""

    pad_token_id: int
    temperature: float
    max_tokens: int
    min_batches: int = 0


@dataclass(frozen=True)
class TeacherScores:
    """Args: logprobs ``[M, T]`` float32; rows scored; rows left at the student's value, because their context is the
    student's own or would not fit the model."""

    logprobs: Tensor
    scored: int
    identical: int
    over_length: int


def teacher_prompts(tokenizer: Any, batch: TurnBatch, contexts: Sequence[str | None]) -> list[tuple[int, ...]]:
    """Prompt ids of every row under its trajectory's privileged context, or the student's where there is none.

    Args:
        tokenizer: the policy's tokenizer.
        batch: M rows.
        contexts: N privileged texts, one per trajectory.
    """
    texts = [contexts[i] for i in batch.trajectory_ids.tolist()]
    return [
        turn.prompt_ids if text is None else render_prompt(tokenizer, with_privileged_context(turn.messages, text))
        for turn, text in zip(batch.turns, texts, strict=True)
    ]


def score_teacher(
    scorer: Any,
    batch: TurnBatch,
    prompts: Sequence[tuple[int, ...]],
    student_logprobs: Tensor,
    settings: ScoringSettings,
    max_length: int | None = None,
) -> TeacherScores:
    """Score the sampled responses under the teacher's prompts.

    A row whose teacher prompt is its student prompt is not scored again: its gap is exactly 0. A row that would exceed
    `max_length` keeps the student's value too and is counted; nothing is ever truncated.

    Args:
        scorer: the model, as a `PolicyScorer`.
        batch: M rows.
        prompts: M teacher prompts.
        student_logprobs: ``[M, T]`` float32.
        settings: how to run the forward passes.
        max_length: the model's longest sequence, tokens; None for no limit.
    """
    rows, over = [], 0
    for index, (turn, prompt) in enumerate(zip(batch.turns, prompts, strict=True)):
        if prompt == turn.prompt_ids:
            continue
        if max_length is not None and len(prompt) + len(turn.response_ids) > max_length:
            over += 1
            continue
        rows.append(index)
    if over:
        logger.warning("%d teacher prompts exceed the model's %s tokens; their gap counts as 0", over, max_length)
    scores = score_responses(
        scorer,
        [prompts[i] for i in rows],
        [batch.turns[i].response_ids for i in rows],
        pad_token_id=settings.pad_token_id,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        min_batches=settings.min_batches,
    )
    logprobs = student_logprobs.clone()
    if rows:
        width = scores.logprobs.shape[1]
        index = torch.tensor(rows)
        logprobs[index, :width] = torch.where(scores.mask, scores.logprobs, logprobs[index, :width])
    return TeacherScores(logprobs, len(rows), len(batch.turns) - len(rows) - over, over)


def score_rows(scorer: Any, batch: TurnBatch, settings: ScoringSettings) -> Tensor:
    """``[M, T]`` float32 log-probs of the sampled responses under the student's own prompts."""
    return score_responses(
        scorer,
        batch.prompts,
        batch.responses,
        pad_token_id=settings.pad_token_id,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        min_batches=settings.min_batches,
    ).logprobs
