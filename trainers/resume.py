"""What must be equal for a run to go on as if nothing had happened, and the random states that must come back."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..envs import Task

# may differ between a run and its continuation: they change what is written or how fast, not what is learned
FREE_OPTIONS = frozenset(
    {
        "output_dir",
        "max_steps",
        "num_envs",
        "num_workers",
        "eval_steps",
        "num_eval_tasks",
        "eval_temperature",
        "save_steps",
        "save_total_limit",
        "log_completions",
        "report_to",
        "max_skipped_steps",
    }
)


def rng_state() -> dict[str, Any]:
    """Random states of Python, NumPy and torch, as tensors, numbers and lists only."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    state: dict[str, Any] = {
        "python": [version, list(internal), gauss],
        "numpy": [name, [int(key) for key in np.asarray(keys)], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def load_rng_state(state: Mapping[str, Any]) -> None:
    """Put back what `rng_state` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def fingerprint(tokenizer: Any, train_tasks: Sequence[Task], eval_tasks: Sequence[Task]) -> dict[str, str]:
    """Short hashes of what a continued run must share with the one before."""

    def digest(value: Any) -> str:
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]

    return {
        "tokenizer": digest([sorted(tokenizer.get_vocab().items()), tokenizer.chat_template]),
        "train_tasks": digest([task.id for task in train_tasks]),
        "eval_tasks": digest([task.id for task in eval_tasks]),
    }


def check_resumable(
    saved: Mapping[str, Any], config: Mapping[str, Any], current: Mapping[str, str], allow_changed_config: bool
) -> None:
    """Raise a ValueError when a checkpoint belongs to another run.

    Args:
        saved: the checkpoint's trainer state.
        config: this run's options.
        current: this run's fingerprint.
        allow_changed_config: let options differ; a different tokenizer is never allowed.
    """
    if saved["fingerprint"]["tokenizer"] != current["tokenizer"]:
        raise ValueError(
            "GRPOTrainer.resume: tokenizer must be the checkpoint's, got another vocabulary or chat template; "
            "load the tokenizer from the checkpoint's model folder"
        )
    changed = [name for name in ("train_tasks", "eval_tasks") if saved["fingerprint"][name] != current[name]]
    here = json.loads(json.dumps(config))
    names = sorted({*saved["config"], *here} - FREE_OPTIONS)
    changed += [
        f"{name}: {saved['config'].get(name)!r} -> {here.get(name)!r}"
        for name in names
        if saved["config"].get(name) != here.get(name)
    ]
    if "eval_tasks" in changed and saved["config"].get("num_eval_tasks") != here.get("num_eval_tasks"):
        changed.remove("eval_tasks")
    if changed and not allow_changed_config:
        raise ValueError(
            f"GRPOTrainer.resume: config must equal the checkpoint's where it matters, got {'; '.join(changed)}; "
            "pass allow_changed_config=True to go on all the same"
        )
