"""Between rollouts and the update: score every sampled token, give credit to every turn."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..credit import Credit, CreditInputs, CreditMethod
from ..credit.signals import list_signals
from .batch import TurnBatch
from .methods.checks import check_signal
from .methods.method import Method
from .methods.penalty import penalised
from .methods.run import Run
from .rows import TrainRows


@dataclass(frozen=True)
class PhaseResult:
    """Rows to train on, the credit with its inputs (None without a usable turn), metrics of this process.

    Metrics say what they were taken over (:mod:`turncredit.credit.metrics`), so that processes can be joined. `method`
    is the credit function with the options that it ran with, those that all processes settled included.
    """

    rows: TrainRows
    inputs: CreditInputs | None
    credit: Credit | None
    metrics: dict[str, float]
    method: CreditMethod | None = None


@dataclass(frozen=True)
class CreditPhase:
    """Turns one process's trajectories into rows with advantages.

    Args:
        run: the method's door to the model.
        method: what to compute.
        reads: signals that the terms of the loss read.
        recompute: score the sampled tokens again instead of trusting the sampler's log-probs.
    """

    run: Run
    method: Method
    reads: frozenset[str]
    recompute: bool

    def __call__(self, batch: TurnBatch, step: int) -> PhaseResult:
        """Score and credit one batch; `step` is the number of updates done. Every process calls it."""
        run, method = self.run, self.method
        run.begin(batch, step)
        if self.recompute:
            self._rescore(batch)
        if method.prepare is not None:
            made = method.prepare(batch, run)  # what it leaves out has to stand in the credit's details
            run.give("prepare", {} if made is None else made, (), method.gives)
        for name in sorted(method.needs | self.reads):
            if name not in method.gives:
                run.signal(name)
        credit, inputs, advantages, settled = self._credit(batch, step)
        groups, index = torch.unique(batch.group_ids, return_inverse=True)
        moved = torch.zeros(len(groups), dtype=torch.bool)
        moved[index[batch.trajectory_ids[(advantages != 0).any(1)]]] = True
        run.log("credit/groups", len(groups), reduce="sum")
        run.log("credit/groups_without_advantage", int((~moved).sum()), reduce="sum")
        slots = [t.group_id * run.config.num_generations + t.rollout_index for t in batch.trajectories]
        rows = TrainRows(
            batch.prompts,
            batch.responses,
            batch.response_mask,
            torch.tensor(slots, dtype=torch.long)[batch.trajectory_ids],
            moved[index[batch.trajectory_ids]],
            advantages,
            run.student_logprobs,
            {name: self._read(name, credit) for name in sorted(self.reads)},
        )
        return PhaseResult(rows, inputs, credit, run.metrics, settled)

    def _rescore(self, batch: TurnBatch) -> None:
        run = self.run
        run.student_logprobs = run.own_scores().logprobs
        if batch.turns:
            drift = (run.student_logprobs - batch.sampled_logprobs).abs().masked_select(batch.response_mask)
            run.log("train/sampling_drift", float(drift.mean()), count=drift.numel())

    def _credit(
        self, batch: TurnBatch, step: int
    ) -> tuple[Credit | None, CreditInputs | None, Tensor, CreditMethod | None]:
        """Credit with its inputs, None without a usable turn; ``[M, T]`` float32 advantages with the residual; what
        computed it."""
        run, method = self.run, self.method
        advantages = torch.zeros(batch.response_mask.shape)
        credit_method = method.credit_method
        if credit_method is None:
            return None, None, advantages, None
        inputs = self._inputs(batch) if batch.turns else None
        if method.settle is not None:
            credit_method = method.settle(credit_method, inputs, run)
        if inputs is None:
            return None, None, advantages, None
        credit = credit_method(inputs, step=step)
        run.metrics |= {f"credit/{name}": value for name, value in credit.metrics.items()}
        advantages, size = penalised(credit.advantages.float(), batch, credit_method, method.invalid_penalty)
        run.metrics |= size
        return credit, inputs, advantages, credit_method

    def _read(self, name: str, credit: Credit | None) -> Tensor:
        """A signal for the loss: of a provider or `prepare`, else out of the credit's details."""
        if self.run.signals.get(name) is not None:
            return self.run.signals[name]
        batch, details = self.run.batch, {} if credit is None else credit.details
        if not batch.turns:
            return torch.zeros(batch.response_mask.shape)
        if name not in details:
            raise ValueError(
                f"{self.method.name}: details of the credit must hold {name!r}, which a term of the loss reads, got "
                f"{sorted(details)}; name there, or let prepare return, what the method gives"
            )
        check_signal(f"{self.method.name}: details of the credit", name, details[name], batch)
        return details[name].float()

    def _inputs(self, batch: TurnBatch) -> CreditInputs:
        known, own = list_signals(), {field.name for field in fields(CreditInputs)}
        found = {name: self.run.signals.get(name) for name in self.method.needs if name in known}
        return CreditInputs(
            response_mask=batch.response_mask,
            trajectory_ids=batch.trajectory_ids,
            turn_ids=batch.turn_ids,
            group_ids=batch.group_ids,
            rewards=torch.tensor([t.reward for t in batch.trajectories], dtype=torch.float32),
            successes=torch.tensor([t.success for t in batch.trajectories], dtype=torch.float32),
            student_logprobs=self.run.student_logprobs,
            **{name: value for name, value in found.items() if name in own},
            extras={name: value for name, value in found.items() if name not in own},
        )
