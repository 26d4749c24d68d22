"""Methods that read one more signal: a value head, entropies of the whole batch, a gold answer, a progress head."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...credit import CreditInputs, CreditMethod, get_credit
from ...credit.learned import empg, entropy_facts, entropy_scale
from ...rollout.options import check_options, flag, number
from ..batch import TurnBatch
from ..terms import LossTerm, PerToken, TokenBatch
from .method import Method
from .providers import provides
from .registry import goes_with, register_method
from .run import Run

# ---- heads


class TurnHead(nn.Module):
    """A linear reading of hidden states ``[n, H]`` as one number ``[n]``; it says 0 until it has learned.

    Args:
        hidden_size: H.
        lr_scale: its learning rate in those of the run.
        detach: keep its gradient from the policy.
    """

    def __init__(self, hidden_size: int, lr_scale: float, detach: bool):
        super().__init__()
        self.lr_scale, self.detach = lr_scale, detach
        self.read = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.read.weight)
        nn.init.zeros_(self.read.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """``[n, H]`` to ``[n]``."""
        return self.read(hidden.detach() if self.detach else hidden).squeeze(-1)


def _head(owner: str, name: str, lr_scale: float, detach: bool) -> Any:
    """A method's ``modules``, checked."""
    given = {"lr_scale": lr_scale, "detach": detach}
    checked = check_options(owner, given, {"lr_scale": number(above=True), "detach": flag()})
    make = functools.partial(TurnHead, lr_scale=checked["lr_scale"], detach=checked["detach"])
    return functools.partial(_made, name, make)


def _made(name: str, make: Any, hidden_size: int) -> Mapping[str, nn.Module]:
    return {name: make(hidden_size)}


@dataclass(frozen=True)
class ValueTerm(LossTerm):
    """The value's clipped squared error, at each turn's first token: the mean over trajectories of that over turns.

        l = max((V - G)^2, (clip(V, V_old - value_clip, V_old + value_clip) - G)^2) / 2

    Args:
        value_clip: how far the value may move in an update before its gradient ends; None never clips.
    """

    name: str = "value"
    average: str = "seq-mean-token-mean"
    rows: str = "all"
    reads: tuple[str, ...] = ("turn_returns", "old_values", "value_tokens")
    modules: tuple[str, ...] = ("value",)
    value_clip: float | None = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(type(self).__name__, vars(self), {"value_clip": number(above=True, none="never to clip")})

    def per_token(self, batch: TokenBatch) -> PerToken:
        value, target, old = batch.outputs["value"], batch.signals["turn_returns"], batch.signals["old_values"]
        error = (value - target).square()
        if self.value_clip is not None:
            bounded = old + (value - old).clamp(-self.value_clip, self.value_clip)
            error = torch.maximum(error, (bounded - target).square())
        return 0.5 * error * batch.signals["value_tokens"]


@register_method("turn_ppo")
def turn_ppo(
    *, value_coef: float = 1.0, value_clip: float | None = 0.5, lr_scale: float = 10.0, detach: bool = True
) -> Method:
    """PPO with turns as actions: GAE over turns and a value head beside the policy. Source: 2512.17008.

    Args:
        value_coef: of the value's loss.
        value_clip: see `ValueTerm`.
        lr_scale: the head's learning rate in those of the run.
        detach: keep the value's gradient from the policy, as a critic of its own would.
    """
    return Method(
        "turn_ppo",
        (ValueTerm(coef=value_coef, value_clip=value_clip),),
        modules=_head("turn_ppo", "value", lr_scale, detach),
        gives=("turn_returns", "old_values", "value_tokens"),
    )


@provides("progress", own={"modules": ("progress",)})
def progress(batch: TurnBatch, run: Run) -> Tensor:
    """``[M]`` float32: what the attached module ``"progress"`` says before the last token of every response."""
    shares = run.own_scores(modules=("progress",)).outputs["progress"]
    if not batch.turns:
        return torch.zeros(0)
    last = batch.response_mask.sum(1) - 1
    return shares.flatten(1).gather(1, last[:, None])[:, 0]


@dataclass(frozen=True)
class ProgressTerm(LossTerm):
    """``(sum_k v_k - R)^2`` of every trajectory, whose turns lie in several micro-batches, by one term a turn.

    The other turns' shares are those before the update, so the gradient is that of the square in the update's first
    optimiser step, and moves each turn on its own in later ones.
    """

    name: str = "progress"
    average: str = "seq-mean-token-mean"
    rows: str = "all"
    reads: tuple[str, ...] = ("progress_rest", "progress_tokens", "progress_turns")
    modules: tuple[str, ...] = ("progress",)

    def per_token(self, batch: TokenBatch) -> PerToken:
        share = batch.outputs["progress"]
        error = (share - batch.signals["progress_rest"]).detach()
        loss = 2 * error * (share - share.detach()) + error.square() / batch.signals["progress_turns"]
        return loss * batch.signals["progress_tokens"]


