"""One padded row per trajectory, as other trainers have it, to one row per turn and back; tensors only.

Axes: B sequences of S positions, of which a run of sampled ones is a turn; M turns of T tokens at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .checks import check_shape
from .inputs import Credit, CreditInputs
from .registry import CreditMethod
from .signals import Signal, get_signal


@dataclass(frozen=True)
class SequenceTurns:
    """Where the turns of B sequences lie; :func:`turns_from_mask` makes it.

    Args:
        mask: ``[B, S]`` bool, True where the policy sampled the token.
        sequence_ids: ``[M]`` int64 in [0, B), the sequence of each turn; turns lie in the order of their sequences.
        turn_ids: ``[M]`` int64, the place of each turn in its sequence.
        starts: ``[M]`` int64, the position of each turn's first token.
        response_mask: ``[M, T]`` bool, True where a turn has a token; T is the longest turn's length.
    """

    mask: Tensor
    sequence_ids: Tensor
    turn_ids: Tensor
    starts: Tensor
    response_mask: Tensor

    def tokens(self, values: Tensor) -> Tensor:
        """``[B, S]`` to ``[M, T]``: the sampled tokens turn by turn, exactly 0 elsewhere, whatever stood there."""
        check_shape("SequenceTurns.tokens", "values", values, tuple(self.mask.shape))
        return _moved(values, self.mask, self.response_mask)

    def first(self, values: Tensor) -> Tensor:
        """``[B, S]`` to ``[M]``: the value at each turn's first token."""
        check_shape("SequenceTurns.first", "values", values, tuple(self.mask.shape))
        return values[self.sequence_ids, self.starts]


def turns_from_mask(mask: Tensor) -> SequenceTurns:
    """Find the turns of padded sequences: each run of sampled tokens is one.

    Two turns with no token of the environment between them are one run, and so one turn. A sequence without a sampled
    token has no turn.

    Args:
        mask: ``[B, S]`` bool, True where the policy sampled the token: neither prompt, nor what a tool or the
            environment said, nor padding.

    Returns:
        The turns. ``to_sequences(turns.response_mask, turns)`` is ``mask`` again.

    Raises:
        TypeError: the mask is no bool tensor.
        ValueError: it has another number of axes, or no True entry.

    >>> turns = turns_from_mask(torch.tensor([[True, True, False, True], [False, True, False, False]]))
    >>> turns.sequence_ids.tolist(), turns.turn_ids.tolist(), turns.response_mask.sum(1).tolist()
    ([0, 0, 1], [0, 1, 0], [2, 1, 1])
    """
    where = "turns_from_mask"
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{where}: mask must be a bool tensor, got {kind}; call .bool()")
    if mask.ndim != 2:
        raise ValueError(f"{where}: mask must be [B, S], got {list(mask.shape)}; give one row per trajectory")
    if not bool(mask.any()):
        raise ValueError(f"{where}: mask must have a sampled token, got none in {list(mask.shape)}; check its polarity")
    begins = mask.clone()
    begins[:, 1:] &= ~mask[:, :-1]
    sequence, start = begins.nonzero(as_tuple=True)
    counts = torch.bincount(sequence, minlength=mask.shape[0])
    turn = torch.arange(len(sequence), device=mask.device) - (counts.cumsum(0) - counts)[sequence]
    lengths = torch.bincount(begins.flatten().cumsum(0)[mask.flatten()] - 1)
    columns = torch.arange(int(lengths.max()), device=mask.device)
    return SequenceTurns(mask, sequence, turn, start, columns[None] < lengths[:, None])


def to_sequences(credit: Credit | Tensor, turns: SequenceTurns) -> Tensor:
    """Lay turns out as sequences again: the inverse of :func:`turns_from_mask`.

    Args:
        credit: a Credit, whose advantages are laid out; or ``[M, T]``, a value per token; or ``[M]``, one per turn,
            which all its tokens get.
        turns: where the turns lie.

    Returns:
        ``[B, S]`` in the dtype of what was given, exactly 0 (False) where no token was sampled.

    Raises:
        TypeError: neither a Credit nor a tensor.
        ValueError: of another shape.

    >>> turns = turns_from_mask(torch.tensor([[True, True, False, True]]))
    >>> to_sequences(torch.tensor([0.5, -1.0]), turns).tolist()
    [[0.5, 0.5, 0.0, -1.0]]
    """
    values = credit.advantages if isinstance(credit, Credit) else credit
    shape = tuple(turns.response_mask.shape)
    if isinstance(values, Tensor) and values.ndim == 1:
        check_shape("to_sequences", "credit", values, shape[:1])
        values = values[:, None].expand(shape)
    check_shape("to_sequences", "credit", values, shape)
    return _moved(values, turns.response_mask, turns.mask)


