"""What of TRL turn credit does not go with: versions and options under which it would be lost or wrong."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from .plan import TurnCredit

VERSION = "1.16.0"

# option of TRL's GRPOConfig -> values under which turn credit is right, and why others are refused
_ALLOWED: dict[str, tuple[tuple[Any, ...], str]] = {
    "loss_type": (
        ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo"),
        "the others take one advantage a completion",
    ),
    "importance_sampling_level": (
        ("token",),
        "a completion's ratio has one gradient for all its tokens, which would average turn credit away",
    ),
    "off_policy_mask_threshold": (
        (None,),
        "it drops completions by the sign of their only advantage, and the turns of one may have both signs",
    ),
    "mask_truncated_completions": (
        (False,),
        "a masked completion has no turns, so its reward could not stay in the baseline as it does in TRL",
    ),
    "multi_objective_aggregation": (
        ("sum_then_normalize",),
        "credit needs one return a completion",
    ),
}


def installed_version() -> str:
    """TRL's version.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f'TurnCreditMixin: trl must be installed, got none; pip install "trl=={VERSION}"') from None


def check_version() -> None:
    """Raise a ValueError unless TRL is the version whose internals the mixin was written against."""
    found = installed_version()
    if found != VERSION:
        raise ValueError(
            f"TurnCreditMixin: trl must be {VERSION}, whose internals it replaces, got {found}; pip install "
            f'"trl=={VERSION}", or use turncredit.credit.sequences in a loop of your own'
        )


def check_trainer(trainer: Any, plan: TurnCredit) -> None:
    """Raise where turn credit would be lost or wrong in a trainer that has just been made.

    Raises:
        TypeError: the class is no GRPOTrainer of TRL.
        ValueError: an option, a model of images, or a dataset without the privileged column.
    """
    if not any(kind.__module__ == "trl.trainer.grpo_trainer" for kind in type(trainer).__mro__):
        raise TypeError(
            f"TurnCreditMixin: the class must come from TRL's GRPOTrainer, got {type(trainer).__name__}; write "
            "class Trainer(TurnCreditMixin, GRPOTrainer)"
        )
    check_options(trainer.args, plan)
    if trainer._is_vlm:
        raise ValueError("TurnCreditMixin: model must read text alone, got a model of images; train it without")
    columns = getattr(trainer.train_dataset, "column_names", None)
    if isinstance(plan.privileged, str) and columns and plan.privileged not in columns:
        raise ValueError(
            f"TurnCredit: privileged must name a column of the dataset, got {plan.privileged!r} and "
            f"{', '.join(columns)}; add the column, or pass a function of the row"
        )


def check_options(args: Any, plan: TurnCredit) -> None:
    """Raise a ValueError where an option of TRL's GRPOConfig does not go with turn credit."""
    for name, (values, why) in _ALLOWED.items():
        value = getattr(args, name)
        if value not in values:
            known = " or ".join(map(repr, values))
            raise ValueError(f"TurnCreditMixin: {name} must be {known}, got {value!r}: {why}; choose one of them")
    scale = {True: "group", False: "none"}.get(args.scale_rewards, args.scale_rewards)
    own = plan.method.options.get("scale_rewards")
    if scale == "batch" or (scale == "none" and own is not False):
        fix = "leave it at its default and set the method's own options"
        if scale == "none" and own is not None:
            fix = f'pass TurnCredit({plan.credit!r}, {{"scale_rewards": False}})'
        raise ValueError(
            f"TurnCreditMixin: scale_rewards must be 'group', or 'none' where the credit's scale_rewards is False, got "
            f"{scale!r} with {plan.credit!r}; {fix}"
        )
