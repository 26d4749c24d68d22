"""Training methods: what each name trains, who makes the signals it reads, and its only door to the model."""

from . import align_opsd, anchors, branches, distill, futurebridge, learned, lens_opd, library, reward_model
from .contexts import register_context
from .method import Method, Teacher
from .providers import list_providers, provides
from .registry import get_method, goes_with, list_methods, register_method
from .run import Run

__all__ = [
    "Method",
    "Run",
    "Teacher",
    "align_opsd",
    "anchors",
    "branches",
    "distill",
    "futurebridge",
    "get_method",
    "goes_with",
    "learned",
    "lens_opd",
    "library",
    "list_methods",
    "list_providers",
    "provides",
    "register_context",
    "register_method",
    "reward_model",
]
