"""The objective as a list of terms: what each adds to the loss, over which tokens it is averaged and what it reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..credit.checks import suggest
from ..rollout.divergence import LOSSES
from ..rollout.options import check_options, number, text
from .config import GRPOConfig
from .losses import (
    LOSS_TYPES,
    POLICY_LOSSES,
    RATIO_LEVELS,
    TRL_LOSS_TYPES,
    cispo_loss,
    clipped_policy_loss,
    kl_k3,
    sdar_loss,
    sequence_log_ratios,
    skill_sd_loss,
)

AVERAGES = ("loss_type", *LOSS_TYPES, *TRL_LOSS_TYPES)
ROWS = ("active", "all")


@dataclass(frozen=True)
class TokenBatch:
    """One micro-batch, flat over its n response tokens.

    Args:
        logprobs: ``[n]`` float, the policy's, nats, with gradient.
        old_logprobs: ``[n]`` float, the policy that sampled.
        advantages: ``[n]`` float, credit.
        entropy: ``[n]`` float, nats, with gradient; None where no term needs it.
        signals: name -> ``[n]`` or ``[n, ...]``, what the terms read; one of a row stands at each of its tokens.
        outputs: name -> ``[n, ...]`` float, of modules attached to the policy, with gradient.
        rows: ``[n]`` int64, the row, which is a turn, of each token; None where nobody asks.
        trajectory_log_ratio: ``[n]`` float, the mean log-ratio of the token's trajectory before this optimiser step;
            None where no term asks (`LossTerm.needs_trajectory_ratio`).
    """

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    entropy: Tensor | None
    signals: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    rows: Tensor | None = None
    trajectory_log_ratio: Tensor | None = None


PerToken = Tensor | tuple[Tensor, Mapping[str, Tensor]]


@dataclass(frozen=True)
class LossTerm:
    """One term of the objective; make a subclass with `per_token`, or pass `function`. See docs/objective.md.

    Args:
        name: an identifier; ``train/<name>_loss`` is logged.
        coef: its weight in the loss.
        average: ``"loss_type"``, the run's, or a loss type of the term's own; see `.losses.loss_coefficients`.
        rows: ``"active"``, those of groups with an advantage other than 0, or ``"all"``.
        reads: names of the rows' signals that it needs, such as ``"ref_logprobs"`` or ``"teacher_logprobs"``.
        modules: names of attached modules whose outputs it needs.
        needs_entropy: whether it reads ``batch.entropy``.
        divergence: ``"reverse"`` KL(pi || pi_T), ``"forward"`` KL(pi_T || pi) or ``"own_forward"``, where the policy
            itself teaches: ``batch.outputs["divergence"]`` is that over the whole vocabulary, from the teacher whose
            hidden states are the signal ``"teacher_hidden"``, which has to be among `reads`.
        function: instead of `per_token`.

    Raises:
        TypeError: neither `per_token` nor `function`, or names that are not in a tuple.
        ValueError: an option out of range.
    """

    name: str
    coef: float = 1.0
    average: str = "loss_type"
    rows: str = "active"
    reads: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    needs_entropy: bool = False
    divergence: str = ""
    function: Callable[[TokenBatch], PerToken] | None = None

    auxiliary: ClassVar[bool] = True
    """Whether its loss is a part of the logged ``auxiliary_loss``."""

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ValueError(f"{kind}: name must be an identifier, got {self.name!r}; metrics are called after it")
        check_options(kind, vars(self), {"coef": number()})
        for option, known in (("average", AVERAGES), ("rows", ROWS)):
            value = getattr(self, option)
            if value not in known:
                advice = suggest(value, known, "write one of them")
                raise ValueError(f"{kind}: {option} must be one of {known}, got {value!r}; {advice}")
        if self.divergence and not (self.divergence in LOSSES and "teacher_hidden" in self.reads):
            raise ValueError(
                f"{kind}: divergence must be one of {LOSSES}, beside 'teacher_hidden' among reads, got "
                f"{self.divergence!r} and {self.reads}; write both"
            )
        for option in ("reads", "modules"):
            if not isinstance(getattr(self, option), tuple):
                raise TypeError(
                    f"{kind}: {option} must be a tuple of names, got {getattr(self, option)!r}; write "
                    f'{option}=("name",)'
                )
        if self.function is None and type(self).per_token is LossTerm.per_token:
            raise TypeError(f"{kind}: function must be given where the class has no per_token of its own, got None")

    @property
    def logged_coef(self) -> float:
        """What the logged ``<name>_loss`` is multiplied by."""
        return self.coef

    @property
    def needs_trajectory_ratio(self) -> bool:
        """Whether it reads ``batch.trajectory_log_ratio``, which costs one more pass of an optimiser step's rows."""
        return False

    def per_token(self, batch: TokenBatch) -> PerToken:
        """The loss ``[n]`` of every response token, to be minimised, and metrics ``[n]`` by name, if any.

        Metrics are logged as means over the active tokens of all processes.
        """
        assert self.function is not None
        return self.function(batch)

    def over(self, loss_type: str) -> tuple[str, str]:
        """What it is averaged over, its loss type and its rows; terms that agree share weights and denominator."""
        average = loss_type if self.average == "loss_type" else self.average
        return TRL_LOSS_TYPES.get(average, average), self.rows


