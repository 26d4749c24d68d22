"""What a method needs from a run beside its credit function: teacher context, snapshot, auxiliary loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..credit import list_credits
from ..credit.align import ALIGN_PROFILES
from ..rollout.options import check_options, count, number
from .optimization import AuxiliaryLoss

SDAR = AuxiliaryLoss("sdar", coef=0.01, beta=5.0)


@dataclass(frozen=True)
class Recipe:
    """A training method by name.

    Args:
        credit: the credit function's name.
        credit_options: its options, before those of the run's configuration.
        auxiliary: a distillation term, or None.
        student_context: ``"plain"``, or ``"privileged"`` to train on prompts that hold the skill (Skill-GRPO).
        teacher_context: what the teacher reads: the suite's ``"privileged"`` context, or ``"hindsight"``, the first
            successful sibling of the group.
        snapshot: whose weights the teacher has: ``"current"``, ``"stale"`` (refreshed every `refresh_every` updates) or
            ``"ema"`` (after every update it moves to the policy by `ema_rate`).
        refresh_every: updates between refreshes of a stale teacher.
        ema_rate: 0.05 keeps 95% of the teacher.
        rectified_teacher: the auxiliary term distils AlignOPSD's rectified scores instead of the teacher's own.
        action_filter: drop a selected pair of AlignOPSD whose actions have a cosine below 0.80.
    """

    credit: str
    credit_options: Mapping[str, Any] = field(default_factory=dict)
    auxiliary: AuxiliaryLoss | None = None
    student_context: str = "plain"
    teacher_context: str = "privileged"
    snapshot: str = "current"
    refresh_every: int = 10
    ema_rate: float = 0.05
    rectified_teacher: bool = False
    action_filter: bool = False

    def __post_init__(self) -> None:
        for name, known in (
            ("student_context", ("plain", "privileged")),
            ("teacher_context", ("privileged", "hindsight")),
            ("snapshot", ("current", "stale", "ema")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"Recipe: {name} must be one of {known}, got {getattr(self, name)!r}")
        check_options("Recipe", vars(self), {"refresh_every": count(1), "ema_rate": number(0.0, 1.0, above=True)})
        if self.auxiliary is not None:
            rules = {"coef": number(), "beta": number(), "policy_weight": number()}
            check_options("AuxiliaryLoss", vars(self.auxiliary), rules)


RECIPES: dict[str, Recipe] = {
    "skill_grpo": Recipe("grpo", student_context="privileged"),
    "sdar": Recipe("grpo", auxiliary=SDAR),
    "grpo_opsd": Recipe("grpo", auxiliary=AuxiliaryLoss("sdar", coef=0.01, beta=0.0)),
    "opsd": Recipe("grpo", auxiliary=AuxiliaryLoss("sdar", coef=0.01, beta=0.0, policy_weight=0.0)),
    "skill_sd": Recipe("grpo", auxiliary=AuxiliaryLoss("skill_sd", coef=0.001)),
    "step_opsd": Recipe("step_opsd", teacher_context="hindsight", snapshot="stale"),
    "align_distill": Recipe(
        "align_opsd", auxiliary=AuxiliaryLoss("sdar", coef=0.01, beta=0.0, policy_weight=0.0), rectified_teacher=True
    ),
    **{
        name: Recipe(name, auxiliary=SDAR if profile.auxiliary_sdar else None, action_filter=profile.action_filter)
        for name, profile in ALIGN_PROFILES.items()
    },
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
