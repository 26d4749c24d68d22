"""The first rollouts and the first optimiser step of a run: what was sampled must be what is scored and trained."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from ..rollout._preflight_model import tolerances
from ..rollout._preflight_text import TEMPLATE_FIX, UNKNOWN_SHARE, missing_contents, unknown_share
from .batch import TurnBatch

logger = logging.getLogger(__name__)

_CAUSES = (
    "the usual causes: left padding, a cache or long rows that this class treats otherwise when it generates, "
    "randomness in train mode, a callback that changed the weights; see docs/preflight.md"
)


class FirstUpdate:
    """Checks that end with the first optimiser step.

    Args:
        subject: class of the model, for the messages.
        precision: of the forward passes, a key of `turncredit.rollout._preflight_model.TOLERANCES`.
        temperature: of sampling.
    """

    def __init__(self, subject: str, precision: str, temperature: float):
        self.subject, self.precision = subject, precision
        self.tolerance = tolerances(precision, temperature)[1]
        self.stepped = False

    def check_rollouts(self, tokenizer: Any, batch: TurnBatch, kwargs: Mapping[str, Any]) -> None:
        """Look for the first turn's messages in its prompt, and warn where the prompts hold many unknown tokens.

        Raises:
            RuntimeError: the template leaves a user's or the system's message out.
        """
        if self.stepped or not batch.turns:
            return
        missing = missing_contents(tokenizer, batch.turns[0].messages, kwargs)
        if missing:
            raise RuntimeError(
                f"GRPOTrainer: the chat template must show every message, but the first prompt lacks that of the "
                f"{missing[0]['role']}, {str(missing[0]['content'])[:80]!r}; {TEMPLATE_FIX}"
            )
        share = unknown_share(tokenizer, batch.prompts)
        if share > UNKNOWN_SHARE:
            logger.warning("%.1f%% of the prompts' tokens are unknown to the tokenizer", 100 * share)

    def check_drift(self, metrics: Mapping[str, float]) -> None:
        """Compare the sampler's log-probs with scores of the same tokens, where they were scored again.

        Raises:
            RuntimeError: they differ beyond the tolerance.
        """
        if not self.stepped:
            self._check("train/sampling_drift", metrics.get("train/sampling_drift", 0.0), metrics)

    def check_step(self, metrics: Mapping[str, float]) -> None:
        """Look at the ratio of the first optimiser step, before it is taken; on-policy it is 1.

        Raises:
            RuntimeError: its mean absolute logarithm is beyond the tolerance.
        """
        if not self.stepped:
            self.stepped = True
            self._check("log_ratio_abs", metrics["log_ratio_abs"], metrics)

    def _check(self, name: str, value: float, metrics: Mapping[str, float]) -> None:
        if not math.isfinite(value) or value <= self.tolerance:  # NaN and inf have a rule of their own
            return
        ratio = f", ratio {metrics['ratio']:.4f}" if "ratio" in metrics else ""
        raise RuntimeError(
            f"GRPOTrainer: {name} of the first update must be at most {self.tolerance:.2g} nats per token in "
            f"{self.precision}, got {value:.4g}{ratio} for {self.subject}; {_CAUSES}"
        )
