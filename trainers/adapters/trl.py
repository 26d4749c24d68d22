"""A mixin for TRL's GRPOTrainer: its rollouts and its loss, our advantages, one per token."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...credit.inputs import Credit
from ...credit.sequences import binary_successes, sequence_credit, to_sequences, turns_from_mask
from ...credit.signals import get_signal
from .plan import TEACHER, RolloutBatch, TurnCredit
from .privileged import privileged_logprobs, student_logprobs
from .refusals import check_trainer, check_version

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Scored:
    """What TRL hands to its reward functions on this process, and the rewards ``[N, F]`` of all processes."""

    rows: Sequence[dict[str, Any]]
    prompts: Sequence[Any]
    completions: Sequence[Any]
    rewards: Tensor


class TurnCreditMixin:
    """Stands before TRL's GRPOTrainer: ``class Trainer(TurnCreditMixin, GRPOTrainer): ...``

    TRL 1.16.0 computes one advantage a completion behind its rewards, and its loss takes ``[B, S]`` as well as ``[B]``.
    Here they are those of a credit method: a completion is a trajectory, each run of tokens that its tool mask marks as
    the model's is a turn, ``num_generations`` neighbours are a group. The student's log-probs are TRL's own
    ``old_per_token_logps`` where it has them, else one more forward pass. A completion that no reward function scored
    is in no baseline and its advantages are 0, as in TRL. Evaluation keeps TRL's advantages.

    Args:
        args, kwargs: those of GRPOTrainer.
        turn_credit: the credit method, and where its signals come from.

    Besides TRL's metrics it logs ``credit/<metric>`` of the method, ``credit/turns`` = turns / completions, both of
    those that were scored, ``credit/unscored`` = completions without a reward / completions, and with ``privileged``
    ``credit/informed`` = completions whose teacher read something / completions, of this process. In TRL's table of
    completions ``advantage`` is the mean over a completion's sampled tokens.

    Raises:
        ImportError: TRL is not installed.
        TypeError: ``turn_credit`` is none, or the class is no GRPOTrainer.
        ValueError: another version of TRL, or an option of TRL's under which turn credit would be lost or wrong
            (docs/trainers.md has the list).
    """

    model: Any

    def __init__(self, *args: Any, turn_credit: TurnCredit, **kwargs: Any) -> None:
        check_version()
        if not isinstance(turn_credit, TurnCredit):
            raise TypeError(
                f"TurnCreditMixin: turn_credit must be a TurnCredit, got {type(turn_credit).__name__}; pass "
                'TurnCredit("agent_opsd", ..)'
            )
        super().__init__(*args, **kwargs)
        check_trainer(self, turn_credit)
        self.turn_credit = turn_credit
        self._scored: _Scored | None = None
        self._told_single = False

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        parent: Any = super()
        rewards = parent._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._scored = _Scored(inputs, prompts, completions, rewards)
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        parent: Any = super()
        output = parent._generate_and_score_completions(inputs)
        scored, self._scored = self._scored, None
        if self.model.training:
            assert scored is not None
            output["advantages"] = _advantages(self, output, scored)
        return output


def _advantages(trainer: Any, output: dict[str, Any], scored: _Scored) -> Tensor:
    """``[B, S]`` advantages of this process's completions, by the credit of all processes' together."""
    plan: TurnCredit = trainer.turn_credit
    batch = _batch(trainer, output, scored)
    local = {name: _laid_out(name, make(batch), batch) for name, make in plan.signals.items()}
    if plan.privileged is not None:
        local[TEACHER] = privileged_logprobs(trainer, batch, plan.privileged)
    mask = _gathered(trainer, batch.turns.mask.int()).bool()
    rewards = _returns(trainer, scored.rewards)
    advantages, credit = sequence_credit(
        plan.method,
        mask,
        rewards,
        torch.arange(len(rewards), device=rewards.device) // trainer.num_generations,
        _gathered(trainer, batch.student_logprobs),
        step=trainer.state.global_step,
        successes=_successes(plan, scored.rewards, rewards),
        **{name: _gathered(trainer, value) for name, value in local.items()},
    )
    advantages = advantages.to(output["advantages"].dtype)
    _log(trainer, credit, advantages, mask, rewards)
    count, width = batch.turns.mask.shape
    return advantages[trainer.accelerator.process_index * count :][:count, :width].contiguous()


def _batch(trainer: Any, output: dict[str, Any], scored: _Scored) -> RolloutBatch:
    """What was sampled here; TRL's tool mask is 1 on padding and says nothing without the completion's.

    Raises:
        ValueError: a completion holds an image.
    """
    if "pixel_values" in output:
        raise ValueError("TurnCreditMixin: completions must be text, got images; train without turn credit")
    sampled = output["completion_mask"].bool()
    if "tool_mask" in output:
        sampled = sampled & output["tool_mask"].bool()
    return RolloutBatch(
        prompt_ids=output["prompt_ids"],
        prompt_mask=output["prompt_mask"],
        completion_ids=output["completion_ids"],
        completion_mask=output["completion_mask"],
        turns=turns_from_mask(sampled),
        student_logprobs=student_logprobs(trainer, output),
        rows=scored.rows,
        prompts=scored.prompts,
        completions=scored.completions,
        environments=trainer.environments,
    )


def _laid_out(name: str, value: Any, batch: RolloutBatch) -> Tensor:
    """A user's signal as ``[B, S]`` or ``[B]``, so that processes can be gathered.

    Raises:
        ValueError: no tensor of one of the shapes.
    """
    turns, shape = batch.turns, tuple(batch.turns.mask.shape)
    axes = {"MT": [shape], "M": [tuple(turns.starts.shape), shape], "N": [shape[:1]]}[get_signal(name).axes]
    if not isinstance(value, Tensor) or tuple(value.shape) not in axes:
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        known = " or ".join(str(list(shape)) for shape in axes)
        raise ValueError(
            f"TurnCredit: signals[{name!r}] must give a tensor {known}, got {got}; one value a token, turn (in the "
            "order of batch.turns) or completion, as the signal has it"
        )
    value = value.detach().to(turns.mask.device)
    return to_sequences(value, turns) if get_signal(name).axes == "M" and value.ndim == 1 else value


def _returns(trainer: Any, rewards: Tensor) -> Tensor:
    """``[N]`` weighted sum over reward functions as TRL takes it; NaN where no function scored the completion."""
    total = (rewards * trainer.reward_weights.to(rewards.device)).nansum(1)
    return total.masked_fill(rewards.isnan().all(1), torch.nan)


def _successes(plan: TurnCredit, rewards: Tensor, returns: Tensor) -> Tensor:
    """``[N]`` successes; those of unscored completions are not read."""
    if plan.successes is None:
        return binary_successes(returns.nan_to_num(0.0))
    found = plan.successes(rewards)
    if not isinstance(found, Tensor) or found.shape != returns.shape:
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(
            f"TurnCredit: successes must give a tensor [N] = {list(returns.shape)}, got {got}; return one of each row"
        )
    return found.to(returns)


def _gathered(trainer: Any, value: Tensor) -> Tensor:
    """``[B, ..]`` of every process, in the order of the processes; shorter completions are padded with 0."""
    if trainer.accelerator.num_processes == 1:
        return value
    padded = trainer.accelerator.pad_across_processes(value, dim=1) if value.ndim > 1 else value
    return trainer.accelerator.gather(padded.contiguous())


def _log(trainer: Any, credit: Credit, advantages: Tensor, mask: Tensor, rewards: Tensor) -> None:
    """Metrics of the method, and one advantage a completion for TRL's table."""
    scored = ~rewards.isnan()
    turns = len(credit.turn_weights) / int(scored.sum())
    metrics = {**credit.metrics, "turns": turns, "unscored": float((~scored).double().mean())}
    for name, value in metrics.items():
        trainer._metrics["train"][f"credit/{name}"].append(float(value))
    table = trainer._logs["advantages"]
    for _ in range(min(len(table), len(rewards))):
        table.pop()
    table.extend((advantages.sum(1) / mask.sum(1).clamp(min=1)).tolist())
    if turns == 1 and not trainer._told_single:
        trainer._told_single = True
        logger.warning(
            "TurnCreditMixin: every completion of a batch is one turn, so that credit of turns changes nothing; give "
            "GRPOTrainer tools or an environment_factory, or a rollout_func that returns env_mask"
        )
