"""Rollouts: records of episodes, collection with a Hugging Face model, log-prob scoring."""

from .episodes import ContextOf, EpisodeStart
from .io import load_trajectories, save_trajectories
from .types import StopReason, Trajectory, Turn

__all__ = [
    "ContextOf",
    "EpisodeStart",
    "PolicyScorer",
    "PreflightReport",
    "RolloutCollector",
    "SamplingConfig",
    "StopReason",
    "SuiteReport",
    "Trajectory",
    "Turn",
    "check_suite",
    "context_text",
    "informed",
    "load_trajectories",
    "preflight",
    "render_prompt",
    "save_trajectories",
    "score_responses",
    "with_privileged_context",
]

_LAZY = {
    "PolicyScorer": "scoring",
    "PreflightReport": "_preflight",
    "RolloutCollector": "collector",
    "SamplingConfig": "sampling",
    "SuiteReport": "suite_check",
    "check_suite": "suite_check",
    "context_text": "contexts",
    "informed": "contexts",
    "preflight": "_preflight",
    "render_prompt": "prompts",
    "score_responses": "scoring",
    "with_privileged_context": "prompts",
}


def __getattr__(name: str):  # records must load in a notebook without the weight of transformers
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
