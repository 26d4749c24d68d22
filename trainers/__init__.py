"""Trainers: configuration, objective, GRPO loop, checkpoints."""

from typing import TYPE_CHECKING

from .callbacks import GRPOCallback
from .config import EnvironmentConfig, EvaluationConfig, GRPOConfig, ObjectiveConfig, OptimizerConfig, SavingConfig
from .grpo import GRPOTrainer
from .optimization import AuxiliaryLoss
from .recipes import RECIPES, Recipe, get_recipe

if TYPE_CHECKING:
    from .callbacks import TrainerCallback as TrainerCallback
else:
    from .callbacks import __getattr__ as __getattr__  # the old name of GRPOCallback

__all__ = [
    "RECIPES",
    "AuxiliaryLoss",
    "EnvironmentConfig",
    "EvaluationConfig",
    "GRPOCallback",
    "GRPOConfig",
    "GRPOTrainer",
    "ObjectiveConfig",
    "OptimizerConfig",
    "Recipe",
    "SavingConfig",
    "get_recipe",
]
