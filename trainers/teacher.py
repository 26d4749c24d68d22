"""The teacher: whose weights it has, how its prompts are made, and how it scores the student's tokens."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..envs import TaskSuite
from ..rollout.collector import RolloutCollector
from ..rollout.contexts import informed
from ..rollout.limits import model_positions
from ..rollout.prompts import opened_block, render_prompt
from ..rollout.scoring import PolicyScorer, ResponseScores
from ..rollout.types import Turn
from .batch import TurnBatch
from .config import GRPOConfig
from .distributed import zero_stage
from .policy import Policy, prepare_reference, weights_digest
from .reference import check_reference, match_dtypes
from .snapshots import TeacherSnapshot

if TYPE_CHECKING:
    from .methods.method import Method

logger = logging.getLogger(__name__)

Ids = tuple[int, ...]


@dataclass
class TeacherModel:
    """What speaks as the teacher.

    Args:
        scorer: scores.
        model: samples.
        snapshot: lagging weights that are put into the policy meanwhile, or None.
        differs: whether it says something else than the student under the student's own prompt that counts.
        sharded: whether it is a model of its own that ZeRO-3 shards.
        digest: of the weights of a model of its own, so that a continued run notices others.
    """

    scorer: Any
    model: PreTrainedModel
    snapshot: TeacherSnapshot | None = None
    differs: bool = False
    sharded: bool = False
    digest: str | None = None
    _inside: bool = False
    _collector: RolloutCollector | None = None

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Inside, scorer and model have the teacher's weights; afterwards the policy has its own, bit for bit."""
        if self.snapshot is None or self._inside:
            yield
            return
        with self.snapshot.swapped_in():
            self._inside = True
            try:
                yield
            finally:
                self._inside = False

    def check_sampling(self) -> None:
        """Raise a ValueError where this teacher cannot answer."""
        if self.sharded:
            raise ValueError(
                "GRPOTrainer: teacher must be the policy, current or lagging, where it answers under ZeRO-3, got a "
                "model of its own; use ZeRO-2, or teacher=stale"
            )

    def collector(self, collector: RolloutCollector) -> RolloutCollector:
        """The collector whose ``sample`` asks this teacher."""
        if self.model is collector.sampler.model and (self.snapshot is None or collector.served is None):
            return collector
        self.check_sampling()
        if self._collector is None:
            self._collector = collector.asking(self.model)
        return self._collector