@dataclass(frozen=True)
class PolicyTerm(LossTerm):
    """The clipped surrogate or CISPO; see `.losses`. Its logged loss is without the coefficient.

    Args:
        epsilon, epsilon_high, delta: see `.losses.clipped_policy_loss`; CISPO takes `epsilon_high` alone.
        loss: one of `POLICY_LOSSES`.
        level: one of `RATIO_LEVELS`, whose ratio it is: each token's own, or that of its turn or its trajectory (GSPO).
    """

    name: str = "policy"
    epsilon: float = 0.2
    epsilon_high: float = 0.24
    delta: float | None = 3.0
    loss: str = "clip"
    level: str = "token"

    auxiliary: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        rules = {"loss": text(*POLICY_LOSSES), "level": text(*RATIO_LEVELS)}
        check_options(type(self).__name__, vars(self), rules)

    @property
    def needs_trajectory_ratio(self) -> bool:
        return self.level == "trajectory" and self.coef != 0

    @property
    def logged_coef(self) -> float:
        return 1.0

    def per_token(self, batch: TokenBatch) -> PerToken:
        tokens = (batch.logprobs, batch.old_logprobs, batch.advantages)
        bounds: dict[str, Any] = {"epsilon_high": self.epsilon_high, "log_ratio": self._log_ratio(batch)}
        if self.loss == "cispo":
            policy = cispo_loss(*tokens, **bounds)
        else:
            policy = clipped_policy_loss(*tokens, epsilon=self.epsilon, delta=self.delta, **bounds)
        return policy.loss, {
            "ratio": policy.ratio,
            "log_ratio_abs": (batch.logprobs.detach() - batch.old_logprobs).abs(),
            "clip_low": policy.clipped_low,
            "clip_high": policy.clipped_high,
            "clip_dual": policy.clipped_dual,
        }

    def _log_ratio(self, batch: TokenBatch) -> Tensor | None:
        """``[n]`` of each token's turn or trajectory, None for its own; a term of weight 0 does without the latter."""
        if self.needs_trajectory_ratio:
            assert batch.trajectory_log_ratio is not None  # made by `accumulate_gradients`
            return batch.trajectory_log_ratio
        if self.level != "turn":
            return None
        assert batch.rows is not None
        return sequence_log_ratios(batch.logprobs - batch.old_logprobs, batch.rows)


@dataclass(frozen=True)
class KLTerm(LossTerm):
    """The KL to the reference; see `.losses.kl_k3`."""

    name: str = "kl"
    reads: tuple[str, ...] = ("ref_logprobs",)

    auxiliary: ClassVar[bool] = False

    def per_token(self, batch: TokenBatch) -> PerToken:
        kl = kl_k3(batch.logprobs, batch.signals["ref_logprobs"])
        return kl, {"kl": kl}


@dataclass(frozen=True)
class EntropyTerm(LossTerm):
    """The entropy bonus: minus the policy's entropy at every token."""

    name: str = "entropy"
    needs_entropy: bool = True

    auxiliary: ClassVar[bool] = False

    def per_token(self, batch: TokenBatch) -> PerToken:
        assert batch.entropy is not None
        return -batch.entropy, {"entropy": batch.entropy}


