"""The rows of one optimiser step, and how they are cut into micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..rollout.packing import Pack, plan_packs
from ..rollout.scoring import PolicyScorer
from .config import GRPOConfig


@dataclass(frozen=True)
class TrainRows:
    """The rows of one optimiser step on this process; may be none at all.

    Args:
        prompts, responses: M token-id sequences each.
        response_mask: ``[M, T]`` bool.
        slot_ids: ``[M]`` int64, the trajectory's place in the whole update, over all processes.
        active: ``[M]`` bool, False for rows of groups without any advantage.
        advantages, old_logprobs: ``[M, T]`` float32.
        signals: name -> ``[M]``, ``[M, T]`` or ``[M, T, ...]``, what the terms of the loss read besides, such as
            ``ref_logprobs`` and ``teacher_logprobs``.

    Raises:
        ValueError: a signal of another shape.
    """

    prompts: list[tuple[int, ...]]
    responses: list[tuple[int, ...]]
    response_mask: Tensor
    slot_ids: Tensor
    active: Tensor
    advantages: Tensor
    old_logprobs: Tensor
    signals: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = self.response_mask.shape
        for name, value in self.signals.items():
            rest = value.shape[1:2] if shape[0] else ()  # without a row there is no width to speak of
            if value.shape[:1] != shape[:1] or rest not in ((), shape[1:]):
                raise ValueError(
                    f"TrainRows: signals[{name!r}] must be [M] or [M, T] = {list(shape)}, got {list(value.shape)}; "
                    "give one value per row or per response token"
                )

    @classmethod
    def beside(
        cls,
        prompts: Sequence[tuple[int, ...]],
        responses: Sequence[tuple[int, ...]],
        slot_ids: Sequence[int],
        signals: Mapping[str, Tensor],
    ) -> TrainRows:
        """Rows of one's own for `turncredit.trainers.Run.add_rows`: all active, without advantages.

        Args:
            prompts, responses: M token-id sequences each.
            slot_ids: M places in the update: ``trajectory.group_id * num_generations + trajectory.rollout_index``.
            signals: see the class.

        Raises:
            ValueError: an empty prompt or response, or not as many of each.
        """
        if not len(prompts) == len(responses) == len(slot_ids) or not all(map(len, (*prompts, *responses))):
            raise ValueError(
                "TrainRows.beside: prompts, responses and slot_ids must be as many, and no prompt or response empty, "
                f"got {len(prompts)}, {len(responses)} and {len(slot_ids)}; leave empty ones out"
            )
        lengths = torch.tensor([len(response) for response in responses], dtype=torch.long)
        mask = torch.arange(int(lengths.max()) if len(lengths) else 0)[None] < lengths[:, None]
        active, nothing = torch.ones(len(lengths), dtype=torch.bool), torch.zeros(mask.shape)
        slots = torch.tensor(list(slot_ids), dtype=torch.long)
        return cls(list(prompts), list(responses), mask, slots, active, nothing, nothing, signals)

    def select(self, rows: Tensor) -> TrainRows:
        """The rows of an index tensor, in its order."""
        index = rows.tolist()
        return TrainRows(
            [self.prompts[i] for i in index],
            [self.responses[i] for i in index],
            self.response_mask[rows],
            self.slot_ids[rows],
            self.active[rows],
            self.advantages[rows],
            self.old_logprobs[rows],
            {name: value[rows] for name, value in self.signals.items()},
        )


@dataclass
class MicroBatchLimits:
    """How large a training micro-batch may be; halved for the rest of a run when memory runs out.

    Args:
        tokens: sequences x longest sequence.
        rows: rows at most; None for no such limit.
        share: whether rows share what they have in common.
    """

    tokens: int
    rows: int | None = None
    share: bool = True

    @classmethod
    def of(cls, config: GRPOConfig, device: str = "cpu") -> MicroBatchLimits:
        """The limits that a configuration asks for on a type of device."""
        return cls(config.tokens_per_pass(device), config.per_device_train_batch_size, config.share_prefixes)

    def plan(self, rows: TrainRows, scorer: PolicyScorer) -> list[Pack]:
        """Every micro-batch, the longest sequences first; see `plan_packs`."""
        return plan_packs(
            rows.prompts,
            rows.responses,
            self.tokens,
            branches=self.share and scorer.settle_branches(),
            attention_cost=scorer.attention_cost,
            max_rows=self.rows,
            share=self.share,
        )

    def halve(self, rows: int, branches: int) -> bool:
        """Make room, starting from micro-batches of so many rows and branches; False where they cannot be smaller."""
        if branches < 2:
            return False
        self.tokens = max(self.tokens // 2, 1)
        self.rows = -(-rows // 2)
        return True