def sequence_inputs(
    response_mask: Tensor,
    rewards: Tensor,
    group_ids: Tensor,
    student_logprobs: Tensor,
    *,
    successes: Tensor | None = None,
    **signals: Tensor,
) -> tuple[CreditInputs, SequenceTurns]:
    """The batch that credit methods read, from padded sequences: one trajectory a row, whole groups at a time.

    Args:
        response_mask: ``[B, S]`` bool, see :func:`turns_from_mask`; a sampled token in every row.
        rewards: ``[B]`` float, the return of each trajectory.
        group_ids: ``[B]`` int64, the group (task) of each trajectory.
        student_logprobs: ``[B, S]`` float, log-probs of the tokens at their own place, nats.
        successes: ``[B]`` float in [0, 1], success of each trajectory; may be left out where every reward is 0 or 1.
        signals: others by name, such as ``teacher_logprobs``: ``[B, S]`` for one of each token; ``[M]``, in the order
            of the turns, or ``[B, S]``, read at each turn's first token, for one of each turn; ``[B]`` for one of each
            trajectory.

    Returns:
        The batch, and where its turns lie: ``to_sequences(method(inputs), turns)`` are advantages ``[B, S]``.

    Raises:
        TypeError, ValueError: a row has no sampled token, successes are left out and a reward is neither 0 nor 1, a
            signal is unknown or no tensor, or :class:`CreditInputs` refuses the batch.
    """
    turns = turns_from_mask(response_mask)
    empty = ~response_mask.any(1)
    if bool(empty.any()):
        raise ValueError(
            f"sequence_inputs: response_mask must have a sampled token in every row, got none in row "
            f"{int(empty.nonzero()[0, 0])}; leave the row out, its reward cannot be credited"
        )
    extras: dict[str, Any] = {name: _by_turn(get_signal(name), value, turns) for name, value in signals.items()}
    named = {name: extras.pop(name) for name in list(extras) if name in CreditInputs.__dataclass_fields__}
    inputs = CreditInputs(
        response_mask=turns.response_mask,
        trajectory_ids=turns.sequence_ids,
        turn_ids=turns.turn_ids,
        group_ids=group_ids,
        rewards=rewards,
        successes=binary_successes(rewards) if successes is None else successes,
        student_logprobs=turns.tokens(student_logprobs),
        extras=extras,
        **named,
    )
    return inputs, turns


def sequence_credit(
    method: CreditMethod,
    response_mask: Tensor,
    rewards: Tensor,
    group_ids: Tensor,
    student_logprobs: Tensor,
    *,
    step: int | None = None,
    **signals: Tensor | None,
) -> tuple[Tensor, Credit]:
    """Advantages of padded sequences by a credit method, where some may have no reward.

    A row whose reward is NaN was not scored: it is in no group's baseline and its advantages are 0. Of such a row
    nothing is read.

    Args:
        method: what :func:`~turncredit.credit.get_credit` returns.
        response_mask, rewards, group_ids, student_logprobs: as in :func:`sequence_inputs`.
        step: updates done, for methods with a schedule.
        signals: as in :func:`sequence_inputs`, ``successes`` among them, each ``[B, S]`` or ``[B]``; None where one was
            not given.

    Returns:
        ``[B, S]`` advantages, and the Credit of the scored rows' turns.

    Raises:
        TypeError, ValueError: as :func:`sequence_inputs` and the method; or no row has a reward.
    """
    where, scored = "sequence_credit", ~rewards.isnan()
    if not bool(scored.any()):
        raise ValueError(f"{where}: rewards must be given for some row, got NaN for all; check what scores them")
    given = {name: value for name, value in signals.items() if value is not None}
    for name, value in given.items():
        if not isinstance(value, Tensor) or value.shape not in (response_mask.shape, rewards.shape):
            got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"{where}: {name} must be a tensor [B] or [B, S] of {list(response_mask.shape)}, got {got}; lay turns "
                "out with to_sequences"
            )
    own = {name: value[scored] for name, value in given.items()}
    rows = (response_mask, rewards, group_ids, student_logprobs)
    inputs, turns = sequence_inputs(*(value[scored] for value in rows), **own)
    credit = method(inputs, step=step)
    advantages = torch.zeros(response_mask.shape, dtype=credit.advantages.dtype, device=response_mask.device)
    advantages[scored] = to_sequences(credit, turns)
    return advantages, credit


def binary_successes(rewards: Tensor) -> Tensor:
    """Rewards that are successes: each is 0 or 1.

    Raises:
        ValueError: one is something else, so that it does not say what a success is.

    >>> binary_successes(torch.tensor([1.0, 0.0])).tolist()
    [1.0, 0.0]
    """
    other = (rewards != 0) & (rewards != 1)
    if bool(other.any()):
        raise ValueError(
            f"sequence_inputs: successes must be given where rewards are not all 0 or 1, got a reward of "
            f"{float(rewards[other][0]):g}; pass the success flag of each trajectory, such as (rewards >= 1).float()"
        )
    return rewards


def _by_turn(signal: Signal, value: Tensor, turns: SequenceTurns) -> Tensor:
    """A signal of sequences as :class:`CreditInputs` has it; what has another shape is left for it to refuse."""
    if not isinstance(value, Tensor) or not signal.axes:
        raise TypeError(
            f"sequence_inputs: {signal.name} must be a tensor that a batch of sequences can hold, got "
            f"{type(value).__name__}; build CreditInputs yourself with turns_from_mask"
        )
    if signal.axes == "MT":
        return turns.tokens(value)
    return turns.first(value) if signal.axes == "M" and value.ndim == 2 else value


def _moved(values: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """The True entries of one mask at those of another, which has as many in the same order; 0 elsewhere."""
    return values.new_zeros(target.shape).masked_scatter(target, values[source])
