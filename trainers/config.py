"""The one configuration of a training run: options in groups, each also by its own name, TRL's where TRL has it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ..credit.checks import suggest
from ..rollout.options import Rule, check_options, count, flag, number, text
from ..rollout.sampling import SamplingConfig
from ..rollout.templates import check_template_kwargs
from . import trl
from .losses import LOSS_TYPES, POLICY_LOSSES, RATIO_LEVELS, TRL_LOSS_TYPES
from .trackers import trackers

logger = logging.getLogger(__name__)


def option(default: Any, rule: Rule) -> Any:
    """A field with the rule that its value must obey."""
    return field(default=default, metadata={"rule": rule})


class _Group:
    """Options that belong together; every one is checked by its rule."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, _checked(type(self).__name__, name, value))


@dataclass(frozen=True)
class EnvironmentConfig(_Group):
    """Where episodes are played.

    Args:
        num_envs: episodes in play at once, per process.
        num_workers: environment processes, per process; 0 plays in this one.
        env_timeout: seconds before a silent environment process is replaced.
        max_worker_rss_mb: replace an environment process of more memory than this between episodes; None never does.
    """

    num_envs: int = option(64, count(1))
    num_workers: int = option(2, count(0, fix="0 plays in this process"))
    env_timeout: float = option(120.0, number(above=True))
    max_worker_rss_mb: float | None = option(None, number(above=True, none="for no limit"))


@dataclass(frozen=True)
class ObjectiveConfig(_Group):
    """What is minimised.

    Args:
        epsilon, epsilon_high: clip range of the ratio below and above 1.
        delta: dual clip for negative advantages; None turns it off.
        beta: coefficient of the KL (k3) to the initial policy; 0 keeps no reference model.
        entropy_coef: coefficient of the entropy bonus.
        loss_type: ``seq-mean-token-mean``, ``token-mean`` or ``seq-mean-token-sum-norm``; TRL's ``grpo``, ``dapo`` and
            ``dr_grpo`` are these.
        policy_loss: ``clip``, the clipped surrogate, or ``cispo``, whose importance weight is at most 1 + epsilon_high
            and has no gradient; it reads neither epsilon nor delta.
        importance_sampling_level: whose ratio is clipped: each ``token``'s own, or that of its ``turn`` or its whole
            ``trajectory``, the exponential of the mean log-ratio over its tokens (GSPO, with an epsilon of 3e-4 to 3e-3
            and an epsilon_high of 4e-4 to 4e-3).
    """

    epsilon: float = option(0.2, number(0.0, 1.0, fix="1 leaves the ratio unclipped below"))
    epsilon_high: float = option(0.24, number())
    delta: float | None = option(3.0, number(none="to turn the dual clip off"))
    beta: float = option(0.01, number())
    entropy_coef: float = option(0.001, number())
    loss_type: str = option("seq-mean-token-mean", text(*dict.fromkeys((*LOSS_TYPES, *TRL_LOSS_TYPES))))
    policy_loss: str = option("clip", text(*POLICY_LOSSES))
    importance_sampling_level: str = option("token", text(*RATIO_LEVELS))


@dataclass(frozen=True)
class OptimizerConfig(_Group):
    """AdamW's steps.

    Args:
        learning_rate, weight_decay: AdamW's.
        warmup_steps: updates over which the learning rate rises from 0.
        lr_scheduler_type: ``constant``, ``linear`` or ``cosine``.
        max_grad_norm: gradient clipping.
    """

    learning_rate: float = option(1e-6, number(above=True))
    weight_decay: float = option(0.0, number())
    warmup_steps: int = option(0, count(0))
    lr_scheduler_type: str = option("constant", text("constant", "linear", "cosine"))
    max_grad_norm: float = option(1.0, number(above=True, fix="a very large one never clips"))


@dataclass(frozen=True)
class EvaluationConfig(_Group):
    """How often and on what the policy is evaluated.

    Args:
        eval_steps: evaluate every so many updates; 0 only before and after.
        num_eval_tasks: size of the fixed panel, the first tasks of the evaluation split.
        eval_temperature: sampling temperature in evaluation.
        collapse_patience: warn once when success stays under half of its best for so many updates (docs/runs.md); 0
            never warns.
    """

    eval_steps: int = option(10, count(0, fix="0 evaluates only before and after"))
    num_eval_tasks: int = option(64, count(1))
    eval_temperature: float = option(0.4, number(fix="0 is greedy"))
    collapse_patience: int = option(10, count(0, fix="0 never warns"))


