"""On-policy distillation: the policy is drawn to its teacher, token by token, on what it samples itself."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ...envs import Task
from ...rollout.episodes import EpisodeStart
from ...rollout.types import Trajectory
from ..terms import LossTerm, PerToken, TokenBatch
from .branches import student_text
from .method import Method
from .registry import register_method

if TYPE_CHECKING:
    from .run import Run

ESTIMATORS = ("full", "sampled")


def sampled_kl_loss(logprobs: Tensor, teacher_logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """``rho (log pi - log pi_T)``, the gap detached: over tokens of the sampling policy its mean is KL(pi || pi_T), and
    its gradient has that KL's gradient as its mean.

    Source: LENS-OPD (arXiv 2609.33409), Eq. 1, the estimator by sampled tokens.

    Args:
        logprobs: ``[n]`` float, current policy, with gradient through rho = pi / pi_old, its log capped at 10.
        teacher_logprobs: ``[n]`` float, detached.
        old_logprobs: ``[n]`` float, the sampling policy.
    """
    ratio = (logprobs - old_logprobs).clamp(max=10).exp()
    return ratio * (logprobs - teacher_logprobs).detach()


@dataclass(frozen=True)
class DivergenceTerm(LossTerm):
    """The divergence of the policy from its teacher over the whole vocabulary; see `turncredit.rollout.divergence`."""

    name: str = "opd"
    average: str = "token-mean"
    rows: str = "all"
    reads: tuple[str, ...] = ("teacher_hidden",)
    divergence: str = "reverse"

    def per_token(self, batch: TokenBatch) -> PerToken:
        return batch.outputs["divergence"]


@dataclass(frozen=True)
class SampledKLTerm(LossTerm):
    """The reverse KL to the teacher by the sampled tokens alone; see `sampled_kl_loss`."""

    name: str = "opd"
    average: str = "token-mean"
    rows: str = "all"
    reads: tuple[str, ...] = ("teacher_logprobs",)

    def per_token(self, batch: TokenBatch) -> PerToken:
        return sampled_kl_loss(batch.logprobs, batch.signals["teacher_logprobs"], batch.old_logprobs)


def distillation(owner: str, coef: float, estimator: str) -> LossTerm:
    """The base loss of these methods.

    Raises:
        ValueError: an unknown estimator.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"{owner}: estimator must be one of {ESTIMATORS}, got {estimator!r}; write one of them")
    return DivergenceTerm(coef=coef) if estimator == "full" else SampledKLTerm(coef=coef)


@register_method("opd")
def opd(*, coef: float = 1.0, estimator: str = "full") -> Method:
    """KL(pi || pi_T) over the tokens that the policy samples, and nothing else: no reward, no credit.

    Source: on-policy distillation, as in LENS-OPD (arXiv 2609.33409), Eq. 1; docs/equations.md#on-policy-distillation.
    ``estimator="sampled"`` reads the sampled tokens' log-probs only. The teacher is another model (`teacher`), or the
    policy under privileged context.
    """
    return Method(None, (distillation("opd", coef, estimator),), policy_weight=0.0)


@register_method("tcod_f2b")
def tcod_f2b(*, coef: float = 1.0, estimator: str = "full", k_start: int = 1, eta: int = 2) -> Method:
    """`opd` on the first turns only, more of them as training goes on: ``k = k_start + floor(updates / eta)`` at most.

    Source: TCOD (arXiv 2604.24005), forward to backward.
    """
    for name, value in (("k_start", k_start), ("eta", eta)):
        if type(value) is not int or value < 1:
            raise ValueError(f"tcod_f2b: {name} must be a whole number of at least 1, got {value!r}; write 1 or more")
    term = distillation("tcod_f2b", coef, estimator)
    return Method(None, (term,), policy_weight=0.0, rollouts=functools.partial(first_turns, k_start=k_start, eta=eta))


def first_turns(tasks: Sequence[Task], run: Run, *, k_start: int, eta: int) -> list[Trajectory]:
    """Ordinary episodes that end after so many turns."""
    depth = k_start + run.step // eta
    run.log("depth", depth, reduce="max")
    starts = [
        EpisodeStart(task, group, index, context=text, max_turns=depth)
        for group, (task, text) in enumerate((task, student_text(run, task)) for task in tasks)
        for index in range(run.config.num_generations)
    ]
    return run.rollout(starts)
