"""Trainers: configuration, objective, GRPO loop, checkpoints."""

from .callbacks import TrainerCallback
from .config import GRPOConfig
from .grpo import GRPOTrainer
from .recipes import RECIPES, Recipe, get_recipe
from .terms import LossTerm, TokenBatch

__all__ = ["RECIPES", "GRPOConfig", "GRPOTrainer", "LossTerm", "Recipe", "TokenBatch", "TrainerCallback", "get_recipe"]
