"""Branches of real episodes: play on from any recorded turn, and so measure what every turn was worth."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..envs import Task
from .episodes import EpisodeStart
from .types import Trajectory

Play = Callable[[list[EpisodeStart]], Sequence[Trajectory]]
"""Plays starts, one trajectory each in order: ``collector.collect_starts``, or a method's ``run.rollout``."""
ContextAt = Callable[[Trajectory, int], str | None]
"""Trajectory and turn -> what the policy reads beside its prompt from there on, or None."""


@dataclass(frozen=True)
class TurnValues:
    """What the turns of one trajectory were worth, in the environment's units of return.

    Args:
        task_id, rollout_index: the trajectory's.
        turns: numbers of its K own turns (replayed ones are left out).
        values: K + 1, V(s_k): mean return from before each turn on; the last is the end's, exactly 0.
        value_errors: K + 1, their standard errors: sample deviation over the root of how many finished.
        advantages: K, ``r_k + V(s_{k+1}) - V(s_k)``.
        advantage_errors: K, the root of the sum of both squared errors, as continuations of different states are
            independent; where they have common random numbers, the error of the mean of their differences.
        halves: two times K, advantages by every second continuation, and by the others.
        finished: K, continuations behind each value.

    A value without a finished continuation, and an error or half of too few, is NaN.
    """

    task_id: str
    rollout_index: int
    turns: tuple[int, ...]
    values: tuple[float, ...]
    value_errors: tuple[float, ...]
    advantages: tuple[float, ...]
    advantage_errors: tuple[float, ...]
    halves: tuple[tuple[float, ...], tuple[float, ...]]
    finished: tuple[int, ...]


@dataclass(frozen=True)
class BranchCost:
    """What was paid: continuations, those that failed, turns played and replayed, tokens sampled, states continued."""

    states: int
    continuations: int
    failed: int
    environment_steps: int
    replayed_steps: int
    generated_tokens: int


@dataclass(frozen=True)
class BranchValues:
    """`TurnValues` of every trajectory, in order, and their cost."""

    trajectories: tuple[TurnValues, ...]
    cost: BranchCost

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write JSON lines, the cost and the number of trajectories first, one a line behind it; atomically."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        head = {**asdict(self.cost), "trajectories": len(self.trajectories)}
        lines = [json.dumps(record) for record in (head, *map(asdict, self.trajectories))]
        try:
            part.write_text("\n".join(lines) + "\n", encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> BranchValues:
        """What `save` wrote.

        Raises:
            ValueError: it is no such file, or cut short.
        """
        try:
            first, *others = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
            if first.pop("trajectories", None) != len(others):
                raise ValueError("it does not hold the trajectories that it announces")
            rows = [{name: _tuples(value) for name, value in other.items()} for other in others]
            return cls(tuple(TurnValues(**row) for row in rows), BranchCost(**first))
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"BranchValues.load: path must name values that save wrote, got {path} ({error}); measure them again"
            ) from None


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def turn_values(
    trajectories: Sequence[Trajectory],
    continuations: int,
    play: Play,
    *,
    tasks: Mapping[str, Task] | None = None,
    context: ContextAt | None = None,
    max_turns: int | None = None,
    seed: tuple[int | str, ...] = ("branch",),
    common: bool = False,
) -> BranchValues:
    """Monte-Carlo values and advantages of every turn, by playing on from before each of them.

    A state is restored by replay: reset, then the recorded actions, every observation compared with the record. All
    continuations are played side by side, in one call of `play`. Turns before which the same was done and read on the
    same task, in the same context, are one state and share its continuations, so that errors of siblings are not
    independent of each other.

    Source: VinePPO (arXiv 2410.01679).

    Args:
        trajectories: records with their turns; none may be a failed one.
        continuations: M, fresh episodes from every state; the recorded rest is not one of them.
        play: plays starts with the policy whose values are wanted.
        tasks: by id, where the suite needs more of a task than its id and type.
        context: what the policy reads from each state on; None for nothing.
        max_turns: turns of a continuation, at most; its return is then what it earned so far.
        seed: parts of the seeds of all continuations; another seed gives other ones.
        common: the n-th continuations of all turns of a trajectory draw the same random numbers where they come to the
            same turn. Values keep their errors, but neighbouring ones err alike, so advantages err less.

    Returns:
        `BranchValues`. A continuation that failed is left out and counted, never scored 0.

    Raises:
        ValueError: `continuations` is not positive, a trajectory failed, or `play` returned more or fewer than asked.
    """
    if type(continuations) is not int or continuations < 1:
        raise ValueError(
            f"turn_values: continuations must be a whole number of at least 1, got {continuations!r}; write 8"
        )
    if failed := [trajectory.task_id for trajectory in trajectories if trajectory.failure is not None]:
        raise ValueError(f"turn_values: trajectories must not be failed ones, got {failed[:3]}; leave them out")
    first: dict[Any, EpisodeStart] = {}
    keys: list[list[Any]] = []
    for trajectory in trajectories:
        changes: dict[str, Any] = {"max_turns": max_turns}
        changes |= {} if tasks is None else {"task": tasks[trajectory.task_id]}
        keys.append([])
        for turn, state in list(enumerate(states_of(trajectory)))[trajectory.replayed :]:
            text = None if context is None else context(trajectory, turn)
            keys[-1].append((state, text))
            if keys[-1][-1] not in first:
                first[keys[-1][-1]] = EpisodeStart.at_turn(trajectory, turn, context=text, **changes)
    starts = [
        replace(start, seed=(*seed, *(() if common else (len(start.prefix),)), number))
        for start in first.values()
        for number in range(continuations)
    ]
    played = list(play(starts))
    if len(played) != len(starts):
        raise ValueError(
            f"turn_values: play must return one trajectory per start, {len(starts)}, got {len(played)}; return failed "
            "ones too"
        )
    returns: dict[Any, list[float | None]] = {}
    for place, (key, start) in enumerate(first.items()):
        before = sum(turn.reward for turn in start.prefix)
        some = played[place * continuations : (place + 1) * continuations]
        returns[key] = [None if one.failure is not None else one.reward - before for one in some]
    cost = BranchCost(
        states=len(first),
        continuations=len(starts),
        failed=sum(one.failure is not None for one in played),
        environment_steps=sum(len(one.turns) - one.replayed for one in played),
        replayed_steps=sum(one.replayed for one in played),
        generated_tokens=sum(len(turn.response_ids) for one in played for turn in one.turns[one.replayed :]),
    )
    found = [
        _values_of(trajectory, [returns[key] for key in own], common)
        for trajectory, own in zip(trajectories, keys, strict=True)
    ]
    return BranchValues(tuple(found), cost)


