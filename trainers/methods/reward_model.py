"""iStar's implicit reward model: a copy of the policy that learns which of two rollouts of a task did better."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...credit.learned import preferences
from ...credit.learned.istar import REFERENCES
from ...rollout.options import check_options, number
from ...rollout.scoring import PolicyScorer, score_responses
from ..attached import trainable
from ..batch import TurnBatch
from ..distributed import without_buffer_broadcasts, zero_stage
from ..optimization import accumulate_gradients, apply_gradients, learning_rate
from ..rows import TrainRows
from ..terms import LossTerm
from .method import Method
from .providers import provides
from .registry import register_method
from .run import Run

NAME = "reward_model"

PREFERENCE = LossTerm(
    "preference",
    average="token-mean",
    rows="all",
    reads=("preference",),
    function=lambda batch: batch.signals["preference"] * batch.logprobs,
)
"""DPO's gradient: every token of a trajectory by the derivative of the loss with respect to its summed log-prob."""


class RewardModel:
    """The copy and its optimiser, made when they are first needed; alike on every process.

    Args:
        lr_scale: its learning rate in those of the run.

    Attributes:
        ahead: whether it has learned from an update that is not finished; no checkpoint is written meanwhile.
    """

    def __init__(self, lr_scale: float = 1.0):
        self.lr_scale = lr_scale
        self.ahead = False
        self.scorer: Any = None
        self.optimizer: torch.optim.AdamW | None = None
        self.waiting: Mapping[str, Tensor] = {}

    def bind(self, run: Run) -> None:
        """Copy the policy, as it is now, unless that was done.

        Raises:
            ValueError: under DeepSpeed, which would neither copy nor drive a second model.
        """
        if zero_stage(run.accelerator):
            raise ValueError(
                f"{run.method.name}: accelerator must not use DeepSpeed, got ZeRO-{zero_stage(run.accelerator)}: the "
                "reward model is a second model that is trained; use plain processes, or choose another method"
            )
        if self.scorer is not None:
            return
        bare = PolicyScorer(copy.deepcopy(run.policy.model))
        policy: Any = run.accelerator.unwrap_model(run.policy.scorer)
        bare.branches = policy.branches
        self.scorer = without_buffer_broadcasts(run.accelerator.prepare_model(bare))
        self.optimizer = torch.optim.AdamW(trainable(bare), lr=run.config.learning_rate, weight_decay=0.0)
        if self.waiting:
            self._take(self.waiting)
            self.waiting = {}

    def score(self, run: Run) -> Tensor:
        """``[M, T]`` log-probs of the batch's tokens under it, nats."""
        scores = score_responses(
            run.accelerator.unwrap_model(self.scorer),
            run.batch.prompts,
            run.batch.responses,
            pad_token_id=run.tokenizer.pad_token_id,  # pyright: ignore[reportArgumentType]
            temperature=run.config.sampling.temperature or 1.0,
            max_tokens=run.config.tokens_per_pass(run.accelerator.device.type),
            share_prefixes=run.config.share_prefixes,
        )
        return scores.logprobs

    def learn(self, run: Run, gradient: Tensor, pairs: int) -> None:
        """One step of DPO; collective.

        Args:
            run: the run.
            gradient: ``[N]`` of the summed loss, see `preferences`.
            pairs: of this process.
        """
        batch = run.batch
        totals = torch.tensor(run.all_gather([[pairs, int(batch.response_mask.sum())]])).sum(0).tolist()
        if not totals[0]:
            return
        self.ahead = True
        weights = gradient[batch.trajectory_ids] * totals[1] / totals[0] if batch.turns else torch.zeros(0)
        zeros = torch.zeros(batch.response_mask.shape)
        rows = TrainRows(
            batch.prompts,
            batch.responses,
            batch.response_mask,
            batch.trajectory_ids,
            torch.ones(len(batch.turns), dtype=torch.bool),
            zeros,
            zeros,
            {"preference": weights.float()},
        )
        pad: int = run.tokenizer.pad_token_id  # pyright: ignore[reportAssignmentType]
        accumulate_gradients(run.accelerator, self.scorer, rows, run.config, pad_token_id=pad, terms=[PREFERENCE])
        lr = self.lr_scale * learning_rate(run.step, run.config)
        norm = apply_gradients(run.accelerator, self.scorer, self.optimizer, lr, run.config.max_grad_norm)
        run.log("reward_model/grad_norm", norm, reduce="max")

    def finished(self) -> None:
        """The update that it learned from is finished."""
        self.ahead = False

    def reset(self) -> None:
        """Begin anew with the policy as it will be."""
        self.scorer, self.optimizer, self.waiting, self.ahead = None, None, {}, False

    def state_dict(self) -> dict[str, Tensor]:
        """Trainable weights and AdamW's moments, on the CPU; empty before the first update."""
        if self.scorer is None or self.optimizer is None:
            return dict(self.waiting)
        found = {}
        for name, parameter in self._named():
            found[f"weights.{name}"] = parameter
            for key, value in self.optimizer.state.get(parameter, {}).items():
                found[f"{key}.{name}"] = value
        return {name: value.detach().cpu().clone() for name, value in found.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` returned, now or once there is a model."""
        if self.scorer is None:
            self.waiting = dict(state)
        elif state:
            self._take(state)
        else:
            self.reset()

    def _named(self) -> list[tuple[str, torch.nn.Parameter]]:
        module = getattr(self.scorer, "module", self.scorer).model
        return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]

    @torch.no_grad()
    def _take(self, state: Mapping[str, Tensor]) -> None:
        assert self.optimizer is not None
        moments = [
            key for key in ("step", "exp_avg", "exp_avg_sq") if any(name.startswith(f"{key}.") for name in state)
        ]
        for name, parameter in self._named():
            parameter.copy_(state[f"weights.{name}"])
            kept = {key: state[f"{key}.{name}"].clone() for key in moments if f"{key}.{name}" in state}
            self.optimizer.state[parameter] = {
                key: value if key == "step" else value.to(parameter.device) for key, value in kept.items()
            }
            if not kept:
                del self.optimizer.state[parameter]


def _of(run: Run) -> RewardModel:
    part = run.method.state.get(NAME)
    if not isinstance(part, RewardModel):
        raise ValueError(
            f"{run.method.name}: state must hold a RewardModel as {NAME!r}, from which reward_model_logprobs are read, "
            f"got {sorted(run.method.state)}; give Method(state={{{NAME!r}: RewardModel()}})"
        )
    return part


def _start(run: Run, **options: Any) -> None:
    _of(run).bind(run)


@provides("reward_model_logprobs", start=_start)
def reward_model_logprobs(
    batch: TurnBatch, run: Run, *, beta: float = 0.05, reference: str = "rollout", outcome_discount: float = 1.0
) -> Tensor:
    """``[M, T]`` float32: the sampled tokens under the reward model, which then learns from this batch's outcomes.

    It has not seen a rollout when it scores it.

    Args:
        batch: M rows.
        run: the run.
        beta, reference, outcome_discount: of `turncredit.credit.learned.istar`.
    """
    model = _of(run)
    model.bind(run)
    logprobs = model.score(run)
    base = run.student_logprobs if REFERENCES[reference] == "student_logprobs" else run.signal(REFERENCES[reference])
    counts = torch.bincount(batch.trajectory_ids, minlength=len(batch.trajectories))
    margins = torch.zeros(len(batch.trajectories), dtype=torch.float64)
    margins.index_add_(0, batch.trajectory_ids, (logprobs - base).masked_fill(~batch.response_mask, 0).double().sum(1))
    rewards = torch.tensor([t.reward for t in batch.trajectories], dtype=torch.float64)
    found = preferences(margins, rewards * outcome_discount**counts, batch.group_ids, beta=beta)
    run.log("reward_model/loss", found.loss / max(found.pairs, 1), count=found.pairs)
    run.log("reward_model/accuracy", found.right / max(found.pairs, 1), count=found.pairs)
    run.log("reward_model/pairs", found.pairs, reduce="sum")
    model.learn(run, found.gradient, found.pairs)
    return logprobs


@register_method("istar")
def istar(*, reward_lr_scale: float = 1.0) -> Method:
    """Implicit turn rewards of a reward model that is trained beside the policy. Source: iStar (2509.19199).

    Args:
        reward_lr_scale: the reward model's learning rate in those of the run.
    """
    rules = {"reward_lr_scale": number(above=True)}
    checked = check_options("istar", {"reward_lr_scale": reward_lr_scale}, rules)
    return Method("istar", state={NAME: RewardModel(checked["reward_lr_scale"])})
