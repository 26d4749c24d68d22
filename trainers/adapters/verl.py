"""Turn-level credit for a batch as verl has it: tensors and arrays by name, one row a trajectory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...credit import get_credit
from ...credit.checks import suggest
from ...credit.sequences import sequence_credit
from ..methods.tryout import try_options
from .plan import check_sources

_WHERE = "verl_credit"
REWARDS = ("token_level_rewards", "token_level_scores")


def verl_credit(
    data: Any,
    credit: str = "agent_opsd",
    *,
    options: Mapping[str, Any] | None = None,
    signals: Mapping[str, str] | None = None,
    successes: str | Callable[[Tensor], Tensor] | None = None,
    mask: str = "response_mask",
    step: int | None = None,
) -> Any:
    """Write a method's ``advantages`` and ``returns`` into a batch, in place of verl's ``compute_advantage``.

    Each run of ones in the response mask is a turn, a row's return is the sum of its token-level rewards, ``uid`` names
    its group and ``old_log_probs`` are the student's. The batch must hold whole groups, as verl's driver does.

    Args:
        data: a ``DataProto``, or any object with ``batch`` (name -> tensor ``[B, ..]``) and ``non_tensor_batch`` (name
            -> array of B); or one mapping with both.
        credit: a name of ``turncredit.credit.list_credits()``.
        options: of the method.
        signals: what the method reads -> the name it has in the batch, such as ``{"teacher_logprobs":
            "teacher_log_probs"}``; ``[B, S]`` for one of each token or turn (at its first token), ``[B]`` for one of
            each trajectory.
        successes: a name in the batch of ``[B]`` in [0, 1], or a function from returns ``[B]`` to it; may be left out
            where every return is 0 or 1.
        mask: the mask of sampled tokens; of a wider one (prompt and response) the last S columns are read.
        step: updates done, for methods with a schedule.

    Returns:
        ``data``, with ``advantages`` and ``returns`` ``[B, S]`` float32 alike, 0 outside the mask; ``returns`` is for
        verl's bookkeeping, there is no critic.

    Raises:
        KeyError: the batch lacks something.
        TypeError, ValueError: an option, signal or tensor is wrong, or it is unclear which mask holds the turns.
    """
    method, names = get_credit(credit, **(options or {})), dict(signals or {})
    check_sources(_WHERE, method, set(names))
    try_options(method, 4)
    sampled = _mask(data, mask)
    advantages, _ = sequence_credit(
        method,
        sampled,
        _returns(data),
        _groups(_get(data, "uid"), sampled.device),
        _get(data, "old_log_probs"),
        step=step,
        successes=_successes(data, successes),
        **{name: torch.as_tensor(_get(data, key), device=sampled.device) for name, key in names.items()},
    )
    target: Any = data if isinstance(data, Mapping) else data.batch
    target["advantages"] = advantages.float()
    target["returns"] = advantages.float().clone()
    return data


def _places(data: Any) -> list[Any]:
    """What holds values by name: the tensors first."""
    if isinstance(data, Mapping):
        return [data]
    if not hasattr(data, "batch") or not hasattr(data, "non_tensor_batch"):
        raise TypeError(
            f"{_WHERE}: data must be a mapping or have batch and non_tensor_batch, got {type(data).__name__}; pass a "
            "DataProto"
        )
    return [data.batch, data.non_tensor_batch]


def _get(data: Any, name: str) -> Any:
    """A value of the batch.

    Raises:
        KeyError: there is none of that name.
    """
    for place in _places(data):
        if name in list(place.keys()):
            return place[name]
    known = _names(data)
    raise KeyError(
        f"{_WHERE}: data must hold {name!r}, got {', '.join(sorted(known))}; "
        + suggest(name, known, "compute it before the advantages")
    )


def _names(data: Any) -> list[str]:
    """Everything that the batch holds; a TensorDict knows ``in`` of its keys alone."""
    return [name for place in _places(data) for name in list(place.keys())]


def _mask(data: Any, name: str) -> Tensor:
    """``[B, S]`` bool, the sampled tokens.

    Raises:
        ValueError: another mask of the batch would give other turns, or its values are not 0 and 1.
    """
    width = _get(data, "old_log_probs").shape[-1]
    found = _get(data, name)[:, -width:]
    if not bool(((found == 0) | (found == 1)).all()):
        raise ValueError(f"{_WHERE}: {name} must hold 0 and 1, got other values; pass the mask of sampled tokens")
    sampled = found.bool()
    other = _get(data, "loss_mask")[:, -width:].bool() if "loss_mask" in _names(data) else sampled
    if name == "response_mask" and not torch.equal(other, sampled):
        raise ValueError(
            f"{_WHERE}: mask must be named where loss_mask and response_mask differ, got both; pass the one that is 0 "
            'on what the environment said, probably mask="loss_mask"'
        )
    return sampled


def _returns(data: Any) -> Tensor:
    """``[B]`` return of each row: its token-level rewards, or scores where no penalty was taken off."""
    name = next((name for name in REWARDS if name in _names(data)), REWARDS[0])
    rewards = _get(data, name)
    if not bool(rewards.isfinite().all()):
        raise ValueError(f"{_WHERE}: {name} must be finite, got {rewards[~rewards.isfinite()][0]:g}; leave the row out")
    return rewards.double().sum(-1).to(rewards.dtype)


def _groups(uids: Any, device: torch.device) -> Tensor:
    """``[B]`` int64, equal where the uid is."""
    if isinstance(uids, Tensor):
        return torch.unique(uids, return_inverse=True)[1]
    _, index = np.unique(np.asarray([str(uid) for uid in uids]), return_inverse=True)
    return torch.as_tensor(index, dtype=torch.int64, device=device)


def _successes(data: Any, successes: str | Callable[[Tensor], Tensor] | None) -> Tensor | None:
    if successes is None:
        return None
    if callable(successes):
        return successes(_returns(data))
    values = _get(data, successes)
    device = _get(data, "old_log_probs").device
    values = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values, dtype=np.float32))
    return values.to(device).float()
