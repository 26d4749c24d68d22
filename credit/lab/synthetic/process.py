"""Tabular decision processes: exact values by dynamic programming, and sampled groups of trajectories.

Axes: S states, A actions, H turns at most, N trajectories. All probabilities and values are float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...checks import check_range

_ROUNDING = 1e-9


@dataclass(frozen=True)
class DecisionProcess:
    """A finite-horizon process together with the policy whose trajectories are judged.

    Args:
        name: for tables.
        transitions: ``[S, A, S]`` float64, probability of the next state.
        policy: ``[S, A]`` float64, the student's action probabilities.
        entry_rewards: ``[S]`` float64, reward for entering a state.
        terminal: ``[S]`` bool, states in which an episode is over.
        start: first state.
        horizon: H, the turn limit; an episode still running then ends without further reward.
        decisions: ``[S]`` int64, identity of the decision faced in a state; equal where the same decision is faced.
        phases: ``[S]`` int64, the stretch of the task a state belongs to.
        echo: ``[S]`` float64, nats that privileged context adds to a turn in this state whatever the action: evidence
            that repeats what earlier turns decided.
        hint_bias: ``[S, A]`` float64, nats the teacher prefers an action by without reason: misleading evidence.
        names: S names of the states, or empty.
        observations: ``[S]`` int64 in [0, S), what a state shows, equal for states that look alike; None: itself.
        unique_share: chance in [0, 1] that a visit shows something that never repeats, whatever the state.

    Raises:
        ValueError: a shape is wrong, a row of probabilities does not sum to 1, the start is terminal, an observation
            is no index or the share no probability.
    """

    name: str
    transitions: Tensor
    policy: Tensor
    entry_rewards: Tensor
    terminal: Tensor
    start: int
    horizon: int
    decisions: Tensor
    phases: Tensor
    echo: Tensor
    hint_bias: Tensor
    names: tuple[str, ...] = ()
    observations: Tensor | None = None
    unique_share: float = 0.0

    def __post_init__(self) -> None:
        states, actions = self.policy.shape
        shapes = {"transitions": (states, actions, states), "hint_bias": (states, actions)}
        shapes |= dict.fromkeys(("entry_rewards", "terminal", "decisions", "phases", "echo"), (states,))
        shapes |= {} if self.observations is None else {"observations": (states,)}
        for name, shape in shapes.items():
            if tuple(getattr(self, name).shape) != shape:
                raise ValueError(
                    f"DecisionProcess: {name} must have shape {list(shape)}, got {list(getattr(self, name).shape)}; "
                    "size it like policy [S, A]"
                )
        for name in ("transitions", "policy"):
            value = getattr(self, name)
            if bool((value < 0).any()) or not bool(((value.sum(-1) - 1).abs() < _ROUNDING).all()):
                worst = float(value.sum(-1).flatten()[(value.sum(-1) - 1).abs().argmax()])
                raise ValueError(
                    f"DecisionProcess: {name} must hold probabilities that sum to 1 over its last axis, got a row "
                    f"with sum {worst:.6g} and smallest entry {float(value.min()):.3g}; normalise it"
                )
        if not 0 <= self.start < states or bool(self.terminal[self.start]):
            raise ValueError(
                f"DecisionProcess: start must be a state in [0, {states}) that is not terminal, got {self.start}; "
                "start where there is something to decide"
            )
        if self.horizon < 1:
            raise ValueError(f"DecisionProcess: horizon must be at least 1, got {self.horizon}; allow one turn")
        if self.shown.is_floating_point() or bool((self.shown < 0).any()) or bool((self.shown >= states).any()):
            raise ValueError(
                f"DecisionProcess: observations must be whole numbers in [0, {states}), got {self.shown.tolist()}; "
                "give each state the index of a state it looks like"
            )
        check_range("DecisionProcess", "unique_share", self.unique_share, 0, 1)

    @property
    def shown(self) -> Tensor:
        """``[S]`` int64, the observation of each state."""
        return torch.arange(self.policy.shape[0]) if self.observations is None else self.observations


class ExactValues(NamedTuple):
    """Values under the process's policy; index t is the number of turns already taken.

    Args:
        state: ``[H + 1, S]`` float64, V_t(s): expected reward still to come; 0 at t = H and in terminal states.
        action: ``[H, S, A]`` float64, Q_t(s, a).
    """

    state: Tensor
    action: Tensor


@dataclass(frozen=True)
class Episodes:
    """Sampled trajectories of one process, padded to H turns.

    Args:
        process: where they come from.
        states: ``[N, H + 1]`` int64, the state before each turn and after the last.
        actions: ``[N, H]`` int64, 0 after the end.
        alive: ``[N, H]`` bool, whether the turn was taken; True from 0 to K_i - 1.
        rewards: ``[N, H]`` float64, reward of each turn.
        group_ids: ``[N]`` int64, ascending.
    """

    process: DecisionProcess
    states: Tensor
    actions: Tensor
    alive: Tensor
    rewards: Tensor
    group_ids: Tensor

    @property
    def returns(self) -> Tensor:
        """``[N]`` float64, the return of each trajectory."""
        return self.rewards.sum(-1)

    @property
    def turns(self) -> tuple[Tensor, Tensor]:
        """Trajectory ``[M]`` and turn ``[M]`` of each turn taken, ordered by (trajectory, turn)."""
        trajectory, turn = self.alive.nonzero(as_tuple=True)
        return trajectory, turn


class ExactCredit(NamedTuple):
    """What each turn was worth, exactly; per trajectory ``sum(advantages + luck) = return - V_0(start)``.

    Args:
        advantages: ``[M]`` float64, Q_t(s, a) - V_t(s): what the choice of this turn changed.
        luck: ``[M]`` float64, r + V_{t+1}(s') - Q_t(s, a): what the environment's dice changed.
    """

    advantages: Tensor
    luck: Tensor


def exact_values(process: DecisionProcess) -> ExactValues:
    """Evaluate the policy by backward induction.

    ``Q_t(s, a) = sum_s' P(s'|s, a) (r(s') + V_{t+1}(s'))``, ``V_t(s) = sum_a pi(a|s) Q_t(s, a)``, ``V_H = 0``.
    """
    states, actions = process.policy.shape
    state = torch.zeros(process.horizon + 1, states, dtype=torch.float64)
    action = torch.zeros(process.horizon, states, actions, dtype=torch.float64)
    running = (~process.terminal).double()
    for turn in reversed(range(process.horizon)):
        action[turn] = (process.transitions @ (process.entry_rewards + state[turn + 1])) * running[:, None]
        state[turn] = (process.policy * action[turn]).sum(-1)
    return ExactValues(state, action)


def sample_episodes(process: DecisionProcess, *, groups: int, group_size: int, generator: torch.Generator) -> Episodes:
    """Sample ``groups * group_size`` trajectories under the process's policy, all at once.

    Args:
        process: the process.
        groups: P, number of groups (tasks); every group is the same process.
        group_size: G, rollouts of a group.
        generator: source of randomness; the same state gives the same episodes.

    Raises:
        ValueError: groups or group_size is below 1.
    """
    for name, value in (("groups", groups), ("group_size", group_size)):
        if value < 1:
            raise ValueError(f"sample_episodes: {name} must be at least 1, got {value}; ask for some")
    count, horizon = groups * group_size, process.horizon
    size, moves = process.policy.shape
    terminal, choice = process.terminal, process.policy.cumsum(-1)
    stay = torch.eye(size, dtype=torch.float64)[:, None]
    outcome = torch.where(terminal[:, None, None], stay, process.transitions).cumsum(-1).flatten(0, 1)
    uniform = torch.rand(horizon, 2, count, 1, generator=generator, dtype=torch.float64)
    visited = torch.full((horizon + 1, count), process.start)
    chosen = torch.zeros(horizon, count, dtype=torch.long)
    for turn in range(horizon):
        state = visited[turn]
        if bool(terminal[state].all()):
            visited[turn + 1 :] = state
            break
        chosen[turn] = _draw(choice[state], uniform[turn, 0])
        visited[turn + 1] = _draw(outcome[state * moves + chosen[turn]], uniform[turn, 1])
    states = visited.T.contiguous()
    alive = ~terminal[states[:, :-1]]
    actions = torch.where(alive, chosen.T, 0)
    rewards = torch.where(alive, process.entry_rewards[states[:, 1:]], 0.0)
    return Episodes(process, states, actions, alive, rewards, torch.arange(groups).repeat_interleave(group_size))


def exact_credit(episodes: Episodes, values: ExactValues | None = None) -> ExactCredit:
    """Exact advantage and luck of every turn, in the order of ``episodes.turns``.

    Args:
        episodes: sampled trajectories.
        values: of their process; computed if None.
    """
    values = exact_values(episodes.process) if values is None else values
    trajectory, turn = episodes.turns
    state, following = episodes.states[trajectory, turn], episodes.states[trajectory, turn + 1]
    action = values.action[turn, state, episodes.actions[trajectory, turn]]
    after = episodes.rewards[trajectory, turn] + values.state[turn + 1, following]
    return ExactCredit(action - values.state[turn, state], after - action)


def state_visits(process: DecisionProcess) -> Tensor:
    """``[H, S]`` float64, chance of taking turn t in state s under the policy; 0 in terminal states."""
    running = (~process.terminal).double()
    visits = torch.zeros(process.horizon, process.policy.shape[0], dtype=torch.float64)
    here = torch.zeros(process.policy.shape[0], dtype=torch.float64)
    here[process.start] = 1.0
    for turn in range(process.horizon):
        visits[turn] = here * running
        here = torch.einsum("s,sa,sab->b", visits[turn], process.policy, process.transitions)
    return visits


def exact_gradient(process: DecisionProcess, values: ExactValues | None = None) -> Tensor:
    """``[S, A]`` float64, gradient of V_0(start) in the logits of a tabular softmax policy.

    ``sum_t d_t(s) pi(a|s) (Q_t(s, a) - V_t(s))``, with d_t the :func:`state_visits`.

    Args:
        process: with its policy.
        values: its values; computed if None.
    """
    values = exact_values(process) if values is None else values
    advantages = values.action - values.state[:-1, :, None]
    return process.policy * torch.einsum("ts,tsa->sa", state_visits(process), advantages)


def _draw(cumulative: Tensor, uniform: Tensor) -> Tensor:
    """One index per row of ``[N, C]`` cumulative probabilities, by ``[N, 1]`` numbers in [0, 1).

    An entry of probability 0 is never drawn.
    """
    return (uniform * cumulative[:, -1:] >= cumulative).sum(-1).clamp(max=cumulative.shape[1] - 1)