@dataclass(frozen=True)
class SavingConfig(_Group):
    """What a run writes.

    Args:
        save_steps: checkpoint every so many updates; 0 only at the end.
        save_total_limit: checkpoints kept; None keeps all.
        log_completions: trajectories written out as readable text per update; 0 writes none.
        save_rollouts: keep an update's trajectories with log-probs and credit every so many updates; 0 or None never.
        save_rollouts_limit: updates whose rollouts are kept; None keeps all.
        report_to: any of ``"wandb"``, ``"tensorboard"``, ``"trackio"``, or ``"all"`` that are installed, or ``"none"``;
            ``"wandb:project/name/group"`` says where to. JSONL metrics are always written.
        logging_steps: say a line every so many updates, with means over them; 0 says none.
        disable_tqdm: show no progress bars; None shows them where standard error is a terminal.
        save_best: keep the model of the best evaluation in ``output_dir/best``.
    """

    save_steps: int = option(50, count(0, fix="0 saves only at the end"))
    save_total_limit: int | None = option(2, count(1, none="to keep all"))
    log_completions: int = option(2, count(0))
    save_rollouts: int | None = option(None, count(0, none="to save none"))
    save_rollouts_limit: int | None = option(10, count(1, none="to keep all"))
    report_to: tuple[str, ...] = ()
    logging_steps: int = option(1, count(0, fix="0 says no line"))
    disable_tqdm: bool | None = option(None, flag(none="to show bars in a terminal"))
    save_best: bool = option(True, flag())


