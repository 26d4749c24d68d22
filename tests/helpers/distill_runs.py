"""Runs of the distillation methods on the toy suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOConfig, GRPOTrainer


def settings(folder: Path, credit: str, options: dict[str, Any], **changes: Any) -> GRPOConfig:
    return GRPOConfig(
        **{
            "output_dir": str(folder),
            "credit": credit,
            "credit_options": options,
            "max_steps": 4,
            "num_tasks": 4,
            "num_generations": 4,
            "num_workers": 0,
            "learning_rate": 1e-2,
            "sampling": SamplingConfig(max_completion_length=6),
            "eval_steps": 0,
            "save_steps": 0,
            "num_eval_tasks": 1,
            "preflight": False,
            **changes,
        }
    )


def make(folder: Path, credit: str, teacher: Any = None, config: dict[str, Any] | None = None, **options: Any):
    """A trainer whose teacher is a model, or the policy under its hint."""
    chosen = settings(folder, credit, options, **(config or {}))
    suite = ToySuite(num_tasks=8, lenient=True)
    return GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, chosen, teacher_model=teacher)