@register_method("spa_rl")
def spa_rl(*, progress_coef: float = 1.0, lr_scale: float = 10.0, detach: bool = True) -> Method:
    """A head shares the return out over the turns, and the shares are their rewards. Source: 2505.20732.

    Args:
        progress_coef: of the head's loss.
        lr_scale, detach: of the head, as in `turn_ppo`.
    """
    return Method(
        "spa_rl",
        (ProgressTerm(coef=progress_coef),),
        modules=_head("spa_rl", "progress", lr_scale, detach),
        gives=("progress_rest", "progress_tokens", "progress_turns"),
    )


# ---- entropies


def over_all_processes(credit: CreditMethod, inputs: CreditInputs | None, run: Run) -> CreditMethod:
    """EMPG's range, gate and mean are those of the whole batch, so of all processes; collective."""
    if run.num_processes == 1:
        return credit
    names = ("scale_rewards", "normalization_scope", "eps", "outcome_discount")
    own = [] if inputs is None else [entropy_facts(inputs, **{name: credit.options[name] for name in names})]
    parts = run.all_gather(own)
    if not parts:
        return credit
    strengths = {name: credit.options[name] for name in ("sharpness", "future_sharpness", "bonus")}
    return get_credit(credit.name, **{**credit.options, "scale": entropy_scale(parts, **strengths)})


goes_with(empg, settle=over_all_processes)


# ---- the gold answer

_UNLIKELY = -50.0


def gold_answers(run: Run, names: Sequence[str]) -> dict[str, tuple[list[int], list[int]]]:
    """Token ids of the opening and of the gold answer of training tasks, by their ids.

    Raises:
        ValueError: the suite has no gold answers, or one is empty or longer than a response may be.
    """
    suite, asked = run.suite, getattr(run.suite, "gold_answer", None)
    answers: dict[str, Any] = {} if asked is None else {name: asked(run.tasks[name]) for name in names}
    missing = [name for name, answer in answers.items() if not isinstance(answer, str) or not answer]
    if asked is None or missing:
        got = "no such method" if asked is None else f"{answers[missing[0]]!r} for {missing[0]!r}"
        raise ValueError(
            f"{run.method.name}: the suite must name every training task's gold answer by gold_answer(task), got "
            f"{got} from {type(suite).__name__}; write that method, or choose a method that reads no answers"
        )
    texts = [getattr(suite, "answer_opening", ""), *answers.values()]
    opening, *ids = run.tokenizer(texts, add_special_tokens=False).input_ids
    limit = run.config.sampling.max_completion_length - len(opening)
    for name, answer in zip(answers, ids, strict=True):
        if not 0 < len(answer) <= limit:
            raise ValueError(
                f"{run.method.name}: a gold answer must have between 1 and {limit} tokens, what max_completion_length "
                f"leaves behind answer_opening, got {len(answer)} for {name!r}; raise it"
            )
    return {name: (opening, answer) for name, answer in zip(answers, ids, strict=True)}


def _start(run: Run) -> None:
    gold_answers(run, list(run.tasks))


@provides("answer_logprobs", start=_start)
def answer_logprobs(batch: TurnBatch, run: Run) -> Tensor:
    """``[M]`` float32: mean log-prob of the task's gold answer before every turn, behind the suite's opening.

    One pass of the policy over all turns' prompts. Where prompt and answer would exceed the model, the turn has the
    probability of the turn before it, so that the gain is 0; ``method/answers_too_long`` counts such turns.
    """
    answers = gold_answers(run, sorted({trajectory.task_id for trajectory in batch.trajectories}))
    asked = [answers[batch.trajectories[i].task_id] for i in batch.trajectory_ids.tolist()]
    limit, rows = run.longest(), range(len(batch.turns))
    sizes = [len(turn.prompt_ids) + len(a) + len(b) for turn, (a, b) in zip(batch.turns, asked, strict=True)]
    fits = [row for row in rows if limit is None or sizes[row] <= limit]
    prompts = [(*batch.turns[row].prompt_ids, *asked[row][0]) for row in fits]
    scores = run.score(prompts, [tuple(asked[row][1]) for row in fits])
    run.log("answers_too_long", len(rows) - len(fits), reduce="sum")
    means = torch.full((len(rows),), torch.nan)
    if fits:
        means[fits] = scores.logprobs.sum(1) / scores.mask.sum(1)
    return _carried(means.clamp(max=0.0), batch)


def _carried(means: Tensor, batch: TurnBatch) -> Tensor:
    """``[M]`` with every NaN replaced by the value of the turn before, as rows of a batch stand in order."""
    turns: Sequence[int] = batch.turn_ids.tolist()
    for row in means.isnan().nonzero().flatten().tolist():
        means[row] = means[row - 1] if turns[row] else _UNLIKELY
    return means
