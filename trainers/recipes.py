"""What a method needs from a run beside its credit function: teacher context, snapshots, auxiliary loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..credit import list_credits
from .optimization import AuxiliaryLoss


@dataclass(frozen=True)
class Recipe:
    """A training method by name.

    Args:
        credit: the credit function's name.
        credit_options: its options, before those of the run's configuration.
        auxiliary: a distillation term, or None.
        student_context: ``"plain"``, or ``"privileged"`` to train on prompts that hold the skill (Skill-GRPO).
    """

    credit: str
    credit_options: Mapping[str, Any] = field(default_factory=dict)
    auxiliary: AuxiliaryLoss | None = None
    student_context: str = "plain"


RECIPES: dict[str, Recipe] = {
    "skill_grpo": Recipe("grpo", student_context="privileged"),
    "sdar": Recipe("grpo", auxiliary=AuxiliaryLoss("sdar", coef=0.01, beta=5.0)),
    "grpo_opsd": Recipe("grpo", auxiliary=AuxiliaryLoss("sdar", coef=0.01, beta=0.0)),
    "opsd": Recipe("grpo", auxiliary=AuxiliaryLoss("sdar", coef=0.01, beta=0.0, policy_weight=0.0)),
    "skill_sd": Recipe("grpo", auxiliary=AuxiliaryLoss("skill_sd", coef=0.001)),
}


def get_recipe(name: str) -> Recipe:
    """The recipe of that name; a credit method without one of its own is its own recipe.

    Raises:
        ValueError: neither a recipe nor a credit method has this name.
    """
    if name in RECIPES:
        return RECIPES[name]
    if name not in list_credits():
        known = sorted({*RECIPES, *list_credits()})
        raise ValueError(f"get_recipe: credit must be one of {known}, got {name!r}")
    return Recipe(name)
