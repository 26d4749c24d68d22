"""Traces from anywhere: files of other agents, benchmarks, trainers and services as trajectories; docs/traces.md."""

from . import chats  # formats defined last are asked first, the most general ones last of all

# isort: split
from . import react

# isort: split
from . import benchmarks, dumps, services
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
    "benchmarks",
    "chats",
    "dumps",
    "list_trace_formats",
    "load_traces",
    "react",
    "register_trace_format",
    "services",
    "trajectories_from",
]
