"""What posterior credit reads of a batch, without its tokens: small enough to be passed between processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..align import rectify
from ..checks import suggest
from ..groups import faded
from ..inputs import CreditInputs
from ..segments import wide
from ..tokens import spread

USES = {"teacher": "teacher_logprobs", "anchors": "anchor_ids", "sources": "correspondence"}


@dataclass(frozen=True)
class Facts:
    """A batch of whole groups, a number a turn; floats are wide.

    Args:
        owner, place: ``[M]`` int64, trajectory and place of each turn.
        tokens: ``[M]`` int64, n_k.
        group: ``[N]`` int64 in [0, P).
        rewards: ``[N]`` returns, environment's units, faded.
        earned: ``[M]`` rewards of turns before the last, in the same units, which earns what they leave; 0 without.
        anchors: ``[M]`` int64, equal for turns of one group that saw the same observation; all different without.
        gaps: ``[M]`` g_k, nats; 0 without a teacher.
    """

    owner: Tensor
    place: Tensor
    tokens: Tensor
    group: Tensor
    rewards: Tensor
    earned: Tensor
    anchors: Tensor
    gaps: Tensor


def facts_of(inputs: CreditInputs, *, use: str, outcome_discount: float) -> Facts:
    """The facts of a batch; see :func:`~turncredit.credit.posterior.posterior` for the options.

    Raises:
        TypeError, ValueError: an option is not what it must be, or what ``use`` names is missing.
    """
    parts, owner, counts = words(use), inputs.trajectory_ids, inputs.turn_counts
    for name in (USES[part] for part in parts):
        if inputs.signal(name) is None:
            raise ValueError(f"facts_of: inputs.{name} must be given, got None; pass it, or leave it out of use")
    dtype = wide(owner.device)
    rewards = faded(inputs.rewards.detach(), counts, outcome_discount).to(dtype)
    earned = torch.zeros_like(owner, dtype=dtype)
    if inputs.turn_rewards is not None:
        earned = faded(inputs.turn_rewards.detach(), counts[owner], outcome_discount).to(dtype)
    anchors, gaps = torch.arange(inputs.num_rows, device=owner.device), torch.zeros_like(earned)
    if inputs.anchor_ids is not None and "anchors" in parts:
        anchors = torch.unique(inputs.anchor_ids, return_inverse=True)[1]
    if "teacher" in parts:
        gaps = _rectified_gaps(inputs) if "sources" in parts else inputs.masked_sums
    return Facts(owner, inputs.turn_ids, inputs.token_counts, inputs.group_index, rewards, earned, anchors, gaps)


def joined(parts: Sequence[Facts]) -> Facts:
    """Several batches as one, in their order; trajectories and groups are numbered on."""
    trajectories, groups = 0, 0
    owner, group = [], []
    for part in parts:
        owner.append(part.owner + trajectories)
        group.append(part.group + groups)
        trajectories, groups = trajectories + part.group.numel(), groups + int(part.group.max()) + 1
    rest = (
        torch.cat([getattr(part, name) for part in parts])
        for name in ("place", "tokens", "rewards", "earned", "anchors", "gaps")
    )
    place, tokens, *others = rest
    return Facts(torch.cat(owner), place, tokens, torch.cat(group), *others)


def words(use: str) -> list[str]:
    """The words of ``use``.

    Raises:
        TypeError: it is no text.
        ValueError: an unknown word, or sources without a teacher.
    """
    where = "posterior"
    if not isinstance(use, str):
        raise TypeError(f"{where}: use must be text, got {use!r}; write 'teacher+anchors'")
    found = use.split("+") if use else []
    for word in found:
        if word not in USES:
            raise ValueError(
                f"{where}: use must be made of {', '.join(USES)}, joined by +, got {word!r}; "
                + suggest(word, list(USES), "an empty text uses none")
            )
    if "sources" in found and "teacher" not in found:
        raise ValueError(
            f"{where}: use must hold 'teacher' where it holds 'sources', which correct the teacher's scores, got "
            f"{use!r}; write 'teacher+{use}'"
        )
    return found


def _rectified_gaps(inputs: CreditInputs) -> Tensor:
    """``[M]`` summed gaps of the teacher, rectified by the scores of corresponding turns of siblings.

    Raises:
        ValueError: the correspondence has no scored sources.
    """
    found = inputs.correspondence
    assert found is not None  # required by the registration
    assert inputs.teacher_logprobs is not None
    if found.sources is None or found.cross_logprobs is None:
        raise ValueError(
            "posterior: inputs.correspondence.sources and cross_logprobs must be given where use holds 'sources', got "
            "None; attach them with correspondence.with_scores(select_sources(correspondence), scores)"
        )
    better = rectify(inputs.teacher_logprobs, found.sources, found.cross_logprobs).logprobs
    gaps = (
        better.to(inputs.dtype) - inputs.student_logprobs.detach()
    )  # not in place: without sources it is the teacher's
    return spread(gaps, inputs.response_mask).sum(-1).to(inputs.masked_sums.dtype)
