"""AlignOPSD's side of a run: the teacher answers, siblings are compared, pairs are scored along with the rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...credit import CreditInputs, CreditMethod, get_credit
from ...credit.align import (
    ALIGN_PROFILES,
    Correspondence,
    Sources,
    action_similarity,
    align_opsd,
    boundary_divergences,
    boundary_threshold,
    build_correspondence,
    select_sources,
)
from ...envs import ParsedResponse
from ...rollout.options import count, flag, text
from ...rollout.suite_calls import parsed_or_empty
from ..batch import TurnBatch
from ..losses import sdar_loss
from ..terms import PerToken, SDARTerm, TokenBatch
from .library import sdar
from .method import Method
from .providers import provides, teacher_scores
from .registry import goes_with, register_method
from .run import Run

ENCODER = "Qwen/Qwen3-Embedding-0.6B"
_ACTIONS_AGREE = 0.80


def _start(run: Run, *, encoder: str, **others: Any) -> None:
    run.embed([], encoder)
    run.teacher.check_sampling()


@provides(
    "correspondence",
    "teacher_logprobs",
    teacher=True,
    start=_start,
    rules={
        "action_filter": flag(),
        "encoder": text(),
        "teacher_max_completion_length": count(1, none="for the student's"),
    },
)
def correspondence(
    batch: TurnBatch,
    run: Run,
    *,
    similarity_threshold: float = 0.8,
    top_k: int = 3,
    action_filter: bool = False,
    encoder: str = ENCODER,
    teacher_max_completion_length: int | None = None,
) -> dict[str, Correspondence | Tensor | None]:
    """Which turns of siblings face the same decision, their pairs scored in one pass with the rows themselves.

    Args:
        batch: M rows.
        run: the run.
        similarity_threshold, top_k: gamma_H and K of AlignOPSD.
        action_filter: drop pairs whose actions have a cosine below 0.80, or that the suite's ``same_target`` denies.
        encoder: a SentenceTransformer's name or folder, or ``"hashing"`` (no model).
        teacher_max_completion_length: response budget of the answering teacher; None is the student's.
    """
    found, sources, pairs = None, None, []
    with run.weights("teacher"):
        answers = teacher_answers(batch, run, teacher_max_completion_length)
        if answers:
            found, sources = correspond(
                batch,
                answers,
                functools.partial(run.embed, encoder=encoder),
                similarity_threshold=similarity_threshold,
                top_k=top_k,
                action_filter=action_filter,
                same_target=getattr(run.suite, "same_target", None),
            )
            pairs = list(zip(sources.source.tolist(), sources.target.tolist(), strict=True))
            run.log("teacher/pairs", len(pairs), reduce="sum")
        scores = teacher_scores(run, pairs)
    if found is not None and sources is not None:
        found = found.with_scores(sources, scores.cross)
    return {"correspondence": found, "teacher_logprobs": scores.logprobs}


def teacher_answers(batch: TurnBatch, run: Run, max_completion_length: int | None) -> list[ParsedResponse]:
    """The teacher's own response at every visited state, sampled like the student's; an empty one where the prompt
    leaves no room for it."""
    prompts, openings = run.teacher_prompts(), run.teacher_openings()
    length, limit = max_completion_length or run.config.sampling.max_completion_length, run.longest("teacher")
    turns = zip(batch.trajectory_ids.tolist(), batch.turn_ids.tolist(), strict=True)
    keys = [(batch.trajectories[i].task_id, batch.trajectories[i].rollout_index, k) for i, k in turns]
    fits = [row for row, prompt in enumerate(prompts) if limit is None or len(prompt) + length <= limit]
    samples = run.sample(
        [prompts[row] for row in fits],
        [("teacher", run.seed, run.step, *keys[row]) for row in fits],
        weights="teacher",
        max_completion_length=length,
    )
    answers = [ParsedResponse("", "", False)] * len(prompts)
    for row, sample in zip(fits, samples, strict=True):
        answers[row] = parsed_or_empty(run.suite, run.response_text(sample), openings[row])
    return answers


def correspond(
    batch: TurnBatch,
    answers: Sequence[ParsedResponse],
    embed: Callable[[Sequence[str]], Tensor],
    *,
    similarity_threshold: float,
    top_k: int,
    action_filter: bool = False,
    same_target: Callable[[str, str], bool] | None = None,
) -> tuple[Correspondence, Sources]:
    """Compare the teacher's M answers, parsed, with the siblings' turns and select the pairs to score.

    Args:
        batch: M rows.
        answers: the teacher's.
        embed: texts -> ``[n, D]`` unit vectors.
        similarity_threshold, top_k, action_filter, same_target: see `correspondence`.
    """
    teacher, student = [answer.thinking for answer in answers], [turn.thinking for turn in batch.turns]
    texts = embed([*teacher, *student])
    m = len(batch.turns)
    found = build_correspondence(
        texts[:m],
        texts[m:],
        batch.trajectory_ids,
        batch.turn_ids,
        batch.group_ids,
        torch.tensor([bool(text.strip()) for text in teacher]),
        torch.tensor([bool(text.strip()) for text in student]),
    )
    sources = select_sources(found, similarity_threshold=similarity_threshold, top_k=top_k)
    if action_filter and len(sources.source):
        actions = embed([*(a.action for a in answers), *(turn.action for turn in batch.turns)])
        keep = action_similarity(sources, actions[:m], actions[m:]) >= _ACTIONS_AGREE
        if same_target is not None:
            pairs = zip(sources.source.tolist(), sources.target.tolist(), strict=True)
            keep &= torch.tensor([same_target(answers[v].action, batch.turns[u].action) for v, u in pairs])
        sources = sources.keep(keep)
    return found, sources


def shared_threshold(credit: CreditMethod, inputs: CreditInputs | None, run: Run) -> CreditMethod:
    """The boundary quantile is over the whole batch, so over all processes; collective."""
    options = credit.options
    if run.num_processes == 1 or "correspondence" not in credit.requires or options["threshold"] is not None:
        return credit
    own: list[float] = []
    if inputs is not None:
        names = ("similarity_threshold", "profile_temperature", "distance")
        own = boundary_divergences(inputs, **{name: options[name] for name in names}).tolist()
    shared = boundary_threshold(
        torch.tensor(run.all_gather(own), dtype=torch.float32),
        quantile=options["boundary_quantile"],
        low=options["boundary_low"],
        high=options["boundary_high"],
    )
    return get_credit(credit.name, **{**options, "threshold": shared})


goes_with(align_opsd, settle=shared_threshold)


@dataclass(frozen=True)
class RectifiedTerm(SDARTerm):
    """SDAR's term towards AlignOPSD's rectified scores, which stand in its credit's details."""

    reads: tuple[str, ...] = ("rectified_logprobs",)

    def per_token(self, batch: TokenBatch) -> PerToken:
        return sdar_loss(batch.logprobs, batch.signals["rectified_logprobs"], batch.old_logprobs, beta=self.beta)


@register_method("align_distill")
def align_distill(*, coef: float = 0.01) -> Method:
    """Distils the rectified scores alone; AlignOPSD's advantages decide which rows have KL and entropy.

    Args:
        coef: of the distillation term.
    """
    term = RectifiedTerm("opsd", coef=coef, beta=0.0)
    return Method("align_opsd", (term,), policy_weight=0.0, gives=("rectified_logprobs",))


def _published(name: str) -> Method:
    profile = ALIGN_PROFILES[name]
    terms = sdar().terms if profile.auxiliary_sdar else ()
    return Method(name, terms, options={"action_filter": profile.action_filter})


for _name in ALIGN_PROFILES:
    register_method(_name)(functools.partial(_published, _name))
