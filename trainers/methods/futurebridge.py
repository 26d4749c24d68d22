"""FutureBridge: a turn of the teacher's is learned where the student plays on better behind it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...credit.lens import bridge_turns, preferred_share
from ...rollout.episodes import EpisodeStart
from ...rollout.options import check_options, count, flag, number
from ...rollout.types import StopReason, Trajectory
from ..batch import TurnBatch, make_batch
from ..rows import TrainRows
from ..teacher import teacher_prompts
from .branches import student_text
from .contexts import teacher_texts
from .distill import DivergenceTerm, last_turns, teacher_plays
from .method import Method
from .registry import register_method

if TYPE_CHECKING:
    from .run import Run


@dataclass(frozen=True)
class Bridge:
    """A turn of the batch, and the episode in which the teacher's response stands in its place.

    Args:
        row: the turn's row.
        played: the episode up to and with the teacher's turn.
    """

    row: int
    played: Trajectory

    @property
    def usable(self) -> bool:
        """Whether the teacher's turn was played."""
        return self.played.failure is None and len(self.played.turns) > self.played.replayed

    @property
    def share(self) -> float | None:
        """1 where it solved the task, 0 where it ended the episode otherwise, None where the student plays on."""
        return {StopReason.SUCCESS: 1.0, StopReason.MAX_TURNS: None}.get(self.played.stop_reason, 0.0)


@register_method("futurebridge")
def futurebridge(
    *,
    coef: float = 1.0,
    bridge: float = 1.0,
    horizon: int = 3,
    failed_only: bool = True,
    curriculum: bool = True,
    k_start: int = 1,
    eta: int = 2,
    attempts: int = 1,
) -> Method:
    """`tcod_b2f` with bridges: one turn of an episode is played by the teacher, and learned if that made things better.

    The turn is the one that the teacher finds least likely, valid and not the last. Behind the teacher's response the
    student plays `horizon` turns; their share of tokens with ``log pi_T > log pi`` must exceed that of the turns which
    followed in the episode. A response that solves the task has share 1, one that ends the episode otherwise 0. See
    docs/lens_opd.md.

    Source: FutureBridge-OPD (arXiv 2608.01953); where the text was not to be had, its released code.

    Args:
        coef: of the base loss, KL(pi || pi_T) over all sampled tokens.
        bridge: weight of a token of a kept bridge, relative to one of the batch's.
        horizon: turns of a continuation.
        failed_only: bridge only episodes that failed, as the released code does.
        curriculum: begin behind turns of the teacher's, as `tcod_b2f`; else at the beginning.
        k_start, eta, attempts: of the curriculum.
    """
    rules = {
        "bridge": number(),
        **dict.fromkeys(("horizon", "k_start", "eta", "attempts"), count(1)),
        **dict.fromkeys(("failed_only", "curriculum"), flag()),
    }
    options = {name: value for name, value in locals().items() if name in rules}
    check_options("futurebridge", options, rules)
    return Method(
        None,
        (DivergenceTerm(coef=coef),),
        policy_weight=0.0,
        rollouts=functools.partial(last_turns, k_start=k_start, eta=eta, attempts=attempts) if curriculum else None,
        prepare=functools.partial(_bridge, weight=coef * bridge, horizon=horizon, failed_only=failed_only),
        start=teacher_plays if curriculum else _can_answer,
    )


def _can_answer(run: Run) -> None:
    run.teacher.check_sampling()


def _bridge(batch: TurnBatch, run: Run, *, weight: float, horizon: int, failed_only: bool) -> dict[str, Tensor]:
    """Rows of kept bridges are added to the update."""
    found = run.compare(batch.prompts, batch.responses, teacher_hidden=run.signal("teacher_hidden"))
    lost = torch.tensor([not failed_only or one.success < 1.0 for one in batch.trajectories], dtype=torch.bool)
    allowed = torch.tensor([turn.valid for turn in batch.turns], dtype=torch.bool) & lost[batch.trajectory_ids]
    places = (found.mask, batch.trajectory_ids, batch.turn_ids)
    rows = bridge_turns(found.logprobs, found.teacher_logprobs, *places, allowed)
    tried = _teacher_turns(batch, run, [row for row in rows.tolist() if row >= 0])
    bridges = [one for one in tried if one.usable]
    before = preferred_share(
        found.logprobs, found.teacher_logprobs, found.mask, _followers(batch, bridges, horizon), len(bridges)
    )
    after = _continued(run, batch, bridges, horizon)
    gains = after - before
    known = int((~gains.isnan()).sum())
    run.log("bridges", len(tried), reduce="sum")
    run.log("failed_bridges", len(tried) - known, reduce="sum")
    run.log("bridge_gain", float(gains.nansum()) / max(known, 1), count=known)
    run.log("bridges_kept", float((gains > 0).sum()) / max(known, 1), count=known)
    _learn(batch, run, [one for one, gain in zip(bridges, gains.tolist(), strict=True) if gain > 0], weight)
    return {}


