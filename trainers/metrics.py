"""Numbers about a set of trajectories, each with its formula in docs/metrics.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..rollout.types import StopReason, Trajectory


def rollout_metrics(trajectories: Sequence[Trajectory], prefix: str = "rollout") -> dict[str, float]:
    """Means over trajectories (success, reward, turns), over turns (validity) and over tokens.

    Args:
        trajectories: any number; failed ones are counted in ``failed`` and left out of everything else.
        prefix: put before every name, with a slash.

    Returns:
        The metrics; only ``failed`` and ``episodes`` where no trajectory is usable.
    """
    good = [trajectory for trajectory in trajectories if trajectory.failure is None]
    metrics = {"episodes": float(len(trajectories)), "failed": float(len(trajectories) - len(good))}
    turns = [turn for trajectory in good for turn in trajectory.turns]
    if turns:
        metrics |= {
            "success": float(np.mean([t.success for t in good])),
            "reward": float(np.mean([t.reward for t in good])),
            "turns": float(np.mean([len(t.turns) for t in good])),
            "invalid_turns": float(np.mean([not turn.valid for turn in turns])),
            "response_tokens": float(np.mean([len(turn.response_ids) for turn in turns])),
            "prompt_tokens": float(np.mean([len(turn.prompt_ids) for turn in turns])),
            "truncated_turns": float(np.mean([turn.stop_reason is StopReason.LENGTH for turn in turns])),
            "prompt_budget": float(np.mean([t.stop_reason is StopReason.PROMPT_BUDGET for t in good])),
        }
        for task_type in sorted({t.task_type for t in good}):
            metrics[f"success/{task_type}"] = float(np.mean([t.success for t in good if t.task_type == task_type]))
    for name in sorted({name for t in good for name in t.info}):
        metrics[f"info/{name}"] = float(np.mean([t.info[name] for t in good if name in t.info]))
    return {f"{prefix}/{name}": value for name, value in metrics.items()}
