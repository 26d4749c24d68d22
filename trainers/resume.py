"""Saving a run and going on as if nothing had happened: what is written and how it comes back."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object
from safetensors.torch import load_file, save_file

from .budget import restore_steps
from .checkpoint import (
    Stateful,
    checkpoint_folder,
    latest_checkpoint,
    prune_checkpoints,
    read_part,
    replace_text,
    verify_checkpoint,
    write_checkpoint,
    write_part,
)
from .distributed import agree_max, full_weights, is_sharded, load_full_weights, zero_stage
from .guard import set_later_aside
from .identity import check_resumable, describe_suite, fingerprint_of, is_adapted, plain, unmoved
from .model_files import RUN_CARD as RUN_CARD
from .model_files import gather_weights, write_model
from .optimizer_state import collect_optimizer, restore_optimizer
from .rehearsal import check_saveable
from .rows import MicroBatchLimits

if TYPE_CHECKING:
    from .grpo import GRPOTrainer

logger = logging.getLogger(__name__)

EVALUATION = "evaluation.json"
"""File in a checkpoint: the metrics of the evaluation that followed it. It is not in the manifest."""


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


def save_run(trainer: GRPOTrainer) -> Path:
    """Write a checkpoint under ``output_dir/checkpoints``; collective, every process calls it.

    Raises:
        OSError: process 0 could not write it; every process raises, earlier checkpoints are untouched.
    """
    root = trainer.folder / "checkpoints"
    accelerator, main = trainer.accelerator, trainer.accelerator.is_main_process
    weights = gather_weights(trainer)
    optimizer = collect_optimizer(accelerator, trainer.scorer, trainer.optimizer)
    parts = {name: part.state_dict() for name, part in trainer.parts.items()}
    rng = gather_object([rng_state()])
    failure: OSError | None = None
    if main:
        try:
            folder = write_checkpoint(
                root, trainer.step, lambda path: _write(trainer, path, weights, optimizer, parts, rng)
            )
            set_later_aside(root, trainer.step)
            prune_checkpoints(root, trainer.config.save_total_limit, keep=folder)
        except Exception as error:  # safetensors and torch wrap what the disk says
            failure = error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}")
    if agree_max(accelerator, [int(failure is not None)])[0]:
        raise failure or OSError("process 0 could not write the checkpoint")
    trainer.saved_step = trainer.step
    return root


def rehearse_save(trainer: GRPOTrainer) -> None:
    """Try at the start what saving does, all but the weights; see `check_saveable`."""
    check_saveable(trainer.model, trainer.tokenizer, _state(trainer), trainer.method.state)


def record_evaluation(trainer: GRPOTrainer) -> None:
    """Put the evaluation that followed an update into the update's checkpoint, where there is one."""
    if trainer.saved_step != trainer.step or not trainer.accelerator.is_main_process:
        return
    folder = checkpoint_folder(trainer.folder / "checkpoints", trainer.step)
    try:
        replace_text(folder / EVALUATION, json.dumps(trainer.evaluation))
    except OSError as error:
        logger.warning("the evaluation of update %d is not in its checkpoint: %s", trainer.step, error)


def _write(
    trainer: GRPOTrainer,
    folder: Path,
    weights: dict[str, Any],
    optimizer: Any,
    parts: Mapping[str, Mapping[str, Any]],
    rng: list[Any],
) -> None:
    model = trainer.model
    write_model(trainer, folder / "model", weights)
    if is_adapted(model):
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        save_file({name: weights[name].contiguous() for name in trained}, folder / "trained.safetensors")
    torch.save(optimizer, folder / "optimizer.pt")
    torch.save(rng, folder / "rng.pt")
    for name, state in parts.items():
        write_part(folder, name, state)
    (folder / "trainer_state.json").write_text(json.dumps(_state(trainer), indent=1), encoding="utf-8")
    if trainer.evaluation is not None:
        (folder / EVALUATION).write_text(json.dumps(trainer.evaluation), encoding="utf-8")


