"""Trainers: configuration, methods, objective, GRPO loop, checkpoints."""

from .callbacks import TrainerCallback
from .config import GRPOConfig
from .grpo import GRPOTrainer
from .methods import Method, Run, Teacher, get_method, list_methods, provides, register_method
from .optimization import AuxiliaryLoss

__all__ = [
    "AuxiliaryLoss",
    "GRPOConfig",
    "GRPOTrainer",
    "Method",
    "Run",
    "Teacher",
    "TrainerCallback",
    "get_method",
    "list_methods",
    "provides",
    "register_method",
]
