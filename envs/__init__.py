"""Environments: the protocol, the vector runner and the benchmarks. Importing this loads no torch."""

from .base import (
    EnvFailure,
    Environment,
    HistoryEntry,
    Message,
    Observation,
    ParsedResponse,
    StepResult,
    Task,
    TaskSuite,
)
from .vector import VectorEnv

__all__ = [
    "EnvFailure",
    "Environment",
    "HistoryEntry",
    "Message",
    "Observation",
    "ParsedResponse",
    "StepResult",
    "Task",
    "TaskSuite",
    "VectorEnv",
]
