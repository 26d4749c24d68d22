"""What a continued run must share with the one before, and how a difference is named."""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from ..credit import get_credit, list_credits
from ..envs import Task
from .config import MOVED, GRPOConfig, flat_options
from .distributed import zero_stage
from .methods.providers import find_provider, list_providers

if TYPE_CHECKING:
    from .grpo import GRPOTrainer

# may differ between a run and its continuation: they change what is written or how fast, not what is learned
FREE_OPTIONS = frozenset(
    {
        "output_dir",
        "max_steps",
        "max_environment_steps",
        "num_envs",
        "num_workers",
        "env_timeout",
        "max_worker_rss_mb",
        "ds3_gather_for_generation",
        "eval_steps",
        "num_eval_tasks",
        "eval_temperature",
        "save_steps",
        "save_total_limit",
        "log_completions",
        "save_rollouts",
        "save_rollouts_limit",
        "report_to",
        "logging_steps",
        "disable_tqdm",
        "save_best",
        "collapse_patience",
        "max_skipped_steps",
        "preflight",
    }
)

# what versions that did not have these options did, where that is not today's default
_BEFORE = {"share_prefixes": False, "continuous_batching": False}

# where the base model lies and who wrote the adapter
_FREE_ADAPTER_OPTIONS = frozenset({"base_model_name_or_path", "revision", "peft_version", "auto_mapping"})

# attributes of a suite that say where something lies on this machine
_PLACES = re.compile(r"(^|_)(data|root|folder|dir|directory|path|file|url|cache|host|port|retriever)s?$")

_LONGEST = 100
"""Entries of a suite's list that a checkpoint writes out."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def is_adapted(model: nn.Module) -> bool:
    """Whether the model carries a peft adapter."""
    return hasattr(model, "disable_adapter")


def fingerprint(
    tokenizer: PreTrainedTokenizerBase,
    train_tasks: Sequence[Task],
    eval_tasks: Sequence[Task],
    initial_model: str,
    adapters: Mapping[str, Any],
) -> dict[str, str]:
    """Short hashes of what a continued run must share with the one before; `adapters`: peft configurations by name."""

    def digest(value: Any) -> str:
        return hashlib.sha256(json.dumps(value, sort_keys=True, default=_sorted).encode()).hexdigest()[:16]

    return {
        "tokenizer": digest([sorted(tokenizer.get_vocab().items()), tokenizer.chat_template]),
        "train_tasks": digest([task.id for task in train_tasks]),
        "eval_tasks": digest([task.id for task in eval_tasks]),
        "initial_model": initial_model,
        "peft_config": digest(
            {
                name: {key: value for key, value in adapter.to_dict().items() if key not in _FREE_ADAPTER_OPTIONS}
                for name, adapter in adapters.items()
            }
        ),
    }


def _sorted(value: Any) -> Any:
    return sorted(value, key=str) if isinstance(value, set) else _text(value)


def _text(value: Any) -> str:
    """The text of an object without its address in memory, which every process has anew."""
    if isinstance(value, functools.partial):
        return f"partial of {_text(value.func)}"
    return getattr(value, "__qualname__", None) or _ADDRESS.sub("", str(value))


def fingerprint_of(trainer: GRPOTrainer) -> dict[str, str]:
    """The fingerprint of a trainer's run."""
    adapters = getattr(trainer.model, "peft_config", {}) if is_adapted(trainer.model) else {}
    return fingerprint(trainer.tokenizer, trainer.train_tasks, trainer.eval_tasks, trainer.policy.initial, adapters)


def describe_run(trainer: GRPOTrainer) -> dict[str, dict[str, Any]]:
    """What is written into a checkpoint in plain words, so that a difference can be named, not only noticed.

    Taken when the trainer is made: a suite may count things in its attributes later.

    Returns:
        ``suite``: its name and plain public attributes (turn limit, history, reward, ..) and the names of its prompt
        builder and parser, but no place on this machine; ``setup``: attention, precision, ZeRO stage; ``method``: its
        credit function, terms and every option, defaults included.
    """
    model_config = trainer.model.config
    text_config = model_config.get_text_config() if hasattr(model_config, "get_text_config") else model_config
    setup = {
        "attn_implementation": getattr(text_config, "_attn_implementation", None),
        "dtype": str(next(trainer.model.parameters()).dtype),
        "mixed_precision": str(trainer.accelerator.mixed_precision),
        "zero_stage": zero_stage(trainer.accelerator),
        "teacher_weights": trainer.teacher.digest,
    }
    return {"suite": describe_suite(trainer.suite), "setup": setup, "method": plain(trainer.method.described())}


def describe_suite(suite: object) -> dict[str, Any]:
    """Plain attributes of a task suite by name; see `describe_run`."""
    found: dict[str, Any] = {}
    for name, value in getattr(suite, "__dict__", {}).items():
        function = value.func if isinstance(value, functools.partial) else value
        if hasattr(function, "__qualname__"):
            found[name.lstrip("_")] = function.__qualname__
        elif name.startswith("_") or _PLACES.search(name):
            continue
        elif is_dataclass(value) and not isinstance(value, type):
            found |= {f"{name}.{key}": inner for key, inner in describe_suite(value).items()}
        elif _is_plain(value):
            found[name] = _short(plain(value))
    for name in ("name", "max_turns", "history_length", "stop_strings", "causal_span", "tools", "chat_template_kwargs"):
        try:
            value = getattr(suite, name, None)
        except Exception:  # a property; what needs it says so when it is asked
            continue
        if _is_plain(value) and value is not None:
            found[name] = _short(plain(value))
    return found


