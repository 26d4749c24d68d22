"""What a training method is: credit, loss terms, a teacher, attached modules, model calls of its own, state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from ...credit import CreditInputs, CreditMethod
from ...envs import Task
from ...rollout.options import check_options, count, number
from ...rollout.types import Trajectory
from ..checkpoint import Stateful
from ..terms import LossTerm, check_terms

if TYPE_CHECKING:
    from ..batch import TurnBatch
    from .providers import Provider
    from .run import Run

LAGGING = ("stale", "ema")
TextsOf = Callable[["TurnBatch", "Run"], Sequence[str | None]]
"""Texts that the teacher reads: one per trajectory or one per turn; None where it reads what the student reads."""


@dataclass(frozen=True)
class Teacher:
    """Who scores, and answers, as the teacher.

    Args:
        weights: ``"current"``, the policy's; ``"stale"``, the policy's of the last refresh; ``"ema"``, moved to the
            policy's by `ema_rate` after every update; or another model with the policy's tokenizer, itself or by name
            or folder.
        refresh_every: updates between refreshes of a stale teacher.
        ema_rate: 0.05 keeps 95% of the teacher.
        context: name of the text it reads beside the student's prompt: one of the suite's contexts (``"privileged"``),
            ``"hindsight"``, or a function of one's own, see `TextsOf`; None for the student's prompt alone.

    Raises:
        TypeError, ValueError: an option of the wrong kind or out of range, or a teacher that is the student.
    """

    weights: str | PreTrainedModel = "current"
    refresh_every: int = 10
    ema_rate: float = 0.05
    context: str | TextsOf | None = "privileged"

    def __post_init__(self) -> None:
        check_options("Teacher", vars(self), {"refresh_every": count(1), "ema_rate": number(0.0, 1.0, above=True)})
        if not (self.weights and isinstance(self.weights, str)) and not isinstance(self.weights, nn.Module):
            raise TypeError(f"Teacher: weights must be text or a model, got {self.weights!r}; write stale or a folder")
        if not (self.context is None or callable(self.context) or (self.context and isinstance(self.context, str))):
            raise TypeError(
                f"Teacher: context must be a name, a function or None, got {self.context!r}; name one of the suite's"
            )
        if self.context is None and self.weights == "current":
            raise ValueError(
                "Teacher: context must be given where the weights are the policy's, got None; the teacher would be the "
                "student: name a context, or give it other weights"
            )

    @property
    def lags(self) -> bool:
        """Whether it has earlier weights of the policy."""
        return self.weights in LAGGING

    @property
    def is_another(self) -> bool:
        """Whether it is a model of its own."""
        return not self.lags and self.weights != "current"


@dataclass(frozen=True)
class Method:
    """A training method; `get_method` makes one by name, with every option resolved.

    Args:
        credit: a credit function by name, or with options fixed; None gives no advantages.
        terms: loss terms beside the policy gradient.
        policy_weight: weight of the policy gradient; 0 leaves the terms alone.
        teacher: who teaches; None takes what goes with the credit function, see `goes_with`.
        student_context: name of the suite's context in the training prompt, or None.
        modules: hidden size -> modules by name that are trained with the policy, reading its last hidden states.
        prepare: ``(batch, run) -> signals`` for credit and terms, after the rollouts; may call `run`. Every process
            calls it, also with an empty batch.
        gives: names of the signals that `prepare` returns, or that stand in the credit's details and a term reads.
        rollouts: ``(tasks, run) -> trajectories`` instead of ``num_generations`` episodes of each of this process's
            tasks; group ids count the tasks given, rollout indices a group's trajectories from 0 to ``num_generations``
            less one. Every process calls it, also without a task.
        start: ``(run)``, before the first rollout, to raise where something is missing; see also `provides`.
        settle: ``(credit, inputs, run) -> credit`` with what only all processes together can say; inputs are None on a
            process without a turn.
        state: parts of one's own that checkpoints save, alike on every process.
        invalid_penalty: taken off the reward of an invalid turn, as a residual after credit; 0 turns it off, None is
            0.1, or what the credit function says that adds it itself.
        options: values for options of the credit function and the providers that differ from their defaults; those of a
            resolved method are all its options.
        name, needs, providers: filled in by `get_method`: the signals that are read, and who makes them.
    """

    credit: CreditMethod | str | None
    terms: tuple[LossTerm, ...] = ()
    _: KW_ONLY
    policy_weight: float = 1.0
    teacher: Teacher | None = None
    student_context: str | None = None
    modules: Callable[[int], Mapping[str, nn.Module]] | None = None
    prepare: Callable[[TurnBatch, Run], Mapping[str, Tensor] | None] | None = None
    gives: tuple[str, ...] = ()
    rollouts: Callable[[Sequence[Task], Run], list[Trajectory]] | None = None
    start: Callable[[Run], None] | None = None
    settle: Callable[[CreditMethod, CreditInputs | None, Run], CreditMethod] | None = None
    state: Mapping[str, Stateful] = field(default_factory=dict)
    invalid_penalty: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    needs: frozenset[str] = frozenset()
    providers: tuple[Provider, ...] = ()

    def __post_init__(self) -> None:
        owner = f"Method {self.name}".rstrip()
        rules = {"policy_weight": number(), "invalid_penalty": number(none="for the default")}
        for name, value in check_options(owner, vars(self), rules).items():
            object.__setattr__(self, name, value)
        if self.student_context is not None and not (self.student_context and isinstance(self.student_context, str)):
            raise TypeError(
                f"{owner}: student_context must be a name or None, got {self.student_context!r}; name one of the "
                "suite's contexts"
            )
        check_terms(self.terms)
        for name, part in self.state.items():
            if not isinstance(part, Stateful) or not name.isidentifier():
                raise TypeError(
                    f"{owner}: state must hold parts with state_dict and load_state_dict by identifiers, got {part!r} "
                    f"as {name!r}; give it both"
                )

    @property
    def credit_method(self) -> CreditMethod | None:
        """The credit function with its options fixed, of a method that `get_method` made."""
        return self.credit if isinstance(self.credit, CreditMethod) else None

    @property
    def contexts(self) -> dict[str, str]:
        """Who of this method reads which context of the suite."""
        found = {} if self.student_context is None else {"student": self.student_context}
        asks = self.reads_teacher or self.prepare is not None
        if asks and self.teacher is not None and isinstance(self.teacher.context, str):
            found["teacher"] = self.teacher.context
        return found

    @property
    def reads_teacher(self) -> bool:
        """Whether a signal that it needs comes from the teacher."""
        return any(provider.teacher for provider in self.providers)

    def described(self) -> dict[str, Any]:
        """Plain values by which a continued run is compared with the one before."""
        credit = self.credit_method
        return {
            "credit": None if credit is None else credit.name,
            "credit_options": {} if credit is None else dict(credit.options),
            "options": dict(self.options),
            "policy_weight": self.policy_weight,
            "terms": {term.name: {"kind": type(term).__name__, **vars(term)} for term in self.terms},
        }
