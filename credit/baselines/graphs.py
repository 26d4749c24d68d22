"""What the graph of a group's states says: the union of its trajectories, a node a state, an edge a turn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..checks import check_choice, check_range
from ..groups import faded, group_metrics, group_relative_advantages
from ..inputs import Credit, CreditInputs
from ..metrics import Mean
from ..states import following, turns_left
from ..tokens import mean_factor, spread

NORMALIZATIONS = ("mean_std", "mean")


def goal_distances(inputs: CreditInputs, states: Tensor) -> Tensor:
    """``[M]`` float64: turns from what each turn led to, to a success, on the shortest way that any trajectory of the
    group took; 0 behind the last turn of a success, inf where no way is known.

    Args:
        inputs: the batch; a trajectory succeeds where ``successes`` is above 1/2.
        states: ``[M]`` int64 in [0, S), the node of each turn, see :func:`~turncredit.credit.states.state_ids`.
    """
    ends = turns_left(inputs) == 0
    won = torch.where(inputs.successes[inputs.trajectory_ids] > 0.5, 0.0, torch.inf).double()
    return _fixpoint(inputs, states, torch.where(ends, won, torch.inf), lambda behind: behind + 1, "amin")


def best_values(inputs: CreditInputs, states: Tensor, rewards: Tensor, discount: float) -> Tensor:
    """``[M]`` what the best known way earns from each turn on: ``q = max(r, discount * V(s'))``, ``V(s) = max q``.

    Args:
        inputs: the batch.
        states: ``[M]`` int64, the node of each turn.
        rewards: ``[M]`` of each turn.
        discount: in (0, 1].
    """
    return _fixpoint(inputs, states, rewards, lambda behind: discount * behind, "amax")


def _fixpoint(inputs: CreditInputs, states: Tensor, own: Tensor, step: Callable[[Tensor], Tensor], best: str) -> Tensor:
    """Values of edges: the better one of their own and of what `step` makes of the best edge of the node they lead to.

    A round is one scatter over M; there are as many as the longest best way has edges, at most one a node.
    """
    worst = torch.inf if best == "amin" else -torch.inf
    better = torch.minimum if best == "amin" else torch.maximum
    count, edges = int(states.max()) + 1, own
    for _ in range(count + 1):
        nodes = own.new_full((count,), worst).scatter_reduce_(0, states, edges, best)
        new = better(own, step(following(inputs, nodes[states], worst)))
        if torch.equal(new, edges):
            break
        edges = new
    return edges


def episode_advantages(inputs: CreditInputs, normalization: str, eps: float, outcome_discount: float) -> Tensor:
    """``[N]`` the advantage of whole trajectories that step advantages are added to."""
    outcomes = faded(inputs.rewards, inputs.turn_counts, outcome_discount)
    scale = normalization == "mean_std"
    return group_relative_advantages(outcomes, inputs.group_ids, scale_rewards=scale, eps=eps).to(inputs.dtype)


def check_options(where: str, step_weight: float, discount: float, normalization: str) -> None:
    """Raise ValueError unless the options that these methods share are in range."""
    check_range(where, "step_weight", step_weight, 0, float("inf"), ")")
    check_range(where, "discount", discount, 0, 1, "(")
    check_choice(where, "normalization", normalization, NORMALIZATIONS)


def with_steps(
    inputs: CreditInputs,
    episode: Tensor,
    steps: Tensor,
    states: Tensor,
    details: dict[str, Tensor],
    episode_weight: float = 1.0,
) -> Credit:
    """The credit ``episode_weight A_i + S_k`` with the metrics and details that these methods share.

    Args:
        inputs: the batch.
        episode: ``[N]`` A_i.
        steps: ``[M]`` S_k, weighted.
        states: ``[M]`` int64, for the share of turns that have company.
        details: further ones.
        episode_weight: of A_i.
    """
    rows, steps = episode[inputs.trajectory_ids], steps.to(inputs.dtype)
    turns = rows * episode_weight + steps
    shared = torch.bincount(states)[states] > 1
    metrics = {
        "anchored_turn_share": Mean(float(shared.double().mean()), shared.numel()),
        "mean_abs_step_advantage": Mean(float(steps.abs().mean()), steps.numel()),
        **group_metrics(inputs, episode),
    }
    details = {"step_advantages": steps, **{name: value.to(inputs.dtype) for name, value in details.items()}}
    return Credit(spread(turns, inputs.response_mask), mean_factor(turns, rows), metrics, details)