@dataclass(init=False)
class GRPOConfig:
    """Settings of `GRPOTrainer`. Defaults train GRPO with the papers' settings (docs/equations.md#policy-objective).

    Options of a group are given in it or by their own names, ``GRPOConfig(num_envs=8)``, are read and set so too,
    ``config.num_envs``, and win over their group's. A group may be a mapping, as a JSON file holds it.

    Args:
        output_dir: folder of metrics, completions, trajectories and checkpoints.
        max_steps: updates (rollout phases) in the whole run.
        max_environment_steps: turns played, by all processes, behind which the run ends although `max_steps` updates
            are not made; None for no such limit. See ``rollout/environment_steps`` in docs/metrics.md.
        num_tasks: tasks per update, over all processes.
        num_generations: rollouts per task (G).
        credit: name of the method (`turncredit.trainers.list_methods`).
        credit_options: options of the method that differ from its defaults (`turncredit.trainers.get_method`).
        sampling: temperature, top-p, top-k and budgets of training rollouts.
        environments: environments and their processes.
        objective: clipping, KL, entropy bonus and loss type.
        optimizer: learning rate, its schedule, weight decay, gradient clipping.
        evaluation: how often, on how many tasks, at which temperature.
        saving: checkpoints, readable completions, trackers.
        chat_template_kwargs: further variables of the chat template, for student and teacher, such as
            ``{"enable_thinking": False}``; ``strftime_now`` is the date its clock shows (``"2025-01-01"``).
        ds3_gather_for_generation: under ZeRO-3, gather the weights once for every rollout phase; False keeps them
            sharded (less memory, every token a collective call).
        num_iterations: epochs over the rollouts of one update.
        num_minibatches: optimiser steps per epoch; trajectories stay whole.
        micro_batch_tokens: sequences x longest sequence in one forward pass; accumulation takes as many as are needed.
            None is 16,384, or 4,096 on a CPU, where larger tensors are slow (docs/speed.md).
        per_device_train_batch_size: rows in one training micro-batch at most; None leaves it to micro_batch_tokens.
        share_prefixes: compute tokens once that rows have in common; False scores and trains every row by itself.
        continuous_batching: let finished responses leave and new prompts join while others are generated; False
            generates batch after batch.
        recompute_logprobs: score the rollouts again before training; None does so unless the model is float32.
        max_skipped_steps: updates with a loss or gradient that is not finite before the run stops.
        seed: of sampling and of the task order.
        preflight: compare sampling, scoring and training with the model before and in the first update; False goes
            without.
        options: options of a group by their own names; `scale_rewards` is the method's. TRL's are in docs/trl.md.

    Raises:
        TypeError: an option of another kind, such as text where a number is needed (``"1e-6"``), or an unknown one.
        ValueError: an option out of range, two that do not go together, or one of TRL's that cannot be had here.
    """

    output_dir: str = option("outputs/run", text())
    max_steps: int = option(150, count(0))
    max_environment_steps: int | None = option(None, count(1, none="for no such limit"))
    num_tasks: int = option(16, count(1))
    num_generations: int = option(8, count(2, fix="a group of one has no baseline and its advantage is 0"))
    credit: str = option("grpo", text())
    credit_options: Mapping[str, Any] = field(default_factory=dict)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    environments: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    saving: SavingConfig = field(default_factory=SavingConfig)
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    ds3_gather_for_generation: bool = option(True, flag())
    num_iterations: int = option(1, count(1))
    num_minibatches: int = option(1, count(1))
    micro_batch_tokens: int | None = option(None, count(1, none="for what suits the device"))
    per_device_train_batch_size: int | None = option(None, count(1, none="to let micro_batch_tokens decide"))
    share_prefixes: bool = option(True, flag())
    continuous_batching: bool = option(True, flag())
    recompute_logprobs: bool | None = option(None, flag(none="to do so unless the model is float32"))
    max_skipped_steps: int = option(3, count(0))
    seed: int = option(0, count(0))
    preflight: bool = option(True, flag())

    def __init__(self, output_dir: str | os.PathLike[str] = "outputs/run", **options: Any) -> None:
        options = {"output_dir": output_dir, **trl.own_options(options)}
        own = _names(self)
        if unknown := [name for name in options if name not in own and name not in _HOMES]:
            raise TypeError(f"GRPOConfig: options must be known, got {unknown[0]!r}; {_advice(unknown[0], self)}")
        for own_field in fields(self):
            make = own_field.default_factory
            default = make() if callable(make) else own_field.default
            setattr(self, own_field.name, options.pop(own_field.name, default))
        for name, value in options.items():
            setattr(self, name, value)
        self._check_together()

    def __getattr__(self, name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"GRPOConfig: {name!r} is no option; {_advice(name, self)}")
        home = getattr(self, _HOMES[name])
        return home.get(name) if isinstance(home, Mapping) else getattr(home, name)

    def __setattr__(self, name: str, value: Any) -> None:
        home = _HOMES.get(name, name)
        if home not in _names(self):
            raise AttributeError(f"GRPOConfig: {name!r} is no option; {_advice(name, self)}")
        if home != name:
            before, change = getattr(self, home), {name: _checked("GRPOConfig", name, value)}
            value = {**before, **change} if isinstance(before, Mapping) else replace(before, **change)
        object.__setattr__(self, home, _checked("GRPOConfig", home, value))

    def check(self) -> None:
        """Raise unless every option is of its kind and in its range; a trainer asks again when it is made.

        Raises:
            TypeError: an option is of another kind, text where a number is needed for instance.
            ValueError: an option is out of range, or two do not go together.
        """
        for name in _names(self):
            setattr(self, name, getattr(self, name))
        self._check_together()

    def tokens_per_pass(self, device: str) -> int:
        """`micro_batch_tokens`, or what suits a type of device."""
        return self.micro_batch_tokens or (4096 if device == "cpu" else 16384)

    def to_dict(self) -> dict[str, Any]:
        """Every option by its own name, none in a group; ``GRPOConfig(**config.to_dict())`` is the same."""
        return flat_options(asdict(self))

    def _check_together(self) -> None:
        slots = self.num_tasks * self.num_generations
        pairs = [
            (
                "delta",
                self.delta is None or self.delta > 1 + self.epsilon_high,
                f"exceed 1 + epsilon_high = {1 + self.epsilon_high:g}",
                "raise it, or use None to turn the dual clip off",
            ),
            (
                "num_minibatches",
                self.num_minibatches <= slots,
                f"be at most the {slots} trajectories of an update (num_tasks x num_generations)",
                "lower it",
            ),
        ]
        for name, ok, rule, fix in pairs:
            if not ok:
                raise ValueError(f"GRPOConfig: {name} must {rule}, got {getattr(self, name)!r}; {fix}")
        if 0 < self.max_steps < self.warmup_steps:
            logger.warning(
                "warmup_steps = %d is more than max_steps = %d: the learning rate of %g is never reached",
                self.warmup_steps,
                self.max_steps,
                self.learning_rate,
            )
        if (self.importance_sampling_level, self.policy_loss) != ("token", "clip"):
            _warn_of_wide_bounds(self)


