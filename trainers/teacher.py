"""The teacher: what it reads, what it answers, and how it scores the student's tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..credit.align import Correspondence, Sources, action_similarity, build_correspondence, select_sources
from ..envs import ParsedResponse
from ..rollout.prompts import opened_block, render_prompt, with_privileged_context
from ..rollout.scoring import score_responses
from ..rollout.types import Message, Trajectory, Turn
from .batch import TurnBatch
from .encoder import Encoder, embed
from .scores import ScoringSettings

logger = logging.getLogger(__name__)

Ids = tuple[int, ...]


def hindsight_text(trajectory: Trajectory) -> str:
    """A successful trajectory told as observations and actions.

    Raises:
        TypeError: an observation or action that is not text.
    """
    for told in (text for turn in trajectory.turns for text in (turn.observation, turn.action)):
        if not isinstance(told, str):
            raise TypeError(
                f"hindsight_text: trajectory must hold observations and actions as text, got {type(told).__name__}; "
                "let the environment and the suite's parse() return strings"
            )
    lines = [f"Observation: {turn.observation}\nAction: {turn.action}" for turn in trajectory.turns]
    return "A successful attempt at this task went like this.\n" + "\n".join(lines)


def hindsight_contexts(trajectories: Sequence[Trajectory]) -> list[str | None]:
    """For every trajectory the first successful *other* one of its group, told as text; None where there is none.

    Source: StepOPSD; docs/equations.md#stepopsd. First means the smallest rollout index; success means 1.
    """
    winners: dict[int, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=lambda t: t.rollout_index):
        if trajectory.success >= 1.0:
            winners.setdefault(trajectory.group_id, []).append(trajectory)
    contexts = []
    for trajectory in trajectories:
        siblings = [t for t in winners.get(trajectory.group_id, []) if t is not trajectory]
        contexts.append(hindsight_text(siblings[0]) if siblings else None)
    return contexts


def teacher_prompts(
    tokenizer: Any,
    batch: TurnBatch,
    contexts: Sequence[str | None],
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[Ids]:
    """Prompt ids of every row under its trajectory's context, or the student's own where there is none.

    Built from the turn's messages, never by decoding ids. A student prompt that already held the context (Skill-GRPO)
    is not the plain one, so it is compared by ids later.

    Args:
        tokenizer: the policy's tokenizer.
        batch: M rows.
        contexts: N texts or None, one per trajectory.
        chat_template_kwargs: those the student's prompts were rendered with.

    Raises:
        TypeError: a context that is not text.
    """
    texts = [contexts[i] for i in batch.trajectory_ids.tolist()]
    return [
        turn.prompt_ids if text is None else render_prompt(tokenizer, _informed(turn, text), chat_template_kwargs)
        for turn, text in zip(batch.turns, texts, strict=True)
    ]


def teacher_openings(
    tokenizer: Any,
    batch: TurnBatch,
    contexts: Sequence[str | None],
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[str]:
    """The thinking block that each of `teacher_prompts` opens at its end; see `turncredit.rollout.prompts`."""
    texts = [contexts[i] for i in batch.trajectory_ids.tolist()]
    return [
        opened_block(tokenizer, _informed(turn, text), chat_template_kwargs)
        for turn, text in zip(batch.turns, texts, strict=True)
    ]


def _informed(turn: Turn, text: str | None) -> Sequence[Message]:
    return turn.messages if text is None else with_privileged_context(turn.messages, text)


@dataclass(frozen=True)
class TeacherScores:
    """What one batched pass under teacher contexts gave.

    Args:
        logprobs: ``[M, T]`` float32, every row under its own teacher context.
        cross: ``[P, T]`` float32, the target of every pair under its source's teacher context.
        scored: rows that needed a forward pass.
        identical: rows whose teacher prompt is the student's: gap exactly 0, not scored again.
        over_length: rows or pairs that would exceed the model: they keep the student's value, nothing is truncated.
    """

    logprobs: Tensor
    cross: Tensor
    scored: int
    identical: int
    over_length: int


def score_teacher(
    scorer: Any,
    batch: TurnBatch,
    prompts: Sequence[Ids],
    student_logprobs: Tensor,
    settings: ScoringSettings,
    *,
    pairs: Sequence[tuple[int, int]] = (),
    max_length: int | None = None,
) -> TeacherScores:
    """Score the sampled responses under teacher prompts, and selected pairs (source, target) in the same pass.

    Args:
        scorer: the model, as a `PolicyScorer`.
        batch: M rows.
        prompts: M teacher prompts.
        student_logprobs: ``[M, T]`` float32.
        settings: how to run the forward passes.
        pairs: rows whose response (target) is scored under another row's teacher prompt (source).
        max_length: the model's longest sequence, tokens; None for no limit.
    """
    jobs = [(prompt, row) for row, prompt in enumerate(prompts)]
    jobs += [(prompts[source], target) for source, target in pairs]
    values = torch.cat([student_logprobs, student_logprobs[[target for _, target in pairs]]])
    run, over, identical = [], 0, 0
    for index, (prompt, row) in enumerate(jobs):
        turn = batch.turns[row]
        if prompt == turn.prompt_ids:
            identical += index < len(prompts)
        elif max_length is not None and len(prompt) + len(turn.response_ids) > max_length:
            over += 1
        else:
            run.append(index)
    if over:
        logger.warning("%d teacher prompts exceed the model's %s tokens; their gap counts as 0", over, max_length)
    scores = score_responses(
        scorer,
        [jobs[i][0] for i in run],
        [batch.turns[jobs[i][1]].response_ids for i in run],
        pad_token_id=settings.pad_token_id,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        agree=settings.agree,
    )
    if run:
        index, width = torch.tensor(run), scores.logprobs.shape[1]
        values[index, :width] = torch.where(scores.mask, scores.logprobs, values[index, :width])
    m = len(prompts)
    return TeacherScores(values[:m], values[m:], sum(i < m for i in run), identical, over)


def correspond(
    batch: TurnBatch,
    answers: Sequence[ParsedResponse],
    encoder: Encoder,
    *,
    similarity_threshold: float,
    top_k: int,
    action_filter: bool = False,
    same_target: Callable[[str, str], bool] | None = None,
) -> tuple[Correspondence, Sources]:
    """Compare the teacher's answers with the siblings' turns and select the pairs to score.

    Args:
        batch: M rows.
        answers: the teacher's M answers, parsed.
        encoder: see `turncredit.trainers.encoder.Encoder`.
        similarity_threshold, top_k: gamma_H and K of AlignOPSD.
        action_filter: drop pairs whose actions have a cosine below 0.80.
        same_target: with the filter, also drop pairs whose actions it calls different (WebShop: verb and click target).
    """
    teacher, student = [answer.thinking for answer in answers], [turn.thinking for turn in batch.turns]
    texts = embed(encoder, [*teacher, *student])
    m = len(batch.turns)
    correspondence = build_correspondence(
        texts[:m],
        texts[m:],
        batch.trajectory_ids,
        batch.turn_ids,
        batch.group_ids,
        torch.tensor([bool(text.strip()) for text in teacher]),
        torch.tensor([bool(text.strip()) for text in student]),
    )
    sources = select_sources(correspondence, similarity_threshold=similarity_threshold, top_k=top_k)
    if action_filter and len(sources.source):
        actions = embed(encoder, [*(a.action for a in answers), *(turn.action for turn in batch.turns)])
        keep = action_similarity(sources, actions[:m], actions[m:]) >= 0.80
        if same_target is not None:
            pairs = zip(sources.source.tolist(), sources.target.tolist(), strict=True)
            keep &= torch.tensor([same_target(answers[v].action, batch.turns[u].action) for v, u in pairs])
        sources = sources.keep(keep)
    return correspondence, sources
