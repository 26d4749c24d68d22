"""Traces from anywhere: files of other agents, benchmarks, trainers and services as trajectories; docs/traces.md."""

from . import benchmarks, chats, dumps, react, services
from .load import Traces, load_traces, trajectories_from
from .records import Skip, Step, Trace, TraceError
from .registry import TraceFormat, list_trace_formats, register_trace_format

__all__ = [
    "Skip",
    "Step",
    "Trace",
    "TraceError",
    "TraceFormat",
    "Traces",
    "list_trace_formats",
    "load_traces",
    "register_trace_format",
    "trajectories_from",
]