_WIDE = 0.05


def _warn_of_wide_bounds(config: GRPOConfig) -> None:
    """The ratio of a whole sequence hardly moves: bounds that suit a token's never act on it."""
    level = config.importance_sampling_level
    bounds = {"epsilon_high": config.epsilon_high}
    if config.policy_loss == "clip":
        bounds["epsilon"] = config.epsilon
    if level != "token" and max(bounds.values()) > _WIDE:
        given = ", ".join(f"{name} = {value:g}" for name, value in sorted(bounds.items()))
        logger.warning("%s hardly ever clips the ratio of a %s; GSPO's are 3e-4 and 4e-4", given, level)


GROUPS: dict[str, type] = {
    "sampling": SamplingConfig,
    "environments": EnvironmentConfig,
    "objective": ObjectiveConfig,
    "optimizer": OptimizerConfig,
    "evaluation": EvaluationConfig,
    "saving": SavingConfig,
}
"""Groups of options by the name of their field."""

_RULES: dict[str, Rule] = {
    own.name: own.metadata["rule"]
    for group in (GRPOConfig, *GROUPS.values())
    for own in fields(group)
    if "rule" in own.metadata
}

# an option that lies inside a field -> that field
_HOMES = {own.name: name for name, group in GROUPS.items() for own in fields(group)}
_HOMES["scale_rewards"] = "credit_options"


def flat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their own names, of a mapping with groups, without, or with some, as earlier checkpoints have it."""
    groups = {name: options[name] for name in GROUPS if isinstance(options.get(name), Mapping)}
    flat = {name: value for name, value in options.items() if name not in groups}
    return flat | {name: value for group in groups.values() for name, value in group.items()}


def _names(config: GRPOConfig) -> set[str]:
    return {field.name for field in fields(config)}


MOVED = {
    "encoder": "encoder",
    "teacher_max_completion_length": "teacher_max_completion_length",
    "invalid_action_penalty": "invalid_penalty",
}


def _advice(name: str, config: GRPOConfig) -> str:
    if name in MOVED:
        return f'it is an option of the method: credit_options={{"{MOVED[name]}": ...}}'
    return did_you_mean(name, [*_names(config), *_HOMES])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that is most like `name`, as a question, or all of them."""
    names = sorted(known)
    return suggest(name, names, f"known are {', '.join(names)}")


def _checked(owner: str, name: str, value: Any) -> Any:
    """The value as the configuration holds it, or the error that names the option."""
    if name in _READERS:
        value = _READERS[name](value)
    if name in GROUPS:
        return _group(name, value)
    # sampling checks its own
    return check_options(owner, {name: value}, {name: _RULES[name]})[name] if name in _RULES else value


def _group(name: str, value: Any) -> Any:
    kind = GROUPS[name]
    if isinstance(value, kind):
        return value
    known = [field.name for field in fields(kind)]
    if not isinstance(value, Mapping):
        raise TypeError(
            f"GRPOConfig: {name} must be {kind.__name__}(..) or a mapping of its options, got {value!r}; "
            f"its options are {known}"
        )
    if unknown := sorted(map(str, value.keys() - set(known))):
        advice = did_you_mean(unknown[0], known)
        raise TypeError(f"GRPOConfig: {name} must hold options among {known}, got {unknown}; {advice}")
    return kind(**value)


def _credit_options(value: Any) -> Mapping[str, Any]:
    value = {} if value is None else value
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(
            f'GRPOConfig: credit_options must map option names to values, got {value!r}; write {{"gamma": 0.95}}'
        )
    if isinstance(value.get("scale_rewards"), str):  # "none" would be true
        return {**value, "scale_rewards": trl.scales_rewards(value["scale_rewards"])}
    return value


# what an option may be given as besides; None, as an empty entry of a YAML file, holds nothing
_READERS: dict[str, Callable[[Any], Any]] = {
    "output_dir": lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value,
    "credit_options": _credit_options,
    "chat_template_kwargs": lambda value: check_template_kwargs({} if value is None else value, "GRPOConfig"),
    "loss_type": trl.loss_type,
    "importance_sampling_level": trl.ratio_level,
    "report_to": trackers,
    "scale_rewards": trl.scales_rewards,
}