def unmoved(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of a suite's description that are as they were: what a suite counts or caches is no option of a run."""
    return {name: value for name, value in before.items() if repr(now.get(name)) == repr(value)}


def _short(value: Any) -> Any:
    """The value, or a hash of a long list: a suite may keep all its words, and every checkpoint would repeat them."""
    if not isinstance(value, list) or len(value) <= _LONGEST:
        return value
    return f"{len(value)} entries, {hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return not os.path.isabs(value) or value.startswith("</")
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, np.generic, enum.Enum))


def plain(value: Any) -> Any:
    """The value as JSON knows it; of tensors and arrays their numbers, of anything else its text."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=str)
    if isinstance(value, (tuple, list)):
        return [plain(inner) for inner in value]
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, enum.Enum):
        return plain(value.value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else _text(value)


def check_resumable(
    saved: Mapping[str, Any],
    config: GRPOConfig,
    current: Mapping[str, str],
    description: Mapping[str, Mapping[str, Any]],
    allow_changed_config: bool,
) -> list[str]:
    """What differs between a checkpoint and this run, as far as it matters; empty where nothing does.

    Args:
        saved: the checkpoint's trainer state; what one of an earlier version does not say is not compared.
        config: this run's options.
        current: this run's fingerprint; the model that training started from counts where a reference or an adapter
            builds on it.
        description: see `describe_run`.
        allow_changed_config: let options differ; a different tokenizer is never allowed.

    Raises:
        ValueError: something differs and that is not allowed.
    """
    if saved["fingerprint"]["tokenizer"] != current["tokenizer"]:
        raise ValueError(
            "GRPOTrainer.resume: tokenizer must be the checkpoint's, got another vocabulary or chat template; "
            "load the tokenizer from the checkpoint's model folder"
        )
    marks = ["train_tasks", "eval_tasks", "peft_config"]
    marks += ["initial_model"] * (config.beta > 0 or saved["adapter"])
    changed = [name for name in marks if saved["fingerprint"][name] != current[name]]
    options = _changed_options(saved["config"], config, description["method"].get("options", {}))
    if "eval_tasks" in changed and flat_options(saved["config"]).get("num_eval_tasks") != config.num_eval_tasks:
        changed.remove("eval_tasks")
    same_method = not any(line.startswith(("credit:", "credit_options")) for line in options)
    changed += options
    for part in ("suite", "setup") + ("method",) * same_method:
        before, here = saved.get(part, {}), _through_json(description[part])
        before = _with_new_options(before, here) if part == "method" else before
        changed += _differences(f"{part}.", before, {key: value for key, value in here.items() if key in before})
    if changed and not allow_changed_config:
        raise ValueError(
            f"GRPOTrainer.resume: config must equal the checkpoint's where it matters, got {'; '.join(changed)}; "
            "pass allow_changed_config=True to go on all the same"
        )
    return changed


def _with_new_options(before: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
    """A method's description with the options that its version did not have, at their defaults, as it took them."""
    providers = [provider for provider in map(find_provider, list_providers()) if provider is not None]
    known = {name: value for provider in providers for name, value in provider.defaults.items()}
    if here["credit"] in list_credits():
        known |= get_credit(here["credit"]).options
    new = {
        part: {name: known[name] for name in sorted(here[part].keys() & known.keys())}
        for part in ("credit_options", "options")
        if part in before
    }
    return {**before, **{part: {**plain(options), **before[part]} for part, options in new.items()}}


def _changed_options(saved: Mapping[str, Any], config: GRPOConfig, of_method: Mapping[str, Any]) -> list[str]:
    """Options that differ; one that the checkpoint's version did not have was at its default, or see `_BEFORE`.

    Options that earlier versions had in the configuration are compared with the method's resolved ones.
    """
    here, defaults = (_through_json(plain(options.to_dict())) for options in (config, GRPOConfig()))
    # a schedule that ends at max_steps depends on it
    free = FREE_OPTIONS - ({"max_steps"} if config.lr_scheduler_type != "constant" else set())
    before = {**defaults, **_BEFORE, **flat_options(saved)}
    for old, new in MOVED.items():
        if old in saved and new in of_method:
            before["credit_options"] = {new: saved[old], **before["credit_options"]}
            here["credit_options"] = {new: of_method[new], **here["credit_options"]}
    return _differences("", before, {name: value for name, value in here.items() if name not in free})


def _differences(prefix: str, before: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    lines = []
    for name in sorted(before.keys() & here.keys()):
        old, new = before[name], here[name]
        if old != new and isinstance(old, dict) and isinstance(new, dict):
            lines += _differences(f"{prefix}{name}.", old, new)
            lines += [f"{prefix}{name}.{key}: {old[key]!r} -> absent" for key in sorted(old.keys() - new.keys())]
            lines += [f"{prefix}{name}.{key}: absent -> {new[key]!r}" for key in sorted(new.keys() - old.keys())]
        elif old != new and repr(old) != repr(new):  # NaN is not even itself
            lines.append(f"{prefix}{name}: {old!r} -> {new!r}")
    return lines


def _through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