def _state(trainer: GRPOTrainer) -> dict[str, Any]:
    return {
        "step": trainer.step,
        "environment_steps": trainer.environment_steps,
        "skipped_steps": trainer.skipped_steps,
        "empty_updates": trainer.empty_updates,
        "best": trainer.best,
        "tracker_runs": trainer.tracker_runs,
        "metrics": trainer.update_metrics,
        "evaluation_due": trainer.evaluation_due,
        "micro_batch": [trainer.limits.tokens, trainer.limits.rows],
        "micro_batch_asked": _micro_batch_asked(trainer),
        "config": plain(trainer.config.to_dict()),
        "fingerprint": fingerprint_of(trainer),
        **trainer.description,
        "suite": unmoved(trainer.description["suite"], describe_suite(trainer.suite)),
        "adapter": is_adapted(trainer.model),
        "num_processes": trainer.accelerator.num_processes,
    }


def _micro_batch_asked(trainer: GRPOTrainer) -> list[int | None]:
    """What this run's options ask for on this device, before memory ran out."""
    limits = MicroBatchLimits.of(trainer.config, trainer.accelerator.device.type)
    return [limits.tokens, limits.rows]


def find_run(root: Path, source: str | bool) -> Path | None:
    """The checkpoint folder `source` means: True is the newest good one under `root`, or None."""
    if source is True:
        folder, complaints = latest_checkpoint(root)
        for complaint in complaints:
            logger.warning("checkpoint left aside: %s", complaint)
        return folder
    folder = Path(str(source))
    if not folder.is_dir():
        raise FileNotFoundError(
            f"GRPOTrainer.resume: source must be a checkpoint folder, got {folder}; name one under "
            "output_dir/checkpoints, or pass True for the newest"
        )
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


def load_run(trainer: GRPOTrainer, source: str | bool, allow_changed_config: bool) -> bool:
    """Put a trainer where a checkpoint was written; False when True finds none."""
    model, accelerator = trainer.model, trainer.accelerator
    folder = agree_on_run(accelerator, trainer.folder / "checkpoints", source)
    if folder is None:
        return False
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    missing = sorted({"adapter", "micro_batch", "empty_updates"} - state.keys())
    if missing:
        raise ValueError(
            f"GRPOTrainer.resume: source must be a checkpoint of this version, but the state in {folder} "
            f"lacks {missing}; start anew from its model folder"
        )
    if state["adapter"] != is_adapted(model):
        raise ValueError(
            "GRPOTrainer.resume: peft_config must be given, as in the checkpoint, got None; pass the run's LoraConfig "
            "(--lora-rank in the examples)"
            if state["adapter"]
            else "GRPOTrainer.resume: peft_config must be None, as in the checkpoint, got a model with an adapter; "
            "leave it out, or start anew from the checkpoint's model folder"
        )
    changed = check_resumable(state, trainer.config, fingerprint_of(trainer), trainer.description, allow_changed_config)
    if changed:
        logger.warning("going on from %s although it differs: %s", folder.name, "; ".join(changed))
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
    for name, part in trainer.parts.items():
        _restore_part(folder, name, part)
    if state["num_processes"] == accelerator.num_processes:
        load_rng_state(torch.load(folder / "rng.pt", weights_only=True)[accelerator.process_index])
    trainer.step, trainer.best = state["step"], state["best"]
    restore_steps(trainer, state)
    trainer.tracker_runs = state.get("tracker_runs", {})
    trainer.skipped_steps, trainer.empty_updates = state["skipped_steps"], state["empty_updates"]
    config = state["config"]
    asked = state.get("micro_batch_asked") or [config["micro_batch_tokens"], config.get("per_device_train_batch_size")]
    if asked == _micro_batch_asked(trainer):
        trainer.limits.tokens, trainer.limits.rows = state["micro_batch"]
    trainer.update_metrics, trainer.evaluation_due = state.get("metrics"), state.get("evaluation_due", False)
    trainer.evaluation = _recorded_evaluation(folder)
    trainer.note_best()
    same_place = folder.resolve() == checkpoint_folder(trainer.folder / "checkpoints", trainer.step).resolve()
    trainer.saved_step = trainer.step if same_place else -1
    trainer.came_from_elsewhere = not same_place
    return True


def _restore_part(folder: Path, name: str, part: Stateful) -> None:
    """A part of the run as the checkpoint holds it; anew where it does not, as its method had no such part."""
    state = read_part(folder, name)
    if state is not None:
        part.load_state_dict(state)
        return
    logger.warning("%s holds no %s; it begins anew", folder.name, name)
    getattr(part, "reset", lambda: None)()


def _recorded_evaluation(folder: Path) -> dict[str, float] | None:
    try:
        found = json.loads((folder / EVALUATION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