def load_teacher(method: Method, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel | None:
    """The model that a method names as its teacher, checked; None where the teacher has the policy's weights.

    Raises:
        ValueError: it shares weights with the policy, or has another vocabulary.
        OSError: there is no such model.
    """
    if method.teacher is None or not method.teacher.is_another:
        return None
    weights = method.teacher.weights
    if isinstance(weights, str):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        name, weights = weights, AutoModelForCausalLM.from_pretrained(weights, dtype=model.dtype)
        told = not os.path.isdir(name) or os.path.exists(os.path.join(name, "tokenizer_config.json"))
        if told and AutoTokenizer.from_pretrained(name).get_vocab() != tokenizer.get_vocab():
            raise ValueError(
                f"GRPOTrainer: teacher must have the policy's tokenizer, got another vocabulary in {name!r}; the "
                "student's tokens would mean something else to it: choose a model of the same family"
            )
    check_reference(model, weights, "teacher")
    return weights


def make_teacher(
    accelerator: Accelerator, policy: Policy, method: Method, other: PreTrainedModel | None, config: GRPOConfig
) -> TeacherModel:
    """The teacher of a method beside a prepared policy.

    Raises:
        ValueError: another model whose positions the run's rows would exceed.
    """
    teacher = method.teacher
    if other is None:
        snapshot = None
        if teacher is not None and teacher.lags and (method.reads_teacher or method.prepare is not None):
            options = {"refresh_every": teacher.refresh_every, "ema_rate": teacher.ema_rate}
            snapshot = TeacherSnapshot(policy.model, str(teacher.weights), **options)
        differs = teacher is not None and teacher.context is None
        return TeacherModel(policy.scoring, policy.model, snapshot, differs)
    positions, rows = model_positions(other), config.sampling.max_prompt_length + config.sampling.max_completion_length
    own = model_positions(policy.model)
    needed = rows if own is None else min(rows, own.limit)
    if positions is not None and positions.limit < needed:
        raise ValueError(
            f"GRPOTrainer: teacher must take rows of {needed} tokens, as the run's settings allow, got a model of "
            f"{positions.limit} positions; lower max_prompt_length, or choose another teacher"
        )
    digest = weights_digest(other)
    match_dtypes(other, policy.model)
    scorer = prepare_reference(accelerator, PolicyScorer(other.eval().requires_grad_(False)), config)
    own: Any = accelerator.unwrap_model(policy.scorer)
    own.beside = (accelerator.unwrap_model(scorer),)
    return TeacherModel(scorer, other, differs=True, sharded=zero_stage(accelerator) == 3, digest=digest)


def teacher_prompts(
    tokenizer: PreTrainedTokenizerBase,
    batch: TurnBatch,
    texts: Sequence[str | None],
    chat_template_kwargs: Mapping[str, Any] | None = None,
    suite: TaskSuite | None = None,
) -> list[Ids]:
    """Prompt ids of every row under its text, or the student's own where there is none.

    Built from the turn's messages, never by decoding ids. A student prompt that already held the context (Skill-GRPO)
    is not the plain one, so it is compared by ids later.

    Args:
        tokenizer: the policy's tokenizer.
        batch: M rows.
        texts: M texts or None.
        chat_template_kwargs: those the student's prompts were rendered with.
        suite: whose ``with_context`` says where the text goes, see `turncredit.rollout.contexts.informed`.

    Raises:
        TypeError: a context that is not text.
    """

    def prompt(turn: Turn, text: str | None) -> Ids:
        if text is None:
            return turn.prompt_ids
        return render_prompt(tokenizer, informed(suite, turn.messages, text), chat_template_kwargs)

    return [prompt(turn, text) for turn, text in zip(batch.turns, texts, strict=True)]


def teacher_openings(
    tokenizer: PreTrainedTokenizerBase,
    batch: TurnBatch,
    texts: Sequence[str | None],
    chat_template_kwargs: Mapping[str, Any] | None = None,
    suite: TaskSuite | None = None,
) -> list[str]:
    """The thinking block that each of `teacher_prompts` opens at its end; see `turncredit.rollout.prompts`."""
    return [
        opened_block(tokenizer, informed(suite, turn.messages, text), chat_template_kwargs)
        for turn, text in zip(batch.turns, texts, strict=True)
    ]


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
    score: Callable[[Sequence[Ids], Sequence[Ids]], ResponseScores],
    batch: TurnBatch,
    prompts: Sequence[Ids],
    student_logprobs: Tensor,
    *,
    pairs: Sequence[tuple[int, int]] = (),
    max_length: int | None = None,
    identical_too: bool = False,
) -> TeacherScores:
    """Score the sampled responses under teacher prompts, and selected pairs (source, target) in the same pass.

    Args:
        score: prompts and responses -> the teacher's scores.
        batch: M rows.
        prompts: M teacher prompts.
        student_logprobs: ``[M, T]`` float32.
        pairs: rows whose response (target) is scored under another row's teacher prompt (source).
        max_length: the model's longest sequence, tokens; None for no limit.
        identical_too: score also where the teacher's prompt is the student's.
    """
    jobs = [(prompt, row) for row, prompt in enumerate(prompts)]
    jobs += [(prompts[source], target) for source, target in pairs]
    values = torch.cat([student_logprobs, student_logprobs[[target for _, target in pairs]]])
    run, over, identical = [], 0, 0
    for index, (prompt, row) in enumerate(jobs):
        turn = batch.turns[row]
        if prompt == turn.prompt_ids and not identical_too:
            identical += index < len(prompts)
        elif max_length is not None and len(prompt) + len(turn.response_ids) > max_length:
            over += 1
        else:
            run.append(index)
    if over:
        logger.warning("%d teacher prompts exceed the model's %s tokens; their gap counts as 0", over, max_length)
    scores = score([jobs[i][0] for i in run], [batch.turns[jobs[i][1]].response_ids for i in run])
    if run:
        index, width = torch.tensor(run), scores.logprobs.shape[1]
        values[index, :width] = torch.where(scores.mask, scores.logprobs, values[index, :width])
    m = len(prompts)
    return TeacherScores(values[:m], values[m:], sum(i < m for i in run), identical, over)
