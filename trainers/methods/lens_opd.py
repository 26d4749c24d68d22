"""LENS-OPD: on-policy distillation that goes deeper as the student keeps up, and looks closer where a hint helps."""

from __future__ import annotations

import functools
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...credit.lens import (
    DepthController,
    focus_weights,
    frontier_compatibility,
    gates,
    proposed_turns,
    token_focus,
)
from ...envs import Task
from ...rollout.contexts import context_text
from ...rollout.episodes import EpisodeStart
from ...rollout.options import check_options, count, flag, number, text
from ...rollout.prompts import render_prompt
from ...rollout.types import Trajectory
from ..batch import TurnBatch, make_batch
from ..rows import TrainRows
from ..teacher import teacher_prompts
from ..terms import LossTerm, PerToken, TokenBatch
from .branches import student_text
from .contexts import teacher_texts
from .method import Method
from .registry import register_method

if TYPE_CHECKING:
    from .run import Run

CUES, EVALUATORS = ("teacher", "privileged"), ("likelihood", "return")
_ASKED = (
    "Proposed action: {action}\nIn one sentence: if it is wrong, name what is wrong with it; if it is right, say so."
)
_CUE_TOKENS = 80


@dataclass(frozen=True)
class FocusTerm(LossTerm):
    """KL(pi || pi_T) of every token, times its weight. Source: LENS-OPD (arXiv 2609.33409), Eq. 13."""

    name: str = "opd"
    average: str = "token-mean"
    rows: str = "all"
    reads: tuple[str, ...] = ("teacher_hidden", "token_weights")
    divergence: str = "reverse"

    def per_token(self, batch: TokenBatch) -> PerToken:
        return batch.outputs["divergence"] * batch.signals["token_weights"]


@dataclass(frozen=True)
class GuidanceTerm(LossTerm):
    """KL(q || p), q the policy that read the cue. Source: LENS-OPD (arXiv 2609.33409), Eq. 10."""

    name: str = "guidance"
    average: str = "token-mean"
    rows: str = "all"
    reads: tuple[str, ...] = ("teacher_hidden",)
    divergence: str = "own_forward"

    def per_token(self, batch: TokenBatch) -> PerToken:
        return batch.outputs["divergence"]


@dataclass(frozen=True)
class Settings:
    """Options of `lens_opd`, checked."""

    eta: float
    horizon: int
    tau: float
    beta: float
    cap: float
    guidance: float
    k_start: int
    evaluator: str
    cue: str
    last_turn: bool
    internalize: bool
    focus: bool

    def __post_init__(self) -> None:
        rules = {
            **dict.fromkeys(("eta", "tau"), number(above=True)),
            **dict.fromkeys(("beta", "guidance"), number()),
            "cap": number(1.0),
            **dict.fromkeys(("horizon", "k_start"), count(1)),
            "evaluator": text(*EVALUATORS),
            "cue": text(*CUES),
            **dict.fromkeys(("last_turn", "internalize", "focus"), flag()),
        }
        check_options("lens_opd", vars(self), rules)


def _method(fixed_clock: bool = False, coef: float = 1.0, **options: object) -> Method:
    settings = Settings(**options)  # type: ignore[arg-type]
    control = DepthController(10**6, k_start=settings.k_start, eta=settings.eta, fixed_clock=fixed_clock)
    return Method(
        None,
        (FocusTerm(coef=coef),),
        policy_weight=0.0,
        rollouts=functools.partial(_to_depth, control=control),
        prepare=functools.partial(_look_closer, settings=settings, control=control),
        gives=("token_weights",),
        state={"depth": control},
    )


@register_method("lens_opd")
def lens_opd(
    *,
    coef: float = 1.0,
    eta: float = 5.0,
    horizon: int = 3,
    tau: float = 1.0,
    beta: float = 1.0,
    cap: float = 5.0,
    guidance: float = 1.0,
    k_start: int = 1,
    evaluator: str = "likelihood",
    cue: str = "teacher",
) -> Method:
    """Distillation at a growing depth, guided and focused where a hinted continuation does better. docs/lens_opd.md.

    Source: LENS-OPD (arXiv 2609.33409). ``guidance`` (lambda_GI) and ``k_start`` are not in the paper and ours.

    Args:
        coef: of the base loss.
        eta: pace that a turn deeper takes (Eq. 3).
        horizon: H, turns of a continuation.
        tau, beta, cap: of the token focus (Eq. 11, 12).
        guidance: of the loss that internalises a hint (Eq. 10).
        k_start: first depth.
        evaluator: what a continuation is worth: ``"likelihood"`` under the teacher (Eq. 8), or its ``"return"`` (ours).
        cue: who writes the hint: the ``"teacher"``, or the suite's ``"privileged"`` context (ours).
    """
    options = {name: value for name, value in locals().items() if name != "coef"}
    return _method(coef=coef, **options, last_turn=False, internalize=True, focus=True)


