"""TRL's names for what is called otherwise here, or is not done; docs/trl.md has the whole table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from .losses import TRL_LOSS_TYPES

T = TypeVar("T")

SCALE_REWARDS: dict[Any, bool] = {True: True, "group": True, False: False, "none": False}

_NONE_NEEDED = object()
_GENERATE = "responses are sampled by Hugging Face generate in this process (docs/speed.md says how fast)"
_TRUNCATION = "use temperature, top_p and top_k"
_BATCH = (
    "num_tasks x num_generations rollouts make an update, num_minibatches cuts it into optimiser steps and "
    "micro_batch_tokens into forward passes"
)
_PRECISION = 'pass accelerator=Accelerator(mixed_precision="bf16")'
_TRACKER = 'write report_to="wandb:project/name/group"'
_CLIPPED = "the policy's term is that of policy_loss; another one is a loss term of a method of your own"

# name -> the value that says what is done here anyway, and where to go otherwise
_ABSENT: dict[str, tuple[Any, str]] = {
    "use_vllm": (False, _GENERATE),
    "use_transformers_paged": (False, _GENERATE),
    "cache_implementation": (None, _GENERATE),
    "generation_kwargs": (None, _TRUNCATION),
    "min_p": (None, _TRUNCATION),
    "repetition_penalty": (1.0, "log-probs are those of the policy itself; " + _TRUNCATION),
    "gradient_accumulation_steps": (_NONE_NEEDED, _BATCH),
    "generation_batch_size": (None, _BATCH),
    "steps_per_generation": (None, _BATCH),
    "per_device_eval_batch_size": (_NONE_NEEDED, "num_envs episodes are in play at once"),
    "num_generations_eval": (1, "evaluation plays every task of its panel once; raise num_eval_tasks"),
    "num_train_epochs": (_NONE_NEEDED, "max_steps counts updates"),
    "shuffle_dataset": (True, "the order of tasks is a seeded permutation"),
    "top_entropy_quantile": (1.0, _CLIPPED),
    "off_policy_mask_threshold": (None, _CLIPPED),
    "use_bias_correction_kl": (False, _CLIPPED),
    "mask_truncated_completions": (False, "a truncated turn counts; rollout/truncated_turns says how many there are"),
    "sync_ref_model": (False, "the reference stays the initial policy"),
    "reward_weights": (None, "the suite's environment gives one reward"),
    "multi_objective_aggregation": ("sum_then_normalize", "the suite's environment gives one reward"),
    "max_tool_calling_iterations": (None, "the suite's max_turns limits an episode"),
    "model_init_kwargs": (None, "load the model yourself and pass it to GRPOTrainer"),
    "disable_dropout": (_NONE_NEEDED, "set the model's own configuration before GRPOTrainer gets it"),
    "gradient_checkpointing": (False, "call model.gradient_checkpointing_enable() before GRPOTrainer gets it"),
    "bf16": (False, _PRECISION),
    "fp16": (False, _PRECISION),
    "deepspeed": (None, "give the DeepSpeed configuration to `accelerate launch`"),
    "optim": ("adamw_torch", "the optimiser is AdamW"),
    "warmup_ratio": (0.0, "warmup_steps counts updates"),
    "save_strategy": ("steps", "use save_steps, 0 for the end alone"),
    "eval_strategy": ("steps", "use eval_steps, 0 for the ends alone"),
    "run_name": (None, _TRACKER),
    "project": (None, _TRACKER),
    "num_completions_to_print": (None, "log_completions is the number of trajectories written out"),
    "resume_from_checkpoint": (None, "call trainer.train(resume_from=True)"),
    "push_to_hub": (False, "call trainer.push_to_hub(repo_id) after train()"),
    "remove_unused_columns": (False, "tasks have no columns"),
}


def own_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those of TRL's that change nothing here.

    Raises:
        ValueError: one of TRL's asks for what is not done here; the message says what to use instead.
    """
    kept = {}
    for name, value in options.items():
        if name not in _ABSENT and not name.startswith("vllm_"):
            kept[name] = value
            continue
        same, fix = _ABSENT.get(name, (_NONE_NEEDED, _GENERATE))
        if same is _NONE_NEEDED or (type(value), value) != (type(same), same):
            rule = "be left out" if same is _NONE_NEEDED else f"be {same!r} or left out"
            raise ValueError(f"GRPOConfig: {name} must {rule}, got {value!r}; {fix}")
    return kept


def scales_rewards(value: Any) -> bool:
    """TRL's ``scale_rewards`` as the methods' option of that name.

    Raises:
        ValueError: neither a flag nor ``"group"`` or ``"none"``.
    """
    if isinstance(value, (bool, str)) and value in SCALE_REWARDS:
        return SCALE_REWARDS[value]
    raise ValueError(
        f'GRPOConfig: scale_rewards must be True ("group") or False ("none"), got {value!r}; advantages are scaled by '
        "their group's deviation or not at all"
    )


def loss_type(value: Any) -> Any:
    """TRL's name of a loss type as the one here.

    Raises:
        ValueError: it is TRL's name of a policy loss.
    """
    if value == "cispo":
        raise ValueError(
            'GRPOConfig: loss_type must be an average, got "cispo"; write policy_loss="cispo", with an epsilon_high '
            "that is TRL's less 1, and TRL's average of it: loss_type=\"token-mean\""
        )
    return TRL_LOSS_TYPES.get(value, value) if isinstance(value, str) else value


def ratio_level(value: Any) -> Any:
    """TRL's ``importance_sampling_level``.

    Raises:
        ValueError: it is ``"sequence"``, which could be either of two here.
    """
    if value == "sequence":
        raise ValueError(
            'GRPOConfig: importance_sampling_level must be "token", "turn" or "trajectory", got "sequence"; TRL\'s '
            "sequence is a whole completion, here a trajectory, and a turn is what GSPO's single response is"
        )
    return value


def given(name: str, value: T | None, other: str = "", alias: T | None = None, default: T | None = None) -> T:
    """An argument of `GRPOTrainer` that is given under its own name or TRL's, `other`; else the default.

    Raises:
        TypeError: both are given, or neither where there is no default.
    """
    if value is not None and alias is not None:
        raise TypeError(f"GRPOTrainer: {name} must be given once, got {name}= and TRL's {other}=; leave one out")
    found = next((x for x in (value, alias, default) if x is not None), None)
    if found is None:
        raise TypeError(f"GRPOTrainer: {name} must be given, got None; pass {name}={f' or {other}=' if other else ''}")
    return found
