"""Monte-Carlo advantages: what every turn was worth, measured by playing on from the states around it.

The ceiling for learning on a real task, as exact advantages are for the tabular one: unbiased, paid for in rollouts.
Where it does not beat GRPO, no credit method can be expected to.

    python examples/train_alfworld.py --import examples/monte_carlo.py --credit monte_carlo
    python examples/train_webshop.py --import examples/monte_carlo.py --credit monte_carlo --set num_envs=256

In every group whose returns differ, the current policy plays on from the states that the trajectories visited, all
continuations of an update side by side. Two states are equal where the task, all actions so far and the prompt are.
Trajectories and continuations then form one tree a group, in which the value of a state is the mean, over all that
were sampled there, of the value of the state they came to next; an end's value is its return. So a continuation speaks
for every state it passes, and between states at which all did the same there is no noise. The advantage of a turn is
what it led to, less what the others at its state came to: unbiased, as no action is in its own baseline.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from turncredit.credit import Credit, CreditInputs, grpo, register_credit, register_signal
from turncredit.envs import Task
from turncredit.rollout import EpisodeStart, Trajectory, context_text
from turncredit.trainers import Method, Run, register_method
from turncredit.trainers.batch import TurnBatch

register_signal("turn_advantages", axes="M", doc="what each turn added to the expected return, environment's units")


@register_credit("monte_carlo_credit", requires=("turn_advantages",))
def monte_carlo_credit(inputs: CreditInputs, *, scale_rewards: bool = True, eps: float = 1e-4) -> Credit:
    """The measured advantage of each turn, over its group's deviation, with the mean square of GRPO's credit.

    One factor a batch does the last: a turn's own advantage is smaller than the whole return's, while the mean of the
    gradient is the same.
    """
    base = grpo(inputs, scale_rewards=scale_rewards, eps=eps)
    rows = inputs.trajectory_ids
    sizes = inputs.rewards.new_ones(inputs.num_trajectories)
    for group in inputs.group_index.unique():
        members = inputs.group_index == group
        if scale_rewards and members.sum() > 1:
            sizes[members] = inputs.rewards[members].std() + eps
    credit = inputs.turn_advantages / sizes[rows]
    wanted = base.advantages.abs().amax(1)  # equal for all tokens of a row
    factor = wanted.norm() / credit.norm() if bool((credit != 0).any()) else 1.0
    credit = (credit * factor).to(inputs.dtype)
    metrics = {"factor": float(factor), "turns_without_advantage": float((credit == 0).double().mean())}
    return Credit(torch.where(inputs.response_mask, credit[:, None], 0.0), torch.ones_like(credit), metrics)


def states(trajectory: Trajectory) -> list[Hashable]:
    """The K + 1 states of a trajectory, by what was done and what was read; a state knows the whole way to it."""
    way: list[Hashable] = []
    state: Hashable = trajectory.group_id
    for turn in trajectory.turns:
        state = hash((state, turn.prompt_ids))
        way.append(state)
        state = hash((state, turn.action))
    return [*way, hash((state, "end"))]


def starts(
    trajectories: Sequence[Trajectory],
    tasks: Mapping[str, Task],
    continuations: int,
    context: Callable[[Task], str | None],
) -> list[EpisodeStart]:
    """Enough continuations from every state of a mixed group that each trajectory has `continuations` others there."""
    visitors = Counter(state for trajectory in trajectories for state in states(trajectory)[:-1])
    found = []
    for trajectory in mixed(trajectories):
        for turn, state in enumerate(states(trajectory)[:-1]):
            for number in range(continuations - (visitors.pop(state, continuations + 1) - 1)):
                task = tasks[trajectory.task_id]
                again = {"task": task, "seed": ("continuation", number), "context": context(task)}
                found.append(EpisodeStart.at_turn(trajectory, turn, **again))
    return found


def mixed(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Those of groups whose returns differ; the others have no gradient."""
    returns: dict[int, set[float]] = defaultdict(set)
    for trajectory in trajectories:
        returns[trajectory.group_id].add(trajectory.reward)
    return [trajectory for trajectory in trajectories if len(returns[trajectory.group_id]) > 1]


def turn_advantages(trajectories: Sequence[Trajectory], played: Iterable[Trajectory]) -> list[list[float]]:
    """The advantage of every turn of `trajectories`, from the tree that they and the continuations `played` make."""
    next_states: dict[Hashable, list[Hashable]] = {}  # of all that were sampled in a state; states in the order of time
    ends: dict[Hashable, list[float]] = defaultdict(list)
    ways = [(states(trajectory), trajectory) for trajectory in (*trajectories, *played)]
    for turn in range(max((len(way) for way, _ in ways), default=0)):
        for way, trajectory in ways:
            if trajectory.replayed <= turn < len(way) - 1:
                next_states.setdefault(way[turn], []).append(way[turn + 1])
    for way, trajectory in ways:
        ends[way[-1]].append(trajectory.reward)
    values = {state: sum(returns) / len(returns) for state, returns in ends.items()}
    for state, following in reversed(next_states.items()):
        values[state] = sum(values[after] for after in following) / len(following)

    def advantage(state: Hashable, after: Hashable) -> float:
        count = len(next_states[state])  # the sampled ones, and one of them is the turn itself
        return 0.0 if count == 1 else round((values[after] - values[state]) * count / (count - 1), 12)  # sums of floats

    return [[advantage(*pair) for pair in itertools.pairwise(way)] for way, _ in ways[: len(trajectories)]]


def prepare(batch: TurnBatch, run: Run, *, continuations: int) -> dict[str, Tensor]:
    """``turn_advantages``; every process plays on from its own trajectories, or raises where none can be played."""
    shown = run.method.student_context
    context = (lambda task: None) if shown is None else functools.partial(context_text, run.suite, name=shown)
    wanted = starts(batch.trajectories, run.tasks, continuations, context)
    played = [trajectory for trajectory in run.rollout(wanted) if trajectory.failure is None]
    if wanted and not played:
        raise RuntimeError("monte_carlo: continuations must not all fail; is the environment deterministic?")
    run.log("continuations", len(wanted), reduce="sum")
    run.log("failed_continuations", len(wanted) - len(played), reduce="sum")
    run.log("continued_turns", sum(len(t.turns) - t.replayed for t in played), reduce="sum")
    values = turn_advantages(batch.trajectories, played)
    return {"turn_advantages": torch.tensor([value for row in values for value in row], dtype=torch.float32)}


@register_method("monte_carlo")
def monte_carlo(*, continuations: int = 2) -> Method:
    """Credit by `continuations` further rollouts, at least, from every state on the way."""
    if type(continuations) is not int or continuations < 1:
        raise ValueError(
            f"monte_carlo: continuations must be a whole number of at least 1, got {continuations!r}; write 2"
        )
    made = functools.partial(prepare, continuations=continuations)
    return Method("monte_carlo_credit", prepare=made, gives=("turn_advantages",))
