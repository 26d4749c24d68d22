"""Between rollouts and the update: score every sampled token, give credit to every turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..credit import Credit, CreditInputs, CreditMethod, Mean, get_credit
from ..credit.align import Correspondence, boundary_divergences, boundary_threshold, rectify
from ..credit.invalid_action import invalid_action_residual, residual_metrics
from ..credit.metrics import Total
from ..envs import ParsedResponse, Task, TaskSuite
from ..rollout.collector import RolloutCollector
from ..rollout.limits import model_positions
from ..rollout.scoring import Agree
from ..rollout.suite_calls import parsed_or_empty
from .batch import TurnBatch, anchor_ids, span_mask
from .config import GRPOConfig
from .encoder import Encoder
from .optimization import TrainRows
from .recipes import Recipe
from .reference import speaking
from .scores import ScoringSettings, score_rows
from .snapshots import TeacherSnapshot
from .teacher import correspond, hindsight_contexts, score_teacher, teacher_openings, teacher_prompts


@dataclass(frozen=True)
class PhaseResult:
    """Rows to train on, the credit with its inputs (None without a usable turn), metrics of this process.

    Metrics say what they were taken over (:mod:`turncredit.credit.metrics`), so that processes can be joined.
    """

    rows: TrainRows
    inputs: CreditInputs | None
    credit: Credit | None
    metrics: dict[str, float]


def normalization_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """How a method normalises its advantages, by the names that methods give it; GRPO's way where it does not say."""
    named = {name: options[name] for name in ("scale_rewards", "normalization_scope", "eps") if name in options}
    if "normalization" in options:  # GiGPO's
        named["scale_rewards"] = options["normalization"] == "mean_std"
    return named