def _ablation(name: str, **changes: object) -> None:
    """`lens_opd` without one of its parts, by the name of the paper's ablation."""

    def factory(
        *,
        coef: float = 1.0,
        eta: float = 5.0,
        horizon: int = 3,
        tau: float = 1.0,
        beta: float = 1.0,
        cap: float = 5.0,
        guidance: float = 1.0,
        k_start: int = 1,
        evaluator: str = "likelihood",
        cue: str = "teacher",
    ) -> Method:
        given = {key: value for key, value in locals().items() if key not in ("changes", "name")}
        return _method(**{"last_turn": False, "internalize": True, "focus": True, **given, **changes})  # type: ignore[arg-type]

    factory.__doc__ = f"`lens_opd` with {changes}."
    factory.__qualname__ = name
    register_method(name)(factory)


_ablation("lens_opd_fixed_clock", fixed_clock=True)
_ablation("lens_opd_last_turn", last_turn=True)
_ablation("lens_opd_no_internalization", internalize=False)
_ablation("lens_opd_no_token_focus", focus=False)


def _to_depth(tasks: Sequence[Task], run: Run, *, control: DepthController) -> list[Trajectory]:
    """Ordinary episodes of at most K turns."""
    depth = min(control.depth, run.suite.max_turns)
    run.log("depth", depth, reduce="max")
    texts = [student_text(run, task) for task in tasks]
    starts = [
        EpisodeStart(task, group, index, context=texts[group], max_turns=depth)
        for group, task in enumerate(tasks)
        for index in range(run.config.num_generations)
    ]
    return run.rollout(starts)


def _look_closer(batch: TurnBatch, run: Run, *, settings: Settings, control: DepthController) -> dict[str, Tensor]:
    """``token_weights`` ``[M, T]``; guidance rows are added to the update."""
    mask = batch.response_mask
    found = run.compare(batch.prompts, batch.responses, teacher_hidden=run.signal("teacher_hidden"))
    gap = found.kl
    (own, teachers), (theirs, sure) = found.top_logprobs.unbind(-1), found.teacher_top_logprobs.unbind(-1)
    _pace(batch, run, control, teachers, own)
    rows = proposed_turns(gap, mask, batch.trajectory_ids, batch.turn_ids, last=settings.last_turn)
    chosen = [row for row in rows.tolist() if row >= 0]
    cues = _cues(batch, run, chosen, settings.cue)
    pairs = [(row, cue) for row, cue in zip(chosen, cues, strict=True) if cue]
    run.log("cues", len(pairs), reduce="sum")
    run.log("failed_cues", len(chosen) - len(pairs), reduce="sum")
    base, hinted = _continue(batch, run, pairs, settings.horizon)
    values = [_values(batch, run, pairs, part, settings.evaluator) for part in (base, hinted)]
    gains, opened = gates(*values)
    known = int((~gains.isnan()).sum())
    run.log("incomplete_pairs", len(pairs) - known, reduce="sum")
    run.log("hint_gain", float(gains.nansum()) / max(known, 1), count=known)
    run.log("hints_that_help", float(opened.double().sum()) / max(known, 1), count=known)
    helped = [(row, played) for (row, _), played, good in zip(pairs, hinted, opened.tolist(), strict=True) if good]
    if settings.internalize:
        _internalize(batch, run, helped, settings.guidance)
    focused = torch.zeros(len(batch.turns), dtype=torch.bool)
    focused[[row for row, _ in helped]] = settings.focus
    focus = token_focus(own, teachers, sure, theirs, tau=settings.tau)
    return {"token_weights": focus_weights(focus, mask, focused, beta=settings.beta, cap=settings.cap)}


def _pace(batch: TurnBatch, run: Run, control: DepthController, teachers: Tensor, own: Tensor) -> None:
    """Let the controller take in the batch's compatibility, the median over the trajectories of all processes."""
    reached = frontier_compatibility(
        teachers, own, batch.response_mask, batch.trajectory_ids, batch.turn_ids, control.depth
    )
    everywhere = run.all_gather(reached.tolist())
    compatibility = statistics.median(everywhere) if everywhere else None
    if control.depth >= run.suite.max_turns:
        control.k_max = control.depth
    pace = control.update(None if compatibility is None else min(max(compatibility, 0.0), 1.0))
    run.log("frontier_compatibility", float(reached.mean()) if len(reached) else 0.0, count=len(reached))
    run.log("pace", pace, reduce="max")


