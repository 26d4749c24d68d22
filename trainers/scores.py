"""Log-probs of sampled responses under the student's own prompts, and how forward passes are run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..rollout.scoring import Agree, score_responses
from .batch import TurnBatch


@dataclass(frozen=True)
class ScoringSettings:
    """Args: pad_token_id, temperature, max_tokens per forward pass, and `agree` (see `score_responses`)."""

    pad_token_id: int
    temperature: float
    max_tokens: int
    agree: Agree | None = None


def score_rows(scorer: Any, batch: TurnBatch, settings: ScoringSettings) -> Tensor:
    """``[M, T]`` float32 log-probs of the sampled responses under the student's own prompts."""
    return score_responses(
        scorer,
        batch.prompts,
        batch.responses,
        pad_token_id=settings.pad_token_id,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        agree=settings.agree,
    ).logprobs
