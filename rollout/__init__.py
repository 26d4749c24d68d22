"""Rollouts: records of episodes, collection with a Hugging Face model, log-prob scoring."""

from .types import StopReason, Trajectory, Turn

__all__ = ["StopReason", "Trajectory", "Turn"]