def _cues(batch: TurnBatch, run: Run, rows: Sequence[int], cue: str) -> list[str | None]:
    """One sentence, or None, for each proposed turn."""
    owners = [batch.trajectories[int(batch.trajectory_ids[row])] for row in rows]
    if cue == "privileged":
        return [context_text(run.suite, run.tasks[owner.task_id], "privileged") for owner in owners]
    asked = [
        [*batch.turns[row].messages, {"role": "user", "content": _ASKED.format(action=batch.turns[row].action)}]
        for row in rows
    ]
    prompts = [render_prompt(run.tokenizer, messages, run.collector.chat_template_kwargs) for messages in asked]
    seeds = [("cue", owner.task_id, owner.rollout_index, run.step) for owner in owners]
    samples = run.sample(prompts, seeds, weights="teacher", max_completion_length=_CUE_TOKENS)
    texts = [run.response_text(sample).strip() for sample in samples]
    return [re.split(r"(?<=[.!?])\s", said)[0] or None if said else None for said in texts]


def _continue(
    batch: TurnBatch, run: Run, pairs: Sequence[tuple[int, str]], horizon: int
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Continuations from before each proposed turn, without and with the cue in that turn."""
    starts = []
    for row, cue in pairs:
        owner = batch.trajectories[int(batch.trajectory_ids[row])]
        turn = owner.replayed + int(batch.turn_ids[row])
        plain = student_text(run, run.tasks[owner.task_id])
        for name, told in (("base", plain), ("hinted", cue)):
            context = functools.partial(_told, turn, told, plain)
            again = {"task": run.tasks[owner.task_id], "seed": (name,), "max_turns": horizon, "context": context}
            starts.append(EpisodeStart.at_turn(owner, turn, **again))
    played = run.rollout(starts)
    return played[::2], played[1::2]


def _told(fork: int, told: str | None, plain: str | None, turn: int) -> str | None:
    return told if turn == fork else plain


def _values(
    batch: TurnBatch, run: Run, pairs: Sequence[tuple[int, str]], played: Sequence[Trajectory], evaluator: str
) -> Tensor:
    """``[P]`` what continuations are worth, NaN where one failed; collective."""
    usable = [t.failure is None and len(t.turns) > t.replayed for t in played]
    values = torch.full((len(played),), torch.nan, dtype=torch.float64)
    if evaluator == "return":
        for place, (trajectory, good) in enumerate(zip(played, usable, strict=True)):
            values[place] = trajectory.reward if good else math.nan
        return values
    kept = [trajectory for trajectory, good in zip(played, usable, strict=True) if good]
    forks = [batch.turns[row].prompt_ids for (row, _), good in zip(pairs, usable, strict=True) if good]
    part = make_batch(kept)
    texts = teacher_texts(run.method, part, run) if kept else []
    prompts = teacher_prompts(run.tokenizer, part, texts, run.collector.chat_template_kwargs, run.suite)
    if kept:
        first = part.turn_ids == 0
        for place in first.nonzero().flatten().tolist():
            if texts[place] is None:  # the canonical history, without the cue
                prompts[place] = forks[int(part.trajectory_ids[place])]
    scores = run.score(prompts, part.responses, weights="teacher")
    if kept:
        sums = torch.zeros(len(kept), dtype=torch.float64).index_add_(
            0, part.trajectory_ids, scores.logprobs.double().sum(1)
        )
        counts = torch.zeros(len(kept), dtype=torch.float64).index_add_(
            0, part.trajectory_ids, scores.mask.double().sum(1)
        )
        values[torch.tensor(usable)] = sums / counts
    return values


def _internalize(batch: TurnBatch, run: Run, helped: Sequence[tuple[int, Trajectory]], weight: float) -> None:
    """Rows that draw the policy, without the cue, to what it said with it."""
    turns = [(row, played.turns[played.replayed]) for row, played in helped]
    responses = [turn.response_ids for _, turn in turns]
    hidden = run.score([turn.prompt_ids for _, turn in turns], responses, modules=("hidden",)).outputs["hidden"]
    owners = [batch.trajectories[int(batch.trajectory_ids[row])] for row, _ in turns]
    slots = [owner.group_id * run.config.num_generations + owner.rollout_index for owner in owners]
    prompts = [batch.turns[row].prompt_ids for row, _ in turns]
    run.add_rows(TrainRows.beside(prompts, responses, slots, {"teacher_hidden": hidden}), (GuidanceTerm(coef=weight),))
