"""Methods that play on from recorded turns: VinePPO's values, Tree-GRPO's trees."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from ...envs import Task
from ...rollout.branching import states_of, turn_values
from ...rollout.contexts import context_text
from ...rollout.episodes import EpisodeStart
from ...rollout.options import count
from ...rollout.types import Trajectory
from .method import Method
from .providers import provides
from .registry import register_method

if TYPE_CHECKING:
    from ..batch import TurnBatch
    from .run import Run

T = TypeVar("T")


def of_all(run: Run, work: Callable[[], T]) -> T:
    """What `work` returns; collective: where it raises on one process, all of them raise, and none is waited for.

    Raises:
        RuntimeError: only another process raised.
    """
    made: list[T] = []
    problem: Exception | None = None
    try:
        made.append(work())
    except Exception as error:
        problem = error
    if any(run.all_gather([problem is not None])):
        raise problem or RuntimeError(f"{run.method.name}: another process failed; its own output says why")
    return made[0]


def student_text(run: Run, task: Task) -> str | None:
    """What the student reads beside its prompt of a task."""
    name = run.method.student_context
    return None if name is None else context_text(run.suite, task, name)


@provides("branch_advantages", rules={"continuations": count(1)})
def branch_advantages(batch: TurnBatch, run: Run, *, continuations: int = 4) -> Tensor:
    """``[M]`` float32: measured advantage of every turn, from `continuations` fresh episodes before each.

    Continuations have common random numbers: at the same cost the advantages are less noisy. A turn with a state that
    no continuation finished has none: 0, counted in ``method/turns_without_value``.

    Args:
        batch: the update's rollouts.
        run: plays the continuations.
        continuations: episodes from before and behind every turn.

    Raises:
        RuntimeError: no continuation of any process finished, or another process failed.
    """
    found = of_all(
        run,
        lambda: turn_values(
            batch.trajectories,
            continuations,
            run.rollout,
            tasks=run.tasks,
            context=lambda trajectory, turn: student_text(run, run.tasks[trajectory.task_id]),
            common=True,
        ),
    )
    cost = found.cost
    wanted, failed = map(sum, zip(*run.all_gather([(cost.continuations, cost.failed)]), strict=True))
    if wanted and wanted == failed:
        raise RuntimeError(
            "branch_advantages: continuations must not all fail, got none that finished; is the environment "
            "deterministic given its task and actions?"
        )
    flat = [value for one in found.trajectories for value in one.advantages]
    missing = sum(map(math.isnan, flat))
    run.log("continuations", cost.continuations, reduce="sum")
    run.log("failed_continuations", cost.failed, reduce="sum")
    run.log("continued_turns", cost.environment_steps, reduce="sum")
    run.log("continued_tokens", cost.generated_tokens, reduce="sum")
    run.log("turns_without_value", missing, reduce="sum")
    return torch.tensor([0.0 if math.isnan(value) else value for value in flat], dtype=torch.float32)


def grow(tasks: Sequence[Task], run: Run, *, trees: int) -> list[Trajectory]:
    """``num_generations`` trajectories of every task: `trees` from its start, the others from turns of these.

    Round by round every tree gets one branch, at a turn drawn evenly from those of all its trajectories so far but for
    their first; a tree without such a turn gets another trajectory from the start.
    """
    size = run.config.num_generations
    texts = [student_text(run, task) for task in tasks]
    found: list[list[Trajectory]] = [[] for _ in tasks]
    for number in range(-(-size // trees)):
        starts, owners = [], []
        for group, task in enumerate(tasks):
            for tree in range(min(trees, size - number * trees)):
                index = number * trees + tree
                common = {"task": task, "group_id": group, "rollout_index": index, "context": texts[group]}
                draw = random.Random(f"{run.seed} {run.step} {task.id} {index}")
                nodes = [
                    (one, turn)
                    for one in found[group][tree::trees]
                    if one.failure is None
                    for turn in range(max(one.replayed, 1), len(one.turns))
                ]
                if nodes:
                    one, turn = draw.choice(nodes)
                    starts.append(EpisodeStart.at_turn(one, turn, seed=("tree",), **common))
                else:
                    starts.append(EpisodeStart(seed=("tree",) if number else (), **common))
                owners.append(group)
        for group, trajectory in zip(owners, run.rollout(starts), strict=True):
            found[group].append(trajectory)
    return [trajectory for group in found for trajectory in group]


def tree_signals(batch: TurnBatch, run: Run, *, trees: int) -> dict[str, Tensor]:
    """``tree_ids`` ``[N]`` and ``leaf_returns`` ``[M]``: the mean return of the trajectories that took a turn."""
    taken: dict[object, list[float]] = {}
    keys = []
    for trajectory in batch.trajectories:
        tree = (trajectory.group_id, trajectory.rollout_index % trees)
        states = states_of(trajectory)
        steps = [(tree, state, turn.response_ids) for state, turn in zip(states, trajectory.turns, strict=True)]
        for step in steps:
            taken.setdefault(step, []).append(trajectory.reward)
        keys += steps[trajectory.replayed :]
    means = [math.fsum(taken[key]) / len(taken[key]) for key in keys]
    run.log("shared_turns", sum(len(taken[key]) > 1 for key in keys), reduce="sum")
    ids = [trajectory.rollout_index % trees for trajectory in batch.trajectories]
    return {
        "tree_ids": torch.tensor(ids, dtype=torch.long),
        "leaf_returns": torch.tensor(means, dtype=torch.float32),
    }


@register_method("tree_grpo")
def tree_grpo(*, trees: int = 2) -> Method:
    """GRPO on trees of episodes. Source: Tree-GRPO (arXiv 2509.21240); see `credit.baselines.tree_grpo`.

    ``num_generations`` is the number of leaves of a task, `trees` of them from its start.

    Args:
        trees: episodes of a task that are played from its start; the others branch off them.
    """
    if type(trees) is not int or trees < 1:
        raise ValueError(f"tree_grpo: trees must be a whole number of at least 1, got {trees!r}; write 2")
    return Method(
        "tree_grpo",
        rollouts=functools.partial(grow, trees=trees),
        prepare=functools.partial(tree_signals, trees=trees),
        gives=("tree_ids", "leaf_returns"),
    )