def _owner(batch: TurnBatch, row: int) -> Trajectory:
    return batch.trajectories[int(batch.trajectory_ids[row])]


def _teacher_turns(batch: TurnBatch, run: Run, rows: Sequence[int]) -> list[Bridge]:
    """The teacher's response in place of each turn, executed; collective."""
    texts = run.teacher_texts()
    starts = []
    for row in rows:
        owner = _owner(batch, row)
        turn = owner.replayed + int(batch.turn_ids[row])
        own = {"task": run.tasks[owner.task_id], "context": texts[row], "max_turns": 1, "seed": ("bridge",)}
        starts.append(EpisodeStart.at_turn(owner, turn, **own))
    return list(map(Bridge, rows, run.rollout(starts, weights="teacher")))


def _followers(batch: TurnBatch, bridges: Sequence[Bridge], horizon: int) -> Tensor:
    """``[M]`` int64: the bridge whose continuation each recorded turn would be compared with, or -1."""
    owners = torch.full((len(batch.turns),), -1)
    for place, bridge in enumerate(bridges):
        later = batch.turn_ids - batch.turn_ids[bridge.row]
        same = batch.trajectory_ids == batch.trajectory_ids[bridge.row]
        owners[same & (later >= 1) & (later <= horizon)] = place
    return owners


def _continued(run: Run, batch: TurnBatch, bridges: Sequence[Bridge], horizon: int) -> Tensor:
    """``[P]`` share of liked tokens where the student plays on behind each bridge; NaN of a failed one; collective."""
    values = torch.tensor([torch.nan if one.share is None else one.share for one in bridges], dtype=torch.float64)
    going = [place for place, one in enumerate(bridges) if one.share is None]
    starts = []
    for place in going:
        owner, played = _owner(batch, bridges[place].row), bridges[place].played
        task = run.tasks[owner.task_id]
        own = {"task": task, "context": student_text(run, task), "max_turns": horizon, "seed": ("behind bridge",)}
        starts.append(EpisodeStart.at_turn(played, len(played.turns), **own))
    played = run.rollout(starts)
    whole = [(place, one) for place, one in zip(going, played, strict=True) if one.failure is None]
    kept = [(place, one) for place, one in whole if len(one.turns) > one.replayed]
    part = make_batch([one for _, one in kept])
    texts = teacher_texts(run.method, part, run) if kept else []
    prompts = teacher_prompts(run.tokenizer, part, texts, run.collector.chat_template_kwargs, run.suite)
    scores = run.score(prompts, part.responses, weights="teacher")
    if kept:
        shares = preferred_share(
            part.sampled_logprobs, scores.logprobs, part.response_mask, part.trajectory_ids, len(kept)
        )
        values[[place for place, _ in kept]] = shares
    return values


def _learn(batch: TurnBatch, run: Run, kept: Sequence[Bridge], weight: float) -> None:
    """Add the kept responses under the student's prompts; a token weighs `weight` times one of the batch's."""
    turns = [one.played.turns[one.played.replayed] for one in kept]
    responses = [turn.response_ids for turn in turns]
    read = [turn.prompt_ids for turn in turns]
    hidden = run.score(read, responses, weights="teacher", modules=("hidden",)).outputs["hidden"]
    owners = [_owner(batch, one.row) for one in kept]
    slots = [owner.group_id * run.config.num_generations + owner.rollout_index for owner in owners]
    prompts = [batch.turns[one.row].prompt_ids for one in kept]
    counts = run.all_gather([(sum(map(len, responses)), int(batch.response_mask.sum()))])
    own, others = map(sum, zip(*counts, strict=True))
    run.log("bridge_token_share", own / max(own + others, 1), reduce="max")
    term = DivergenceTerm(name="bridge", coef=weight * own / max(others, 1))
    run.add_rows(TrainRows.beside(prompts, responses, slots, {"teacher_hidden": hidden}), (term,))
