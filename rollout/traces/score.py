"""Imported trajectories under a model: ids, log-probs, and log-probs under a privileged context."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..contexts import informed
from ..prompts import check_tokenizer, render_prompt
from ..scoring import PolicyScorer, score_responses
from ..types import Trajectory
from .frame import tokenized
from .load import Traces
from .records import Skip

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

Context = str | Mapping[str, str] | Callable[[Trajectory], str | None] | None
"""A privileged text: one for all, one by task id, or one of a trajectory (None for none)."""


def tokenize_traces(
    trajectories: Iterable[Trajectory],
    tokenizer: PreTrainedTokenizerBase,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    on_error: str = "raise",
) -> Traces:
    """The trajectories with token ids, by the chat template's own frame; turns that have ids keep them.

    ``prompt_ids`` are the template's rendering of a turn's messages with the generation prompt, ``response_ids`` what
    it writes of the assistant's message behind it, the token that ends it included; both together are checked against
    the template's rendering. Log-probs are 0: `score_traces` fills them.

    Args:
        trajectories: of `load_traces`.
        tokenizer: a Hugging Face tokenizer with a chat template.
        chat_template_kwargs: further variables of the template, such as ``{"enable_thinking": False}``.
        on_error: ``"raise"``, or ``"skip"`` to leave out trajectories that the template cannot show; they are logged,
            and listed in ``.skipped``.

    Raises:
        ValueError: a message that the template does not write behind its generation prompt, or nothing that is left.
    """
    check_tokenizer(tokenizer)
    if on_error not in ("raise", "skip"):
        raise ValueError(f'tokenize_traces: on_error must be "raise" or "skip", got {on_error!r}; pick one of them')
    kept, skipped = Traces(), []
    for place, trajectory in enumerate(trajectories):
        try:
            turns = tuple(tokenized(turn, tokenizer, chat_template_kwargs or {}) for turn in trajectory.turns)
        except (TypeError, ValueError) as error:
            if on_error == "raise":
                what = f"tokenize_traces: trajectory {place} (task {trajectory.task_id!r}): {error}"
                raise ValueError(f"{what} (on_error='skip' leaves such trajectories out)") from error
            skipped.append(Skip(place, str(error)))
            continue
        kept.append(replace(trajectory, turns=turns))
    kept.skipped = tuple(skipped)
    if not kept:
        first = f", the first for: {skipped[0].reason}" if skipped else ""
        raise ValueError(f"tokenize_traces: trajectories must not be empty, got none of {len(skipped)}{first}")
    if skipped:
        logger.warning("tokenize_traces: %d trajectories were left out: %s", len(skipped), skipped[0].reason)
    return kept


def score_traces(
    trajectories: Iterable[Trajectory],
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    context: Context = None,
    *,
    temperature: float = 1.0,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    max_tokens: int = 16384,
    on_error: str = "raise",
) -> Traces:
    """The trajectories with token ids and log-probs under `model`, as the student and as the teacher reads them.

    ``CreditInputs.from_trajectories`` makes a batch of the result.

    Args:
        trajectories: imported ones, or sampled ones, whose ids stay and whose log-probs are replaced.
        model: a Hugging Face causal language model.
        tokenizer: its tokenizer.
        context: the privileged text, ahead of the first user message's own: one for all, a mapping from task id, or a
            function of the trajectory; None for no teacher. A trajectory without a text is scored as the student.
        temperature: divides the logits.
        chat_template_kwargs, on_error: see `tokenize_traces`.
        max_tokens: sequences x longest sequence in one forward pass.

    Raises:
        TypeError: a context that is no text.
        ValueError: see `tokenize_traces`; rows longer than the model's positions.
    """
    traces = tokenize_traces(trajectories, tokenizer, chat_template_kwargs=chat_template_kwargs, on_error=on_error)
    texts = [_text(context, trajectory) for trajectory in traces]
    if context is not None and not any(texts):
        raise ValueError(
            f"score_traces: context must give a text for a trajectory, got none for {len(traces)}, the first of task "
            f"{traces[0].task_id!r}; use the task ids of the trajectories"
        )
    scorer = model if isinstance(model, PolicyScorer) else PolicyScorer(model)
    turns = [turn for trajectory in traces for turn in trajectory.turns]
    responses = [turn.response_ids for turn in turns]
    options: dict[str, Any] = {
        "pad_token_id": tokenizer.pad_token_id,
        "temperature": temperature,
        "max_tokens": max_tokens,
    }
    student = _rows(score_responses(scorer, [turn.prompt_ids for turn in turns], responses, **options))
    teacher: list[tuple[float, ...] | None] = [None] * len(turns)
    if context is not None:
        told = [text for trajectory, text in zip(traces, texts, strict=True) for _ in trajectory.turns]
        prompts = [
            render_prompt(tokenizer, informed(None, turn.messages, text), chat_template_kwargs)
            if text
            else turn.prompt_ids
            for turn, text in zip(turns, told, strict=True)
        ]
        teacher = list(_rows(score_responses(scorer, prompts, responses, **options)))
    scored = iter([replace(t, logprobs=s, teacher_logprobs=h) for t, s, h in zip(turns, student, teacher, strict=True)])
    return _with_turns(traces, scored)


def _text(context: Context, trajectory: Trajectory) -> str | None:
    if isinstance(context, Mapping):
        text = context.get(trajectory.task_id)
    else:
        text = context(trajectory) if callable(context) else context
    if text is not None and not isinstance(text, str):
        raise TypeError(
            f"score_traces: context must give text, got {type(text).__name__} for task {trajectory.task_id!r}; join it"
        )
    return text if text and text.strip() else None


def _rows(scores: Any) -> Sequence[tuple[float, ...]]:
    """The log-probs of each response; above 0 by rounding only, they are 0."""
    values = scores.logprobs.clamp(max=0.0)
    return [tuple(row[inside].tolist()) for row, inside in zip(values, scores.mask, strict=True)]


def _with_turns(traces: Traces, turns: Any) -> Traces:
    made = Traces(replace(trajectory, turns=tuple(next(turns) for _ in trajectory.turns)) for trajectory in traces)
    made.skipped = traces.skipped
    return made
