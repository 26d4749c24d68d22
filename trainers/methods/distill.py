"""On-policy distillation: the policy is drawn to its teacher, token by token, on what it samples itself."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ...envs import Task
from ...rollout.contexts import context_text
from ...rollout.episodes import EpisodeStart
from ...rollout.types import Trajectory
from ..terms import LossTerm, PerToken, TokenBatch
from .branches import student_text
from .contexts import CONTEXTS
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

    Args:
        coef: of the loss.
        estimator: ``"full"``, over the whole vocabulary, or ``"sampled"``, from the sampled tokens' log-probs.
    """
    return Method(None, (distillation("opd", coef, estimator),), policy_weight=0.0)


@register_method("tcod_f2b")
def tcod_f2b(*, coef: float = 1.0, estimator: str = "full", k_start: int = 1, eta: int = 2) -> Method:
    """`opd` on the first turns only, more of them as training goes on: ``k = k_start + floor(updates / eta)`` at most.

    Source: TCOD (arXiv 2604.24005), forward to backward.

    Args:
        coef: of the loss.
        estimator: ``"full"``, over the whole vocabulary, or ``"sampled"``, from the sampled tokens' log-probs.
        k_start: turns of an episode at the start.
        eta: updates after which k grows by one.
    """
    _check_counts("tcod_f2b", k_start=k_start, eta=eta)
    term = distillation("tcod_f2b", coef, estimator)
    return Method(None, (term,), policy_weight=0.0, rollouts=functools.partial(first_turns, k_start=k_start, eta=eta))


@register_method("tcod_b2f")
def tcod_b2f(
    *, coef: float = 1.0, estimator: str = "full", k_start: int = 1, eta: int = 2, attempts: int = 1
) -> Method:
    """`opd` behind all but the last ``k = k_start + floor(updates / eta)`` turns of a success of the teacher's.

    Source: TCOD (arXiv 2604.24005), backward to forward. Ours: the paper collects the teacher's successes beforehand,
    here it plays every task of an update up to `attempts` times; where it never succeeds, the policy plays the task's
    first k turns. Behind the teacher's turns the policy plays as long as the suite allows.

    Args:
        coef: of the loss.
        estimator: ``"full"``, over the whole vocabulary, or ``"sampled"``, from the sampled tokens' log-probs.
        k_start: turns left to the policy at the start.
        eta: updates after which k grows by one.
        attempts: how often the teacher plays a task at most.
    """
    _check_counts("tcod_b2f", k_start=k_start, eta=eta, attempts=attempts)
    term = distillation("tcod_b2f", coef, estimator)
    rollouts = functools.partial(last_turns, k_start=k_start, eta=eta, attempts=attempts)
    return Method(None, (term,), policy_weight=0.0, rollouts=rollouts, start=teacher_plays)


def _check_counts(owner: str, **counts: int) -> None:
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"{owner}: {name} must be a whole number of at least 1, got {value!r}; write 1 or more")


def teacher_plays(run: Run) -> None:
    """Raise unless the teacher can sample, and what it reads is known before an episode."""
    run.teacher.check_sampling()
    context = None if run.method.teacher is None else run.method.teacher.context
    if callable(context) or context in CONTEXTS:
        raise ValueError(
            f"{run.method.name}: teacher_context must be one of the suite's, known before the teacher plays, got "
            f"{context!r}; name such a context"
        )


def _depth(run: Run, k_start: int, eta: int) -> int:
    """TCOD's linear pace, in updates done."""
    depth = k_start + run.step // eta
    run.log("depth", depth, reduce="max")
    return depth


def last_turns(tasks: Sequence[Task], run: Run, *, k_start: int, eta: int, attempts: int) -> list[Trajectory]:
    """Episodes that begin before the last turns of a success of the teacher's, or end after the first without one."""
    depth, shown = _depth(run, k_start, eta), teacher_successes(tasks, run, attempts)
    starts, led = [], 0
    for group, (task, shows) in enumerate(zip(tasks, shown, strict=True)):
        turn = 0 if shows is None else max(len(shows.turns) - depth, 0)
        led += turn
        for index in range(run.config.num_generations):
            own = {"task": task, "group_id": group, "rollout_index": index, "context": student_text(run, task)}
            begun = shows is not None
            starts.append(EpisodeStart.at_turn(shows, turn, **own) if begun else EpisodeStart(**own, max_turns=depth))
    run.log("teacher_success", sum(one is not None for one in shown) / max(len(shown), 1), count=len(shown))
    run.log("teacher_turns", led / max(len(shown), 1), count=len(shown))
    return run.rollout(starts)


def teacher_successes(tasks: Sequence[Task], run: Run, attempts: int) -> list[Trajectory | None]:
    """The teacher's first success at each task, None without one; every process plays as many rounds."""
    name = None if run.method.teacher is None else run.method.teacher.context
    assert name is None or isinstance(name, str)  # see `teacher_plays`
    texts = [None if name is None else context_text(run.suite, task, name) for task in tasks]
    found: list[Trajectory | None] = [None] * len(tasks)
    for number in range(attempts):
        left = [group for group, one in enumerate(found) if one is None]
        starts = [EpisodeStart(tasks[g], g, context=texts[g], seed=("teacher", number)) for g in left]
        for group, played in zip(left, run.rollout(starts, weights="teacher"), strict=True):
            found[group] = played if played.failure is None and played.success >= 1.0 else None
    return found


def first_turns(tasks: Sequence[Task], run: Run, *, k_start: int, eta: int) -> list[Trajectory]:
    """Ordinary episodes that end after so many turns."""
    depth = _depth(run, k_start, eta)
    starts = [
        EpisodeStart(task, group, index, context=text, max_turns=depth)
        for group, (task, text) in enumerate((task, student_text(run, task)) for task in tasks)
        for index in range(run.config.num_generations)
    ]
    return run.rollout(starts)
