"""Does the credit teach? A tabular policy trained with a method's turn credit; its exact success after every update."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..checks import check_choice, suggest
from ..registry import CreditMethod, get_credit, list_credits
from .fidelity import turn_credit
from .synthetic import DecisionProcess, SyntheticBatch, Teacher, exact_values, synthetic_batch

EXACT = "exact"
_LEAST_NORM = 1e-6  # a gradient of rounding errors is not stretched to a whole step
_SEEDS = 1 << 32


def learn(
    process: DecisionProcess,
    method: CreditMethod | str,
    teacher: Teacher | None = None,
    *,
    seed: int,
    learning_rate: float,
    updates: int = 40,
    groups: int = 2,
    group_size: int = 8,
    features: str = "shared",
    step: str = "norm",
) -> list[float]:
    """Train a softmax policy by policy gradient with a method's credit; its chance of success at each update.

    ``pi(a|s) = softmax(phi(s) W)_a`` from W = 0, the uniform policy: the process's own is not used. An update samples
    a batch under the current policy, scores it under the teacher of *that* policy and adds :func:`policy_gradient` to
    W. Success is exact (dynamic programming), not sampled. Equal seeds mean equal features, and equal random numbers
    in every update, whatever the method: differences between methods are paired.

    Args:
        process: where to act; success pays 1.
        method: a method, the name of a registered one, or ``"exact"``: the exact advantages as credit, the ceiling.
        teacher: whose log-probs a method reads; the calibrated one if None.
        seed: of features and all sampling.
        learning_rate: length of an update in W (``step="norm"``), or what the gradient is multiplied by.
        updates: number of updates.
        groups: groups of an update's batch.
        group_size: rollouts of a group.
        features: phi. ``"shared"``: random unit vectors, half as many entries as states, so that what is learned in
            one state changes others; ``"tabular"``: one entry a state.
        step: ``"norm"``: every update has the same length, as clipping or Adam make it; ``"sgd"``: plain ascent.

    Returns:
        ``updates + 1`` chances of success in [0, 1], the first before any update.

    Raises:
        TypeError: process, method or teacher is of another kind.
        ValueError: a value is out of range, the name is unknown, or the method needs a signal that the synthetic batch
            lacks.

    >>> from turncredit.credit.lab.synthetic import key_door
    >>> curve = learn(key_door(), "exact", seed=0, learning_rate=1.0, updates=5)
    >>> len(curve), curve[-1] > curve[0]
    (6, True)
    """
    chosen = _method(method)
    _check(process, teacher, learning_rate, seed=seed, updates=updates, groups=groups, group_size=group_size)
    check_choice("learn", "features", features, ("shared", "tabular"))
    check_choice("learn", "step", step, ("norm", "sgd"))
    source = torch.Generator().manual_seed(seed)
    draws = torch.randint(_SEEDS, (updates,), generator=source).tolist()
    states, actions = process.policy.shape
    phi = torch.eye(states, dtype=torch.float64)
    if features == "shared":
        phi = normalize(torch.randn(states, max(1, states // 2), generator=source, dtype=torch.float64), dim=-1)
    weights = torch.zeros(phi.shape[1], actions, dtype=torch.float64)
    successes = []
    for update, draw in enumerate(draws):
        process = replace(process, policy=(phi @ weights).softmax(-1))
        generator = torch.Generator().manual_seed(draw)
        batch = synthetic_batch(process, teacher, groups=groups, group_size=group_size, generator=generator)
        successes.append(float(batch.values.state[0, process.start]))
        gradient = policy_gradient(_credit(chosen, batch, update), batch, phi)
        length = max(float(gradient.norm()), _LEAST_NORM) if step == "norm" else 1.0
        weights = weights + learning_rate / length * gradient
    last = exact_values(replace(process, policy=(phi @ weights).softmax(-1)))
    return [*successes, float(last.state[0, process.start])]


def policy_gradient(credit: Tensor, batch: SyntheticBatch, features: Tensor | None = None) -> Tensor:
    """``[F, A]`` float64, ``1/N sum over turns of c phi(s) (1[a] - pi(.|s))``: ascent of a softmax policy.

    Args:
        credit: ``[M]`` float, credit c of each turn.
        batch: the turns, sampled under the policy of ``batch.episodes.process``.
        features: ``[S, F]`` float64, phi; one entry a state if None.

    Raises:
        ValueError: a shape differs, or credit is not finite.
    """
    where, episodes = "policy_gradient", batch.episodes
    trajectory, turn = episodes.turns
    policy = episodes.process.policy
    if credit.shape != trajectory.shape or not bool(credit.isfinite().all()):
        raise ValueError(
            f"{where}: credit must be [M] = {list(trajectory.shape)} finite values, got {list(credit.shape)} with "
            f"{int((~credit.isfinite()).sum())} that are not; give one per turn"
        )
    if features is not None and (features.ndim != 2 or len(features) != len(policy)):
        raise ValueError(
            f"{where}: features must be [S, F] with S = {len(policy)}, got {list(features.shape)}; one row a state"
        )
    state = episodes.states[trajectory, turn]
    value = credit.double() / len(episodes.alive)
    score = -policy[state] * value[:, None]
    score.scatter_add_(1, episodes.actions[trajectory, turn][:, None], value[:, None])
    by_state = torch.zeros_like(policy).index_add_(0, state, score)
    return by_state if features is None else features.T @ by_state


def _credit(method: CreditMethod | None, batch: SyntheticBatch, update: int) -> Tensor:
    if method is None:
        return batch.advantages
    inputs = batch.inputs_for(method)
    return turn_credit(method(inputs, step=update), inputs)


def _method(method: Any) -> CreditMethod | None:
    """The method; None for the exact advantages."""
    if isinstance(method, CreditMethod) or method == EXACT:
        return method if isinstance(method, CreditMethod) else None
    if not isinstance(method, str):
        raise TypeError(
            f"learn: method must be a CreditMethod, a name or 'exact', got {type(method).__name__}; "
            "pass get_credit(name, **options)"
        )
    known = [EXACT, *list_credits()]
    if method not in known:
        raise ValueError(
            f"learn: method must be one of {', '.join(known)}, got {method!r}; "
            + suggest(method, known, "register it with register_credit")
        )
    return get_credit(method)


def _check(process: Any, teacher: Any, learning_rate: Any, **whole: Any) -> None:
    if not isinstance(process, DecisionProcess):
        raise TypeError(
            f"learn: process must be a DecisionProcess, got {type(process).__name__}; call one, such as key_door()"
        )
    if not (teacher is None or isinstance(teacher, Teacher)):
        raise TypeError(
            f"learn: teacher must be a Teacher or None, got {type(teacher).__name__}; pick one, TEACHERS['noisy']"
        )
    number = isinstance(learning_rate, (int, float)) and not isinstance(learning_rate, bool)
    if not number or not 0 < learning_rate < math.inf:
        raise ValueError(f"learn: learning_rate must be a positive number, got {learning_rate!r}; try 1.0")
    least = {"seed": 0, "updates": 1, "groups": 1, "group_size": 2}
    for name, value in whole.items():
        if isinstance(value, bool) or not isinstance(value, int) or not least[name] <= value < _SEEDS:
            raise ValueError(
                f"learn: {name} must be a whole number from {least[name]} to {_SEEDS - 1}, got {value!r}; "
                f"try {least[name] + 1}"
            )
