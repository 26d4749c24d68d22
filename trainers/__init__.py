"""Trainers: configuration, methods, objective, GRPO loop, checkpoints. Names load what they need when they are used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callbacks import GRPOCallback
    from .callbacks import TrainerCallback as TrainerCallback  # the old name of GRPOCallback
    from .config import EnvironmentConfig, EvaluationConfig, GRPOConfig, ObjectiveConfig, OptimizerConfig, SavingConfig
    from .grpo import GRPOTrainer
    from .methods import Method, Run, Teacher, get_method, list_methods, provides, register_context, register_method
    from .rollout_files import SavedRollouts, load_rollouts
    from .rows import TrainRows
    from .terms import LossTerm, TokenBatch

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

_ROOMS = {
    "callbacks": ("GRPOCallback", "TrainerCallback"),
    "config": (
        "EnvironmentConfig",
        "EvaluationConfig",
        "GRPOConfig",
        "ObjectiveConfig",
        "OptimizerConfig",
        "SavingConfig",
    ),
    "grpo": ("GRPOTrainer",),
    "methods": (
        "Method",
        "Run",
        "Teacher",
        "get_method",
        "list_methods",
        "provides",
        "register_context",
        "register_method",
    ),
    "rollout_files": ("SavedRollouts", "load_rollouts"),
    "rows": ("TrainRows",),
    "terms": ("LossTerm", "TokenBatch"),
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:  # the command line says what is wrong before torch is loaded
        for room, names in _ROOMS.items():
            if name in names:
                from importlib import import_module

                return getattr(import_module(f".{room}", __name__), name)
        raise AttributeError(f"turncredit.trainers has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