@dataclass(frozen=True)
class SDARTerm(LossTerm):
    """Gated distillation; see `.losses.sdar_loss`.

    Args:
        beta: of the gate; 0 is OPSD's ungated term.
    """

    name: str = "sdar"
    coef: float = 0.01
    average: str = "token-mean"
    rows: str = "all"
    reads: tuple[str, ...] = ("teacher_logprobs",)
    beta: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(type(self).__name__, vars(self), {"beta": number()})

    def per_token(self, batch: TokenBatch) -> PerToken:
        return sdar_loss(batch.logprobs, batch.signals["teacher_logprobs"], batch.old_logprobs, beta=self.beta)


@dataclass(frozen=True)
class SkillSDTerm(LossTerm):
    """Importance-weighted KL towards the teacher; see `.losses.skill_sd_loss`."""

    name: str = "skill_sd"
    coef: float = 0.001
    average: str = "token-mean"
    rows: str = "all"
    reads: tuple[str, ...] = ("teacher_logprobs",)

    def per_token(self, batch: TokenBatch) -> PerToken:
        return skill_sd_loss(batch.logprobs, batch.signals["teacher_logprobs"], batch.old_logprobs)


def objective(config: GRPOConfig, terms: Sequence[LossTerm] = (), policy_weight: float = 1.0) -> list[LossTerm]:
    """The terms that a run minimises: policy, KL and entropy as the configuration says, then a method's own.

    Args:
        config: clipping, beta, entropy_coef.
        terms: of the method.
        policy_weight: of the policy gradient; 0 leaves the other terms alone.

    Raises:
        ValueError: two terms of one name.
    """
    bounds = {"epsilon": config.epsilon, "epsilon_high": config.epsilon_high, "delta": config.delta}
    kind = {"loss": config.policy_loss, "level": config.importance_sampling_level}
    own: list[LossTerm] = [PolicyTerm(coef=policy_weight, **bounds, **kind)]
    own += [KLTerm(coef=config.beta)] * (config.beta > 0)
    own += [EntropyTerm(coef=config.entropy_coef)] * (config.entropy_coef > 0)
    check_terms([*own, *terms])
    return [*own, *terms]


def check_terms(
    terms: Sequence[LossTerm], signals: Collection[str] | None = None, modules: Collection[str] | None = None
) -> None:
    """Raise unless the terms can stand in one objective.

    Args:
        terms: all of it.
        signals: those that the rows have; None does not ask.
        modules: those that are attached to the policy; None does not ask.

    Raises:
        TypeError: something else than a `LossTerm`.
        ValueError: two terms of one name, or a signal or module that is not there.
    """
    kinds: set[str] = set()
    names = ["auxiliary"]  # auxiliary_loss is the sum of such terms
    for term in terms:
        if not isinstance(term, LossTerm):
            raise TypeError(f"check_terms: terms must be LossTerm objects, got {term!r}; make a subclass of LossTerm")
        if term.name in names:
            raise ValueError(f"check_terms: terms must have names of their own, got a second {term.name!r}; rename one")
        names.append(term.name)
        kinds |= {term.divergence} - {""}
        if len(kinds) > 1:
            raise ValueError(f"check_terms: terms must have one divergence between them, got {sorted(kinds)}; take one")
        for what, wanted, known in (("signals", term.reads, signals), ("modules", term.modules, modules)):
            for name in wanted:
                if known is not None and name not in known:
                    raise ValueError(
                        f"check_terms: {what} must hold {name!r}, which the term {term.name!r} reads, got "
                        f"{sorted(known)}; {suggest(name, sorted(known), 'let the method provide it')}"
                    )


def evaluate(term: LossTerm, batch: TokenBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The term's loss ``[n]`` and metrics ``[n]``, checked.

    Raises:
        TypeError: something else than tensors.
        ValueError: another shape than ``[n]``, or a loss without gradient.
    """
    found = term.per_token(batch)
    loss, metrics = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
    shape = batch.logprobs.shape
    for what, value in {"loss": loss, **{f"metric {name!r}": value for name, value in dict(metrics).items()}}.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"LossTerm: the {what} of {term.name!r} must be a tensor [n], got {type(value).__name__}")
        if value.shape != shape:
            raise ValueError(
                f"LossTerm: the {what} of {term.name!r} must have shape [n] = {list(shape)}, one value per response "
                f"token, got {list(value.shape)}; do not sum or average: `average` says how that is done"
            )
    if not loss.requires_grad:
        raise ValueError(
            f"LossTerm: the loss of {term.name!r} must depend on the policy or an attached module, got a tensor "
            "without gradient; detach only what is a target, and add 0 * batch.logprobs where there is nothing to do"
        )
    return loss, metrics
