"""Saving a run and going on as if nothing had happened: what is written, what must be equal, what must come back."""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object
from safetensors.torch import load_file, save_file

from ..envs import Task
from .checkpoint import latest_checkpoint, prune_checkpoints, verify_checkpoint, write_checkpoint
from .distributed import agree_max, full_weights, is_sharded, load_full_weights, zero_stage
from .guard import set_later_aside
from .optimizer_state import collect_optimizer, restore_optimizer
from .reference import InitialWeights

if TYPE_CHECKING:
    from .grpo import GRPOTrainer

logger = logging.getLogger(__name__)

# may differ between a run and its continuation: they change what is written or how fast, not what is learned
FREE_OPTIONS = frozenset(
    {
        "output_dir",
        "max_steps",
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
        "report_to",
        "max_skipped_steps",
        "preflight",
    }
)

# where the base model lies and who wrote the adapter
_FREE_ADAPTER_OPTIONS = frozenset({"base_model_name_or_path", "revision", "peft_version", "auto_mapping"})


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


def fingerprint(
    tokenizer: Any,
    train_tasks: Sequence[Task],
    eval_tasks: Sequence[Task],
    initial_model: str,
    adapters: Mapping[str, Any],
) -> dict[str, str]:
    """Short hashes of what a continued run must share with the one before; `adapters`: peft configurations by name."""

    def digest(value: Any) -> str:
        return hashlib.sha256(json.dumps(value, sort_keys=True, default=_plain).encode()).hexdigest()[:16]

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


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else str(value)


def check_resumable(
    saved: Mapping[str, Any], config: Mapping[str, Any], current: Mapping[str, str], allow_changed_config: bool
) -> None:
    """Raise a ValueError when a checkpoint belongs to another run.

    Args:
        saved: the checkpoint's trainer state.
        config: this run's options.
        current: this run's fingerprint; the model that training started from counts where a reference or an adapter
            builds on it.
        allow_changed_config: let options differ; a different tokenizer is never allowed.
    """
    if saved["fingerprint"]["tokenizer"] != current["tokenizer"]:
        raise ValueError(
            "GRPOTrainer.resume: tokenizer must be the checkpoint's, got another vocabulary or chat template; "
            "load the tokenizer from the checkpoint's model folder"
        )
    marks = ["train_tasks", "eval_tasks", "peft_config"]
    marks += ["initial_model"] * (config["beta"] > 0 or saved["adapter"])
    changed = [name for name in marks if saved["fingerprint"][name] != current[name]]
    here = json.loads(json.dumps(config))
    # a schedule that ends at max_steps depends on it
    free = FREE_OPTIONS - ({"max_steps"} if here["lr_scheduler_type"] != "constant" else set())
    names = sorted({*saved["config"], *here} - free)
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


def save_run(trainer: GRPOTrainer) -> Path:
    """Write a checkpoint under ``output_dir/checkpoints``; collective, every process calls it.

    Raises:
        OSError: process 0 could not write it; every process raises, earlier checkpoints are untouched.
    """
    root = trainer.folder / "checkpoints"
    accelerator, main = trainer.accelerator, trainer.accelerator.is_main_process
    # an adapter's checkpoint holds no frozen weight
    weights = full_weights(trainer.model, keep=main, trainable_only=is_adapted(trainer.model))
    optimizer = collect_optimizer(accelerator, trainer.scorer, trainer.optimizer)
    rng = gather_object([rng_state()])
    failure: OSError | None = None
    if main:
        try:
            folder = write_checkpoint(root, trainer.step, lambda path: _write(trainer, path, weights, optimizer, rng))
            set_later_aside(root, trainer.step)
            prune_checkpoints(root, trainer.config.save_total_limit, keep=folder)
        except Exception as error:  # safetensors and torch wrap what the disk says
            failure = error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}")
    if agree_max(accelerator, [int(failure is not None)])[0]:
        raise failure or OSError("process 0 could not write the checkpoint")
    return root


def _write(trainer: GRPOTrainer, folder: Path, weights: dict[str, Any], optimizer: Any, rng: list[Any]) -> None:
    model = trainer.model
    # persistent buffers are not parameters, and tied weights stand in the file once
    parameters = dict(model.named_parameters(remove_duplicate=False))
    extra = {name: value for name, value in model.state_dict().items() if name not in parameters}
    model.save_pretrained(folder / "model", state_dict={**weights, **extra})
    trainer.tokenizer.save_pretrained(folder / "model")
    if is_adapted(model):
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        save_file({name: weights[name].contiguous() for name in trained}, folder / "trained.safetensors")
    torch.save(optimizer, folder / "optimizer.pt")
    torch.save(rng, folder / "rng.pt")
    if trainer.snapshot is not None:
        save_file(trainer.snapshot.weights, folder / "teacher.safetensors")
    if isinstance(trainer.policy.reference, InitialWeights):
        save_file(trainer.policy.reference.snapshot.weights, folder / "reference.safetensors")
    state = {
        "step": trainer.step,
        "skipped_steps": trainer.skipped_steps,
        "empty_updates": trainer.empty_updates,
        "best": trainer.best,
        "micro_batch": [trainer.limits.tokens, trainer.limits.rows],
        "config": asdict(trainer.config),
        "fingerprint": _fingerprint(trainer),
        "adapter": is_adapted(model),
        "num_processes": trainer.accelerator.num_processes,
    }
    (folder / "trainer_state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")


