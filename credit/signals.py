"""Signals: the one table of what a credit method may read.

The fields of :class:`~turncredit.credit.inputs.CreditInputs` are signals; :func:`register_signal` adds others, which
travel in its ``extras``. Checks, the ``requires`` of methods and the hints of their errors come from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .checks import check_choice, check_logprobs, check_rows, check_span, check_trajectories, check_turns, suggest

if TYPE_CHECKING:
    from .inputs import CreditInputs

Check = Callable[[Any, "CreditInputs"], None]


@dataclass(frozen=True)
class Signal:
    """Definition of something that a credit method may read.

    Args:
        name: its name in ``CreditInputs`` and in ``requires``.
        axes: ``"MT"`` one value per token, ``"M"`` per turn, ``"N"`` per trajectory, ``""`` no tensor but an object
            that only ``check`` looks at (and that ``CreditInputs.to`` moves if it has a ``to`` of its own).
        kind: ``"float"`` (finite, inside the mask where one per token), ``"bool"`` or ``"int"`` (int64); ``""``
            where there are no axes.
        low: smallest number allowed, or None.
        high: largest number allowed, or None.
        fix: what to do where it is missing or its values are wrong; stands at the end of errors.
        check: ``check(value, inputs)`` raises where the value does not belong to the batch; kind, device, shape and
            range have been checked before it.
        doc: one sentence: meaning and unit.
    """

    name: str
    axes: str
    kind: str = "float"
    low: float | None = None
    high: float | None = None
    fix: str = ""
    check: Check | None = None
    doc: str = ""


_SIGNALS: dict[str, Signal] = {}


def register_signal(
    name: str,
    *,
    axes: str,
    kind: str = "float",
    low: float | None = None,
    high: float | None = None,
    fix: str = "",
    check: Check | None = None,
    doc: str = "",
) -> Signal:
    """Define a signal, so that methods may require ``name`` and batches may carry it in ``extras``.

    The same definition may come again (a notebook cell run twice). Arguments as in :class:`Signal`.

    Raises:
        ValueError: the name is no identifier or defined otherwise, or axes or kind are unknown.
    """
    where = "register_signal"
    if not name.isidentifier() or name.startswith("_"):
        raise ValueError(f"{where}: name must be an identifier without leading underscore, got {name!r}; rename it")
    check_choice(where, "axes", axes, ("MT", "M", "N", ""))
    check_choice(where, "kind", kind if axes else "float", ("float", "bool", "int"))
    signal = Signal(name, axes, kind if axes else "", low, high, fix, check, doc)
    old = _SIGNALS.get(name)
    if old is not None and _plain(old) != _plain(signal):
        raise ValueError(
            f"{where}: name must be new or defined as before, got {name!r} for {signal}, but it is {old}; "
            "choose another name"
        )
    _SIGNALS[name] = signal
    return signal


def get_signal(name: str) -> Signal:
    """The definition of ``name``.

    Raises:
        ValueError: there is none; the message says which name was probably meant.

    >>> get_signal("entropies").axes
    'MT'
    """
    if name not in _SIGNALS:
        raise ValueError(
            f"get_signal: name must be one of {', '.join(_SIGNALS)}, got {name!r}; "
            + suggest(name, list(_SIGNALS), "define it with register_signal")
        )
    return _SIGNALS[name]


def list_signals() -> list[str]:
    """Names of all signals: those of every batch first, then the optional ones in the order of their definition."""
    return list(_SIGNALS)


def _plain(signal: Signal) -> tuple[Any, ...]:
    """What makes two definitions the same; a check counts by its place, as running a cell again makes a new object."""
    check = signal.check
    place = (getattr(check, "__module__", None), getattr(check, "__qualname__", check))
    return (signal.name, signal.axes, signal.kind, signal.low, signal.high, signal.fix, signal.doc, *place)


_LOGPROBS = "score the sampled tokens under the {} context"

register_signal(
    "response_mask", axes="MT", kind="bool", check=check_rows, doc="True where the policy sampled the token"
)
register_signal("trajectory_ids", axes="M", kind="int", check=check_trajectories, doc="the trajectory of each turn")
register_signal("turn_ids", axes="M", kind="int", check=check_turns, doc="the place of each turn in its trajectory")
register_signal("group_ids", axes="N", kind="int", doc="the group (task) of each trajectory")
register_signal(
    "rewards", axes="N", fix="leave out a rollout whose reward is missing", doc="return, in the environment's units"
)
register_signal(
    "successes", axes="N", low=0, high=1, fix="pass the success flag, not the scaled reward", doc="success in [0, 1]"
)
register_signal(
    "student_logprobs",
    axes="MT",
    fix=_LOGPROBS.format("student's"),
    check=check_logprobs,
    doc="log-probs of the sampled tokens under the student's context, nats",
)
register_signal(
    "teacher_logprobs",
    axes="MT",
    fix=_LOGPROBS.format("privileged"),
    doc="the same tokens under the privileged context, nats",
)
register_signal(
    "valid_actions", axes="M", kind="bool", fix="say of each turn whether its action was valid", doc="action was valid"
)
register_signal(
    "span_mask",
    axes="MT",
    kind="bool",
    fix="mark the causal span of each turn, or pass span_mask=response_mask",
    check=check_span,
    doc="the causal span of each turn, a subset of response_mask",
)
register_signal(
    "anchor_ids",
    axes="M",
    kind="int",
    fix="number the observations so that equal ones share an id",
    doc="equal for turns of one group that saw the same observation",
)
register_signal(
    "turn_rewards", axes="M", fix="pass the immediate reward of each turn", doc="immediate reward, environment's units"
)
register_signal(
    "entropies",
    axes="MT",
    low=0,
    fix="score the sampled tokens with their entropies",
    doc="entropy of the policy's distribution at each sampled token, nats",
)
register_signal(
    "values", axes="M", fix="predict the return of each turn with a value head", doc="predicted return of each turn"
)
register_signal(
    "answer_logprobs",
    axes="M",
    high=0,
    fix="score the gold answer before every turn",
    doc="mean log-prob per token of the task's gold answer before each turn, nats",
)
register_signal(
    "progress",
    axes="M",
    fix="predict each turn's share of the return",
    doc="predicted share of the return of each turn",
)
register_signal(
    "reward_model_logprobs",
    axes="MT",
    fix=_LOGPROBS.format("reward model's"),
    doc="the sampled tokens under the implicit reward model, nats",
)
register_signal(
    "ref_logprobs",
    axes="MT",
    fix=_LOGPROBS.format("reference's"),
    doc="the same tokens under the frozen reference, nats",
)
