"""Trainers: configuration, objective, GRPO loop, checkpoints."""

from .callbacks import TrainerCallback
from .config import GRPOConfig
from .grpo import GRPOTrainer
from .optimization import AuxiliaryLoss
from .recipes import RECIPES, Recipe, get_recipe

__all__ = ["RECIPES", "AuxiliaryLoss", "GRPOConfig", "GRPOTrainer", "Recipe", "TrainerCallback", "get_recipe"]
