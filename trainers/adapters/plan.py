"""Which credit another trainer is to use, and who makes what it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ...credit import CreditMethod, get_credit
from ...credit.sequences import SequenceTurns
from ...credit.signals import get_signal
from ..methods.tryout import try_options

TEACHER = "teacher_logprobs"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class RolloutBatch:
    """What a process has sampled; functions of :class:`TurnCredit` read it.

    Args:
        prompt_ids, prompt_mask: ``[B, P]``, padded on the left.
        completion_ids, completion_mask: ``[B, S]``, padded on the right; the environment's tokens are among them.
        turns: where the turns lie; ``turns.mask`` is True where the policy sampled the token.
        student_logprobs: ``[B, S]`` float, at the sampling temperature, nats.
        rows: the B rows of the dataset, each as often as it was played.
        prompts: B prompts, messages or text, as they were played.
        completions: B completions, messages or text.
        environments: B environments after their episode, or None.
    """

    prompt_ids: Tensor
    prompt_mask: Tensor
    completion_ids: Tensor
    completion_mask: Tensor
    turns: SequenceTurns
    student_logprobs: Tensor
    rows: Sequence[Row]
    prompts: Sequence[Any]
    completions: Sequence[Any]
    environments: Sequence[Any] | None


@dataclass(frozen=True)
class TurnCredit:
    """A credit method by name, and where what it reads comes from; checked when it is made.

    Args:
        credit: a name of ``turncredit.credit.list_credits()``. Methods that are loss terms, such as ``sdar``, are not
            among them.
        options: of the method, in place of its defaults.
        privileged: what the teacher reads besides the prompt: a column of the dataset, or a function from a row to the
            text (None or blank where a task has none). The policy itself then scores its tokens behind that prompt.
        signals: name -> function from a :class:`RolloutBatch` to what the method reads: ``[B, S]`` for one of each
            token, ``[M]`` in the order of ``batch.turns`` or ``[B, S]`` for one of each turn, ``[B]`` for one of each
            trajectory. ``{"teacher_logprobs": f}`` is a teacher of your own.
        successes: from rewards ``[N, F]``, one column a reward function and NaN where one gave none, to ``[N]`` in
            [0, 1]; may be left out where the weighted sum of every row is 0 or 1.

    Raises:
        TypeError, ValueError: an unknown name or option, a value out of range, a signal that the method needs and
            nobody makes, or a teacher that the method does not read.
    """

    credit: str = "agent_opsd"
    options: Mapping[str, Any] = field(default_factory=dict)
    privileged: str | Callable[[Row], str | None] | None = None
    signals: Mapping[str, Callable[[RolloutBatch], Tensor]] = field(default_factory=dict)
    successes: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        for name in ("signals", "options"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        method = get_credit(self.credit, **self.options)
        check_sources("TurnCredit", method, set(self.signals), privileged=self.privileged is not None)
        for name, function in self.signals.items():
            if not callable(function):
                raise TypeError(
                    f"TurnCredit: signals must be functions of a RolloutBatch, got {type(function).__name__} for "
                    f"{name!r}; pass lambda batch: .."
                )
        try_options(method, 4)

    @property
    def method(self) -> CreditMethod:
        """The credit method with its options."""
        return get_credit(self.credit, **self.options)


def check_sources(where: str, method: CreditMethod, signals: set[str], *, privileged: bool = False) -> None:
    """Raise a ValueError unless every signal that a method needs is made, once, and no teacher in vain.

    Args:
        where: who asks.
        method: the method.
        signals: names that something makes.
        privileged: whether the policy itself is the teacher.
    """
    for name in sorted(signals | method.requires):
        if not get_signal(name).axes:
            raise ValueError(
                f"{where}: credit must read tensors alone, got {method.name!r} with {name!r}; use it in "
                "turncredit.trainers.GRPOTrainer"
            )
    if privileged and TEACHER in signals:
        raise ValueError(
            f"{where}: {TEACHER} must be made once, got privileged and signals[{TEACHER!r}]; leave one out"
        )
    made = signals | ({TEACHER} if privileged else set())
    if TEACHER in made and TEACHER not in method.requires:
        raise ValueError(
            f"{where}: a teacher must be left out for {method.name!r}, which reads none, got one; choose another credit"
        )
    for name in sorted(method.requires - made):
        fix = "pass privileged, or " if name == TEACHER and where == TurnCredit.__name__ else ""
        raise ValueError(
            f"{where}: signals must hold {name!r}, which {method.name!r} reads, got {sorted(signals)}; {fix}"
            f"{get_signal(name).fix or 'add it to signals'}"
        )
