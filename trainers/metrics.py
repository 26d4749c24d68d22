"""Numbers about a set of trajectories or of optimiser steps, each with its formula in docs/metrics.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..rollout.types import StopReason, Trajectory

_BY_STEP = ("loss", "grad_norm", "learning_rate")


class TurnSummary(NamedTuple):
    """What the metrics read of a turn; lengths in tokens."""

    valid: bool
    truncated: bool
    response_tokens: int
    prompt_tokens: int


class TrajectorySummary(NamedTuple):
    """What the metrics read of a trajectory: some bytes, where the trajectory itself holds every token and prompt."""

    task_type: str
    success: float
    reward: float
    failure: str | None
    over_prompt_budget: bool
    info: Mapping[str, float]
    turns: tuple[TurnSummary, ...]


def summarise(trajectory: Trajectory) -> TrajectorySummary:
    """The summary that processes exchange."""
    return TrajectorySummary(
        trajectory.task_type,
        trajectory.success,
        trajectory.reward,
        trajectory.failure,
        trajectory.stop_reason is StopReason.PROMPT_BUDGET,
        dict(trajectory.info),
        tuple(
            TurnSummary(t.valid, t.stop_reason is StopReason.LENGTH, len(t.response_ids), len(t.prompt_ids))
            for t in trajectory.turns
        ),
    )


def rollout_metrics(
    trajectories: Sequence[Trajectory | TrajectorySummary], prefix: str = "rollout"
) -> dict[str, float]:
    """Means over trajectories (success, reward, turns), over turns (validity) and over tokens.

    Args:
        trajectories: whole or summarised; failed ones are counted in ``failed`` and left out of everything else.
        prefix: put before every name, with a slash.

    Returns:
        The metrics; only ``failed`` and ``episodes`` where no trajectory is usable.
    """
    summaries = [summarise(t) if isinstance(t, Trajectory) else t for t in trajectories]
    good = [trajectory for trajectory in summaries if trajectory.failure is None]
    metrics = {"episodes": float(len(trajectories)), "failed": float(len(trajectories) - len(good))}
    turns = [turn for trajectory in good for turn in trajectory.turns]
    if turns:
        metrics |= {
            "success": float(np.mean([t.success for t in good])),
            "reward": float(np.mean([t.reward for t in good])),
            "turns": float(np.mean([len(t.turns) for t in good])),
            "invalid_turns": float(np.mean([not turn.valid for turn in turns])),
            "response_tokens": float(np.mean([turn.response_tokens for turn in turns])),
            "prompt_tokens": float(np.mean([turn.prompt_tokens for turn in turns])),
            "truncated_turns": float(np.mean([turn.truncated for turn in turns])),
            "prompt_budget": float(np.mean([t.over_prompt_budget for t in good])),
        }
        for task_type in sorted({t.task_type for t in good}):
            metrics[f"success/{task_type}"] = float(np.mean([t.success for t in good if t.task_type == task_type]))
    for name in sorted({name for t in good for name in t.info}):
        metrics[f"info/{name}"] = float(np.mean([t.info[name] for t in good if name in t.info]))
    return {f"{prefix}/{name}": value for name, value in metrics.items()}


def join_steps(steps: Sequence[Mapping[str, float]], auxiliary: Sequence[str] = ()) -> dict[str, float]:
    """Metrics of an update from those of its optimiser steps, without their denominators.

    Token means weigh a step by its tokens, ``X_loss`` by its ``X_denominator``; ``num_tokens`` is a sum; ``loss``,
    ``grad_norm`` and ``learning_rate`` are means over steps. So the terms are those of all rows together.

    Args:
        steps: what `.optimization.accumulate_gradients` returned, and what was added to it.
        auxiliary: the terms whose losses add up to ``auxiliary_loss``.
    """
    joined = {}
    names = sorted({name for step in steps for name in step})
    for name in (name for name in names if not name.endswith("_denominator")):
        own = name.removesuffix("_loss") + "_denominator"
        weight = own if name.endswith("_loss") and own in names else "num_tokens"
        values = [(step[name], 1.0 if name in _BY_STEP else step[weight]) for step in steps if name in step]
        total = math.fsum(w for _, w in values)
        joined[name] = math.fsum(v * w for v, w in values) / total if total else 0.0
    if steps:
        joined["num_tokens"] = math.fsum(step["num_tokens"] for step in steps)
    if "auxiliary_loss" in joined and auxiliary:
        joined["auxiliary_loss"] = math.fsum(joined.get(f"{name}_loss", 0.0) for name in auxiliary)
    return joined
