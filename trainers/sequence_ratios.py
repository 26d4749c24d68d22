"""Log-ratios of whole trajectories, whose rows lie in several micro-batches."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch

from ..rollout.scoring import score_responses
from .config import GRPOConfig
from .distributed import agree_max, zero_stage
from .losses import sequence_log_ratios
from .rows import MicroBatchLimits, TrainRows

LOG_RATIO = "trajectory_log_ratio"


def with_log_ratios(
    accelerator: Any, scorer: Any, rows: TrainRows, config: GRPOConfig, pad_token_id: int, limits: MicroBatchLimits
) -> TrainRows:
    """The rows with ``[M]`` mean log-ratios of their trajectories under the policy as it is; collective under ZeRO-3.

    A trajectory's rows lie in several micro-batches, none of which knows the others' log-probs; they are all here.
    """
    sharded = zero_stage(accelerator) == 3
    scores = score_responses(
        scorer if sharded else accelerator.unwrap_model(scorer),
        rows.prompts,
        rows.responses,
        pad_token_id=pad_token_id,
        temperature=config.sampling.temperature or 1.0,
        max_tokens=limits.tokens,
        agree=functools.partial(agree_max, accelerator) if sharded else None,
        share_prefixes=limits.share,
    )
    ratios = torch.zeros(len(rows.prompts))
    if len(ratios):
        width = scores.mask.shape[1]
        gaps = (scores.logprobs - rows.old_logprobs[:, :width])[scores.mask]
        lengths = scores.mask.sum(1)
        means = sequence_log_ratios(gaps, rows.slot_ids.repeat_interleave(lengths))
        ratios = means[lengths.cumsum(0) - 1]
    return replace(rows, signals={**rows.signals, LOG_RATIO: ratios})