@dataclass
class CreditPhase:
    """Everything that turns one process's trajectories into rows with advantages.

    Args:
        scorer: the policy as a scorer: bare, or DeepSpeed's engine where weights are sharded.
        model: the bare policy.
        reference: the frozen reference as a scorer, or None.
        collector: its sampler also answers as the teacher.
        suite, tasks: the task suite, and its tasks by id.
        credit, recipe, config: what to compute and how.
        snapshot: lagging teacher weights, or None for the current ones.
        encoder: makes the sentence encoder when AlignOPSD first needs it.
        recompute: score the sampled tokens again instead of trusting the sampler's log-probs.
        generation: the context in which the model generates.
        agree: see `score_responses`; given where every forward pass is a collective call.
        pool: numbers of this process -> those of all processes; given where there are several.
    """

    scorer: Any
    model: Any
    reference: Any
    collector: RolloutCollector
    suite: TaskSuite
    tasks: Mapping[str, Task]
    credit: CreditMethod
    recipe: Recipe
    config: GRPOConfig
    snapshot: TeacherSnapshot | None
    encoder: Callable[[], Encoder]
    recompute: bool
    generation: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    agree: Agree | None = None
    pool: Callable[[list[float]], list[float]] | None = None

    def __call__(self, batch: TurnBatch, step: int) -> PhaseResult:
        """Score and credit one batch; `step` is the number of updates done."""
        metrics: dict[str, float] = {}
        settings = self._settings()
        old = score_rows(self.scorer, batch, settings) if self.recompute else batch.sampled_logprobs
        if self.recompute and batch.turns:
            drift = (old - batch.sampled_logprobs).abs().masked_select(batch.response_mask)
            metrics["train/sampling_drift"] = Mean(float(drift.mean()), drift.numel())
        teacher, correspondence = self._teach(batch, old, settings, step, metrics)
        with speaking(self.reference):
            reference = score_rows(self.reference, batch, settings) if self.reference is not None else None
        inputs = credit = None
        advantages = torch.zeros(batch.response_mask.shape)
        if batch.turns:
            inputs = self._inputs(batch, old, teacher, correspondence)
        method = self._with_shared_threshold(inputs)
        if inputs is not None:
            credit = method(inputs, step=step)
            metrics |= {f"credit/{name}": value for name, value in credit.metrics.items()}
            advantages = self._penalised(credit.advantages.float(), batch, metrics)
        groups, index = torch.unique(batch.group_ids, return_inverse=True)
        moved = torch.zeros(len(groups), dtype=torch.bool)
        moved[index[batch.trajectory_ids[(advantages != 0).any(1)]]] = True
        metrics["credit/groups"] = Total(len(groups))
        metrics["credit/groups_without_advantage"] = Total((~moved).sum())
        slots = [t.group_id * self.config.num_generations + t.rollout_index for t in batch.trajectories]
        rows = TrainRows(
            batch.prompts,
            batch.responses,
            batch.response_mask,
            torch.tensor(slots, dtype=torch.long)[batch.trajectory_ids],
            moved[index[batch.trajectory_ids]],
            advantages,
            old,
            reference,
            self._distilled(teacher, correspondence),
        )
        return PhaseResult(rows, inputs, credit, metrics)

    def _with_shared_threshold(self, inputs: CreditInputs | None) -> CreditMethod:
        """AlignOPSD's boundary quantile is over the whole batch, so over all processes; collective."""
        options = self.credit.options
        if self.pool is None or "correspondence" not in self.credit.requires or options["threshold"] is not None:
            return self.credit
        own: list[float] = []
        if inputs is not None:
            names = ("similarity_threshold", "profile_temperature", "distance")
            own = boundary_divergences(inputs, **{name: options[name] for name in names}).tolist()
        shared = boundary_threshold(
            torch.tensor(self.pool(own), dtype=torch.float32),
            quantile=options["boundary_quantile"],
            low=options["boundary_low"],
            high=options["boundary_high"],
        )
        return get_credit(self.recipe.credit, **{**options, "threshold": shared})

    @property
    def needs_teacher(self) -> bool:
        """Whether the method reads the teacher at all."""
        return "teacher_logprobs" in self.credit.requires or self.recipe.auxiliary is not None

    def _settings(self) -> ScoringSettings:
        return ScoringSettings(
            self.collector.tokenizer.pad_token_id,
            self.config.sampling.temperature or 1.0,
            self.config.micro_batch_tokens,
            self.agree,
        )

    def _teach(
        self, batch: TurnBatch, old: Tensor, settings: ScoringSettings, step: int, metrics: dict[str, float]
    ) -> tuple[Tensor | None, Correspondence | None]:
        if not self.needs_teacher:
            return None, None
        if self.recipe.teacher_context == "hindsight":
            contexts = hindsight_contexts(batch.trajectories)
        else:
            contexts = [self.suite.privileged_context(self.tasks[t.task_id]) for t in batch.trajectories]
        rendering = (self.collector.tokenizer, batch, contexts, self.collector.chat_template_kwargs)
        prompts = teacher_prompts(*rendering)
        positions = model_positions(self.model)
        limit = None if positions is None else positions.limit
        aligned = "correspondence" in self.credit.requires
        correspondence, pairs = None, []
        swapped = self.snapshot.swapped_in(self.model) if self.snapshot is not None else contextlib.nullcontext()
        with swapped:
            answers = self._answers(batch, prompts, teacher_openings(*rendering), step, limit) if aligned else []
            if answers:
                correspondence, sources = correspond(
                    batch,
                    answers,
                    self.encoder(),
                    similarity_threshold=self.credit.options["similarity_threshold"],
                    top_k=self.credit.options["top_k"],
                    action_filter=self.recipe.action_filter,
                    same_target=getattr(self.suite, "same_target", None),
                )
                pairs = list(zip(sources.source.tolist(), sources.target.tolist(), strict=True))
                metrics["teacher/pairs"] = Total(len(pairs))
            scores = score_teacher(self.scorer, batch, prompts, old, settings, pairs=pairs, max_length=limit)
        if correspondence is not None:
            correspondence = correspondence.with_scores(sources, scores.cross)
        metrics["teacher/rows"] = Total(scores.scored)
        metrics["teacher/identical_rows"] = Total(scores.identical)
        metrics["teacher/over_length_rows"] = Total(scores.over_length)
        return scores.logprobs, correspondence

    def _distilled(self, teacher: Tensor | None, correspondence: Correspondence | None) -> Tensor | None:
        """What an auxiliary term distils: the teacher's scores, or AlignOPSD's rectified ones."""
        if not self.recipe.rectified_teacher or teacher is None or correspondence is None:
            return teacher
        assert correspondence.sources is not None
        assert correspondence.cross_logprobs is not None
        names = ("aggregation_temperature", "alpha_max", "mixture")
        options = {name: self.credit.options[name] for name in names}
        return rectify(teacher, correspondence.sources, correspondence.cross_logprobs, **options).logprobs

    def _answers(
        self,
        batch: TurnBatch,
        prompts: Sequence[tuple[int, ...]],
        openings: Sequence[str],
        step: int,
        limit: int | None,
    ) -> list[ParsedResponse]:
        """The teacher's own response at every visited state, sampled like the student's; an empty one where the prompt
        leaves no room for it."""
        length = self.config.teacher_max_completion_length or self.config.sampling.max_completion_length
        sampling = replace(self.config.sampling, max_completion_length=length)
        turns = zip(batch.trajectory_ids.tolist(), batch.turn_ids.tolist(), strict=True)
        keys = [(batch.trajectories[i].task_id, batch.trajectories[i].rollout_index, k) for i, k in turns]
        seeds = [("teacher", self.config.seed, step, *key) for key in keys]
        fits = [row for row, prompt in enumerate(prompts) if limit is None or len(prompt) + length <= limit]
        with self.generation():
            samples = self.collector.sample(
                [prompts[row] for row in fits],
                sampling,
                [seeds[row] for row in fits],
                batch_size=self.config.num_envs,
            )
        answers = [ParsedResponse("", "", False)] * len(prompts)
        for row, sample in zip(fits, samples, strict=True):
            answers[row] = parsed_or_empty(self.suite, self.collector.response_text(sample), openings[row])
        return answers

    def _inputs(
        self, batch: TurnBatch, student: Tensor, teacher: Tensor | None, correspondence: Correspondence | None
    ) -> CreditInputs:
        needs = self.credit.requires
        spans = getattr(self.suite, "causal_span", "action_only")
        return CreditInputs(
            response_mask=batch.response_mask,
            trajectory_ids=batch.trajectory_ids,
            turn_ids=batch.turn_ids,
            group_ids=batch.group_ids,
            rewards=torch.tensor([t.reward for t in batch.trajectories], dtype=torch.float32),
            successes=torch.tensor([t.success for t in batch.trajectories], dtype=torch.float32),
            student_logprobs=student,
            teacher_logprobs=teacher,
            valid_actions=torch.tensor([turn.valid for turn in batch.turns], dtype=torch.bool),
            span_mask=span_mask(batch, spans) if "span_mask" in needs else None,
            anchor_ids=anchor_ids(batch) if "anchor_ids" in needs else None,
            turn_rewards=torch.tensor([turn.reward for turn in batch.turns], dtype=torch.float32),
            correspondence=correspondence,
        )

    def _penalised(self, advantages: Tensor, batch: TurnBatch, metrics: dict[str, float]) -> Tensor:
        """Add the invalid-action residual in the units of the method's advantages, unless it adds its own."""
        if not self.config.invalid_action_penalty or self.credit.adds_residual:
            return advantages
        residual = invalid_action_residual(
            torch.tensor([t.reward for t in batch.trajectories], dtype=torch.float32),
            torch.tensor([turn.valid for turn in batch.turns], dtype=torch.bool),
            batch.trajectory_ids,
            batch.group_ids,
            penalty=self.config.invalid_action_penalty,
            **normalization_of(self.credit.options),
        )
        metrics |= {f"credit/{name}": value for name, value in residual_metrics(residual).items()}
        return torch.where(batch.response_mask, advantages + residual.float()[:, None], advantages)
