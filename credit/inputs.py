"""The batch every credit method reads and the record it returns: tensors only, one row per turn.

Axes: N trajectories, M turns (rows, in any order), T response tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .checks import check_batch, suggest
from .display import batch_line, batch_table, credit_line, credit_table, doubts
from .records import fields_of
from .signals import get_signal, list_signals
from .tokens import count_true, token_sums

if TYPE_CHECKING:
    from .align import Correspondence


@dataclass(frozen=True, repr=False)
class CreditInputs:
    """One frozen batch of turns, whole groups at a time. Its tensors must not be written to afterwards.

    Args:
        response_mask: ``[M, T]`` bool, True where the policy sampled the token.
        trajectory_ids: ``[M]`` int64 in ``[0, N)``, the trajectory of each row.
        turn_ids: ``[M]`` int64, the place of each row in its trajectory: 0 .. K_i - 1, each once.
        group_ids: ``[N]`` int64, the group (task) of each trajectory; any distinct integers.
        rewards: ``[N]`` float, the return of each trajectory, in the environment's units.
        successes: ``[N]`` float in [0, 1], success of each trajectory (never a scaled reward).
        student_logprobs: ``[M, T]`` float, log-probs of the sampled tokens under the student context, nats.
        teacher_logprobs: ``[M, T]`` float, the same tokens under the privileged context, or None.
        valid_actions: ``[M]`` bool, whether the turn's action was valid, or None.
        span_mask: ``[M, T]`` bool, the causal span of StepOPSD, a subset of ``response_mask``, or None.
        anchor_ids: ``[M]`` int64, equal for turns of one group that saw the same observation (GiGPO), or None.
        turn_rewards: ``[M]`` float, the immediate reward of each turn (GiGPO), or None.
        correspondence: similarities between turns of one task and cross scores (AlignOPSD), or None.
        extras: further signals by name, each defined by :func:`~turncredit.credit.signals.register_signal`; read them
            as attributes, ``inputs.values``, or with :meth:`signal`.

    Raises:
        TypeError: an argument is no tensor or has the wrong kind of dtype.
        ValueError: a shape, an index, a device or a value inside the mask is wrong; the message names the
            argument, what it got and one fix.
    """

    response_mask: Tensor
    trajectory_ids: Tensor
    turn_ids: Tensor
    group_ids: Tensor
    rewards: Tensor
    successes: Tensor
    student_logprobs: Tensor
    teacher_logprobs: Tensor | None = None
    valid_actions: Tensor | None = None
    span_mask: Tensor | None = None
    anchor_ids: Tensor | None = None
    turn_rewards: Tensor | None = None
    correspondence: Correspondence | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extras", _checked_extras(self.extras))
        optional = {name for name in list_signals() if name not in OBLIGATORY and self.signal(name) is None}
        check_batch(self, {name: get_signal(name) for name in list_signals() if name not in optional})

    @classmethod
    def from_trajectories(cls, trajectories: Iterable[Any], **signals: Any) -> CreditInputs:
        """The batch of whole trajectories, sampled or scored: every field that their records fill.

        Rows are the turns in order, without those replayed from another record. ``teacher_logprobs``, ``span_mask``
        (the tokens of actions) and ``anchor_ids`` stay None where no turn has them. What :meth:`remarks` finds is
        warned of, once.

        Args:
            trajectories: records of :mod:`turncredit.rollout`, or anything with their attributes.
            signals: fields to set otherwise, and further signals by name.

        Raises:
            ValueError: no trajectory, a failed one, turns without ids or log-probs, a log-prob above 0.
        """
        found = {**fields_of(trajectories), **{name: value for name, value in signals.items() if name in _FIELDS}}
        extras = {name: value for name, value in signals.items() if name not in _FIELDS}
        batch = cls(**{**found, "extras": {**found.get("extras", {}), **extras}})
        for remark in batch.remarks():
            warnings.warn(f"CreditInputs.from_trajectories: {remark}", stacklevel=2)
        return batch

    def remarks(self) -> list[str]:
        """What may be meant but rarely is: groups of one only, rewards of turns that do not sum to the return."""
        return doubts(self)

    def __repr__(self) -> str:
        return batch_line(self, OBLIGATORY)

    def _repr_html_(self) -> str:
        return batch_table(self, OBLIGATORY)

    def __getattr__(self, name: str) -> Any:
        """An extra by its name; None where the signal is defined and was not given."""
        if not name.startswith("_") and name in list_signals():
            return self.extras.get(name)
        raise AttributeError(f"CreditInputs has no field or signal {name!r}; define a signal with register_signal")

    def signal(self, name: str) -> Any:
        """The value of any signal, a field or an extra; None where it was not given.

        Raises:
            ValueError: no signal of that name is defined.
        """
        name = get_signal(name).name
        return getattr(self, name) if name in _FIELDS else self.extras.get(name)

    @property
    def num_rows(self) -> int:
        """M, the number of turns."""
        return self.response_mask.shape[0]

    @property
    def num_trajectories(self) -> int:
        """N, the number of trajectories."""
        return self.group_ids.shape[0]

    @cached_property
    def turn_counts(self) -> Tensor:
        """``[N]`` int64, K_i: turns of each trajectory."""
        return torch.bincount(self.trajectory_ids, minlength=self.num_trajectories)

    @cached_property
    def token_counts(self) -> Tensor:
        """``[M]`` int64, sampled tokens of each turn."""
        return count_true(self.response_mask)

    @cached_property
    def span_counts(self) -> Tensor:
        """``[M]`` int64, tokens in the causal span of each turn; zeros without a ``span_mask``."""
        return torch.zeros_like(self.trajectory_ids) if self.span_mask is None else count_true(self.span_mask)

    @cached_property
    def masked_sums(self) -> Tensor:
        """``[M]`` wide float, sum of ``teacher - student`` over each turn's sampled tokens, nats.

        Without ``teacher_logprobs`` the sum of ``student_logprobs``.
        """
        return token_sums(self)

    @cached_property
    def group_index(self) -> Tensor:
        """``[N]`` int64, ``group_ids`` renumbered to 0 .. P - 1."""
        return torch.unique(self.group_ids, return_inverse=True)[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype credit is computed and returned in: float64 if the student's log-probs are, else float32."""
        return torch.float64 if self.student_logprobs.dtype == torch.float64 else torch.float32

    def to(self, device: torch.device | str) -> CreditInputs:
        """The same batch with every tensor on ``device``."""
        moved = {name: _on(device, getattr(self, name)) for name in _FIELDS if name != "extras"}
        return replace(self, **moved, extras={name: _on(device, value) for name, value in self.extras.items()})


