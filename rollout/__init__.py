"""Rollouts: records of episodes, collection with a Hugging Face model, log-prob scoring, traces from anywhere."""

from typing import TYPE_CHECKING, Any

from .episodes import ContextOf, EpisodeStart
from .io import load_trajectories, save_trajectories
from .types import StopReason, Trajectory, Turn

if TYPE_CHECKING:  # what _LAZY loads when it is asked for
    from ._preflight import PreflightReport, preflight
    from .collector import RolloutCollector
    from .contexts import context_text, informed
    from .prompts import render_prompt, with_privileged_context
    from .sampling import SamplingConfig
    from .scoring import PolicyScorer, score_responses
    from .suite_check import SuiteReport, check_suite
    from .traces import Step, Trace, list_trace_formats, load_traces, register_trace_format, trajectories_from
    from .traces.publish import save_dataset
    from .traces.score import score_traces, tokenize_traces
    from .traces.tables import to_dataset, to_pandas

__all__ = [
    "ContextOf",
    "EpisodeStart",
    "PolicyScorer",
    "PreflightReport",
    "RolloutCollector",
    "SamplingConfig",
    "Step",
    "StopReason",
    "SuiteReport",
    "Trace",
    "Trajectory",
    "Turn",
    "check_suite",
    "context_text",
    "informed",
    "list_trace_formats",
    "load_traces",
    "load_trajectories",
    "preflight",
    "register_trace_format",
    "render_prompt",
    "save_dataset",
    "save_trajectories",
    "score_responses",
    "score_traces",
    "to_dataset",
    "to_pandas",
    "tokenize_traces",
    "trajectories_from",
    "with_privileged_context",
]

_LAZY = {
    "PolicyScorer": "scoring",
    "PreflightReport": "_preflight",
    "RolloutCollector": "collector",
    "SamplingConfig": "sampling",
    "Step": "traces",
    "SuiteReport": "suite_check",
    "Trace": "traces",
    "check_suite": "suite_check",
    "context_text": "contexts",
    "informed": "contexts",
    "list_trace_formats": "traces",
    "load_traces": "traces",
    "preflight": "_preflight",
    "register_trace_format": "traces",
    "render_prompt": "prompts",
    "save_dataset": "traces.publish",
    "score_responses": "scoring",
    "score_traces": "traces.score",
    "to_dataset": "traces.tables",
    "to_pandas": "traces.tables",
    "tokenize_traces": "traces.score",
    "trajectories_from": "traces",
    "with_privileged_context": "prompts",
}


def __getattr__(name: str) -> Any:  # records must load in a notebook without the weight of transformers
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