def states_of(trajectory: Trajectory) -> list[Any]:
    """A key for what stands before each turn: the task, all that was done so far, and what is read."""
    found, done = [], ()
    for turn in trajectory.turns:
        found.append((trajectory.task_id, done, turn.prompt_ids or turn.observation))
        done = (*done, turn.action)
    return found


def _values_of(trajectory: Trajectory, some: Sequence[list[float | None]], common: bool) -> TurnValues:
    """From the returns behind each of its own turns, None where a continuation failed."""
    own = range(trajectory.replayed, len(trajectory.turns))
    rewards = [trajectory.turns[turn].reward for turn in own]
    whole, *halves = [
        [*(_mean([value for value in values[part] if value is not None]) for values in some), (0.0, 0.0)]
        for part in (slice(None), slice(0, None, 2), slice(1, None, 2))
    ]
    values, errors = [mean for mean, _ in whole], [error for _, error in whole]
    return TurnValues(
        task_id=trajectory.task_id,
        rollout_index=trajectory.rollout_index,
        turns=tuple(own),
        values=tuple(values),
        value_errors=tuple(errors),
        advantages=_advantages(rewards, values),
        advantage_errors=_paired_errors(some)
        if common
        else tuple(math.hypot(one, other) for one, other in itertools.pairwise(errors)),
        halves=(_advantages(rewards, [mean for mean, _ in halves[0]]), _advantages(rewards, [m for m, _ in halves[1]])),
        finished=tuple(sum(value is not None for value in values) for values in some),
    )


def _advantages(rewards: Sequence[float], values: Sequence[float]) -> tuple[float, ...]:
    return tuple(reward + after - before for reward, before, after in zip(rewards, values, values[1:], strict=False))


def _paired_errors(some: Sequence[list[float | None]]) -> tuple[float, ...]:
    """Errors of the means of what the n-th continuations behind a turn have over the n-th ones before it."""
    zeros: list[float | None] = [0.0] * len(some[0]) if some else []
    pairs = [list(zip(before, after, strict=True)) for before, after in itertools.pairwise([*some, zeros])]
    both = [[after - before for before, after in pair if before is not None and after is not None] for pair in pairs]
    return tuple(_mean(differences)[1] for differences in both)


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error; NaN where there are too few."""
    if not values:
        return math.nan, math.nan
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
