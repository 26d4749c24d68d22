"""What a method and its suite must agree on before the first rollout, and what a method returns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...credit.signals import get_signal, list_signals
from ...envs import Task, TaskSuite
from ...rollout.contexts import context_text
from ..batch import TurnBatch
from ..rows import TrainRows
from ..terms import LossTerm, check_terms
from .contexts import CONTEXTS
from .method import Method

if TYPE_CHECKING:
    from ..policy import Policy
    from ..teacher import TeacherModel


def check_contexts(method: Method, suite: TaskSuite, tasks: Sequence[Task]) -> None:
    """Raise unless some task has the contexts that the method reads, and its teacher reads another than its student.

    Raises:
        ValueError: none has, or they are the same everywhere; the method would silently train without.
    """
    named = [(who, part) for who, name in method.contexts.items() for part in name.split("+")]
    for who, name in named:
        own = who == "teacher" and method.contexts[who] in CONTEXTS
        if own or any(context_text(suite, task, name) is not None for task in tasks):
            continue
        raise ValueError(
            f"GRPOTrainer: suite must have a context {name!r} for {method.name}, whose {who} reads it, got None for "
            f"all {len(tasks)} tasks of {suite.name}; let the suite make one, or choose another {who}_context"
        )
    names, current = list(method.contexts.values()), method.teacher is not None and method.teacher.weights == "current"
    if not (method.reads_teacher and current and len(names) == 2) or names[1] in CONTEXTS:
        return
    if all(context_text(suite, task, names[0]) == context_text(suite, task, names[1]) for task in tasks):
        raise ValueError(
            f"GRPOTrainer: {method.name}'s student must not read what its teacher reads, got the same texts for "
            f"{names[0]!r} and {names[1]!r} of {suite.name}; the teacher would be the student: choose another "
            "teacher_context"
        )


def check_speaker(name: str, whose: str, policy: Policy, teacher: TeacherModel) -> None:
    """Raise unless somebody's weights may be asked now.

    Raises:
        ValueError: another name, a run without a reference, or the policy while others' weights are in its place.
    """
    if whose not in ("policy", "teacher", "reference"):
        raise ValueError(
            f'Run.weights: whose must be "policy", "teacher" or "reference", got {whose!r}; write one of them'
        )
    reference, snapshot = policy.reference, teacher.snapshot
    if whose == "reference" and reference is None:
        raise ValueError(
            f'Run.weights: whose must not be "reference" in a run without one, got it from {name}; set beta above 0'
        )
    current = snapshot is None and teacher.model is policy.model
    lent = [part for part in (snapshot, getattr(reference, "snapshot", None)) if part is not None and part.swapped]
    if lent and (whose == "policy" or (whose == "teacher" and current)):
        raise ValueError(
            f"Run.weights: the policy must not be asked while others' weights are in its place, got {whose!r} from "
            f"{name}; ask it before or behind `with run.weights(..)`"
        )


def check_added(
    name: str, rows: TrainRows, terms: Sequence[LossTerm], taken: Collection[str], modules: Collection[str]
) -> None:
    """Raise unless rows beside the batch's can be trained with these terms.

    Raises:
        TypeError: something else than rows and terms.
        ValueError: no term, one that is called as another of the update, or a signal or module that it lacks.
    """
    if not isinstance(rows, TrainRows) or not terms:
        raise TypeError(
            f"Run.add_rows: rows must be TrainRows with a term at least, got {type(rows).__name__} and {len(terms)} "
            f"terms from {name}; see TrainRows.beside"
        )
    check_terms(terms, rows.signals, modules)
    twice = sorted({term.name for term in terms} & set(taken))
    if twice:
        raise ValueError(
            f"Run.add_rows: terms must have names of their own in an update, got {twice[0]!r} again from {name}; "
            "rename it"
        )


def check_signal(owner: str, name: str, value: Any, batch: TurnBatch) -> None:
    """Raise unless a signal is what its definition says, or else one number per turn or token, finite where it counts.

    Raises:
        TypeError: no tensor, or of another kind.
        ValueError: another shape, or a number out of range or not finite.
    """
    defined = get_signal(name) if name in list_signals() else None
    if defined is not None and not defined.axes:
        return
    if not isinstance(value, Tensor) or (defined is not None and _kind(value) != defined.kind):
        wanted = "tensor" if defined is None else f"{defined.kind} tensor"
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{owner} must give {name!r} as a {wanted}, got {got}; convert it")
    mask = batch.response_mask
    if value.device != mask.device:
        raise ValueError(
            f"{owner} must give {name!r} on the {mask.device.type.upper()}, where batches lie, got {value.device}; "
            "move it with .cpu()"
        )
    shapes = {"M": (len(batch.turns),), "MT": tuple(mask.shape), "N": (len(batch.trajectories),)}
    axes = ("M", "MT") if defined is None else (defined.axes,)
    shape = tuple(value.shape) if defined is not None else tuple(value.shape[:2])  # a term may read vectors
    if shape not in [shapes[key] for key in axes]:
        rule = " or ".join(f"[{', '.join(key)}] = {list(shapes[key])}" for key in axes)
        raise ValueError(
            f"{owner} must give {name!r} as {rule}, got {list(value.shape)}; give one value per turn or sampled token"
        )
    inside = value[mask] if value.ndim >= 2 else value
    low, high = (None, None) if defined is None else (defined.low, defined.high)
    wrong = ~torch.isfinite(inside)
    wrong |= inside < low if low is not None else False
    wrong |= inside > high if high is not None else False
    if bool(wrong.any()):
        rule = "finite numbers" + (f" in [{low}, {high}]" if (low, high) != (None, None) else "")
        raise ValueError(
            f"{owner} must give {name!r} as {rule}, got {inside[wrong][0].item()}; check how it is computed"
        )


def _kind(value: Tensor) -> str:
    return "bool" if value.dtype == torch.bool else "float" if value.is_floating_point() else "int"
