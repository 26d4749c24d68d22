"""Trainers: configuration, methods, objective, GRPO loop, checkpoints."""

from typing import TYPE_CHECKING

from .callbacks import GRPOCallback
from .config import EnvironmentConfig, EvaluationConfig, GRPOConfig, ObjectiveConfig, OptimizerConfig, SavingConfig
from .grpo import GRPOTrainer
from .methods import Method, Run, Teacher, get_method, list_methods, provides, register_context, register_method
from .rollout_files import SavedRollouts, load_rollouts
from .rows import TrainRows
from .terms import LossTerm, TokenBatch

if TYPE_CHECKING:
    from .callbacks import TrainerCallback as TrainerCallback
else:
    from .callbacks import __getattr__ as __getattr__  # the old name of GRPOCallback

__all__ = [
    "EnvironmentConfig",
    "EvaluationConfig",
    "GRPOCallback",
    "GRPOConfig",
    "GRPOTrainer",
    "LossTerm",
    "Method",
    "ObjectiveConfig",
    "OptimizerConfig",
    "Run",
    "SavedRollouts",
    "SavingConfig",
    "Teacher",
    "TokenBatch",
    "TrainRows",
    "get_method",
    "list_methods",
    "load_rollouts",
    "provides",
    "register_context",
    "register_method",
]