def is_adapted(model: Any) -> bool:
    """Whether the model carries a peft adapter."""
    return hasattr(model, "disable_adapter")


def _fingerprint(trainer: GRPOTrainer) -> dict[str, str]:
    adapters = getattr(trainer.model, "peft_config", {}) if is_adapted(trainer.model) else {}
    return fingerprint(trainer.tokenizer, trainer.train_tasks, trainer.eval_tasks, trainer.policy.initial, adapters)


def find_run(root: Path, source: str | bool) -> Path | None:
    """The checkpoint folder `source` means: True is the newest good one under `root`, or None."""
    if source is True:
        folder, complaints = latest_checkpoint(root)
        for complaint in complaints:
            logger.warning("checkpoint left aside: %s", complaint)
        return folder
    folder = Path(str(source))
    if not folder.is_dir():
        raise FileNotFoundError(f"GRPOTrainer.resume: source must be a checkpoint folder, got {folder}")
    problem = verify_checkpoint(folder)
    if problem is not None:
        raise ValueError(f"GRPOTrainer.resume: source must be a whole checkpoint, but in {folder} {problem}")
    return folder


def agree_on_run(accelerator: Any, root: Path, source: str | bool) -> Path | None:
    """What `find_run` answers, or raises, on process 0: checksums are read once and all take the same; collective."""
    answer: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            answer[0] = find_run(root, source)
        except (OSError, ValueError) as error:
            answer[1] = error
    broadcast_object_list(answer)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]


def load_run(trainer: GRPOTrainer, source: str | bool, allow_changed_config: bool) -> None:
    """Put a trainer where a checkpoint was written; does nothing when True finds none."""
    model, accelerator = trainer.model, trainer.accelerator
    folder = agree_on_run(accelerator, trainer.folder / "checkpoints", source)
    if folder is None:
        return
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    missing = sorted({"adapter", "micro_batch", "empty_updates"} - state.keys())
    if missing:
        raise ValueError(
            f"GRPOTrainer.resume: source must be a checkpoint of this version, but the state in {folder} "
            f"lacks {missing}; start anew from its model folder"
        )
    if state["adapter"] != is_adapted(model):
        raise ValueError(
            f"GRPOTrainer.resume: peft_config must be {'given' if state['adapter'] else 'None'}, as in the checkpoint"
        )
    check_resumable(state, asdict(trainer.config), _fingerprint(trainer), allow_changed_config)
    if state["adapter"]:
        load_full_weights(model, load_file(folder / "trained.safetensors"))
    else:
        # the widest kind: trained float32 weights beside frozen ones in bf16 must not be rounded on their way
        kinds = {parameter.dtype for parameter in model.parameters()}
        kind = torch.float32 if torch.float32 in kinds else next(model.parameters()).dtype
        loaded = type(model).from_pretrained(folder / "model", dtype=kind)
        keep = accelerator.is_main_process or not is_sharded(model)
        load_full_weights(model, full_weights(loaded, keep), [name for name, _ in loaded.named_parameters()])
        buffers = {name: value for name, value in loaded.named_buffers() if value.device.type != "meta"}
        for name, buffer in model.named_buffers():
            if name in buffers and buffers[name].shape == buffer.shape:
                buffer.copy_(buffers[name])
    # under ZeRO every process copies its part out of the file; without it the optimiser keeps what was read
    mapped = zero_stage(accelerator) > 0
    optimizer = torch.load(folder / "optimizer.pt", weights_only=True, map_location="cpu", mmap=mapped)
    restore_optimizer(accelerator, trainer.scorer, trainer.optimizer, optimizer)
    if trainer.snapshot is not None and trainer.snapshot.keeps:
        trainer.snapshot.weights = load_file(folder / "teacher.safetensors")
    reference = trainer.policy.reference
    kept = folder / "reference.safetensors"
    if (
        isinstance(reference, InitialWeights) and reference.snapshot.keeps and kept.exists()
    ):  # an adapter's own start may be random
        reference.snapshot.weights = load_file(kept)
    if state["num_processes"] == accelerator.num_processes:
        load_rng_state(torch.load(folder / "rng.pt", weights_only=True)[accelerator.process_index])
    trainer.step, trainer.best = state["step"], state["best"]
    trainer.skipped_steps, trainer.empty_updates = state["skipped_steps"], state["empty_updates"]
    if state["config"]["micro_batch_tokens"] == trainer.config.micro_batch_tokens:
        trainer.limits.tokens, trainer.limits.rows = state["micro_batch"]