_FIELDS = tuple(key.name for key in fields(CreditInputs))
OBLIGATORY = tuple(key.name for key in fields(CreditInputs) if key.default is MISSING and key.name != "extras")


def _on(device: torch.device | str, value: Any) -> Any:
    return value.to(device) if hasattr(value, "to") else value


def _checked_extras(extras: Any) -> dict[str, Any]:
    """A copy of the extras that were given.

    Raises:
        TypeError: no mapping.
        ValueError: a name that is not registered, or is a field.
    """
    where = "CreditInputs"
    if not isinstance(extras, Mapping):
        raise TypeError(f"{where}: extras must be a mapping, got {type(extras).__name__}; pass {{name: tensor}}")
    known = [name for name in list_signals() if not hasattr(CreditInputs, name) and name not in _FIELDS]
    for name in extras:
        if name in _FIELDS:
            raise ValueError(f"{where}: extras must not name a field, got {name!r}; pass {name}=...")
        if name not in known:
            raise ValueError(
                f"{where}: extras must be among {', '.join(known)}, got {name!r}; "
                + suggest(name, known, "define it with register_signal, by a name that CreditInputs does not use")
            )
    return {name: value for name, value in extras.items() if value is not None}


@dataclass(frozen=True, repr=False)
class Credit:
    """What a credit method returns.

    Args:
        advantages: ``[M, T]`` float, detached, 0 outside ``response_mask``.
        turn_weights: ``[M]`` float, the weight of each turn, 1 for plain GRPO; each method documents its own (for
            AgentOPSD it is w_k before lambda mixes it with 1).
        metrics: scalars worth logging.
        details: tensors worth plotting; each method documents its own.
    """

    advantages: Tensor
    turn_weights: Tensor
    metrics: dict[str, float] = field(default_factory=dict)
    details: dict[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        return credit_line(self)

    def _repr_html_(self) -> str:
        return credit_table(self)
