"""A model as a folder that `from_pretrained` reads, with its card, and the folder of the best one; also under ZeRO."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers.utils import logging as transformers_logging

from .cards import CARD, model_card
from .distributed import agree_max, full_weights
from .identity import is_adapted

if TYPE_CHECKING:
    from .grpo import GRPOTrainer

logger = logging.getLogger(__name__)

RUN_CARD = "turncredit.json"
"""File beside a saved model: the suite, with its prompt format, that the model was trained on."""

BEST = "best"
"""Folder in the output folder: the model of the best evaluation."""

BEST_CARD = "best.json"
"""File in that folder: the update after which the evaluation was made, and its metrics."""


def gather_weights(trainer: GRPOTrainer) -> dict[str, Tensor]:
    """Copies of what a saved model holds, on process 0, {} on others; of an adapter its own weights; collective."""
    main = trainer.accelerator.is_main_process
    return full_weights(trainer.model, keep=main, trainable_only=is_adapted(trainer.model))


def write_model(trainer: GRPOTrainer, folder: Path, weights: dict[str, Tensor]) -> None:
    """Write model, tokenizer, what the run was, and the model card; process 0 alone."""
    model = trainer.model
    with _without_bars():  # a bar of one file in the middle of the run's own
        model.save_pretrained(folder, state_dict={**weights, **_beside_parameters(model, weights)})
    trainer.tokenizer.save_pretrained(folder)
    (folder / RUN_CARD).write_text(json.dumps({"suite": trainer.description["suite"]}), encoding="utf-8")
    (folder / CARD).write_text(model_card(trainer), encoding="utf-8")


def keep_best(trainer: GRPOTrainer) -> None:
    """Write the model into ``output_dir/best`` if its evaluation is the best so far; collective.

    The evaluation before the first update sets the mark, but nothing is written for it: that model was there before.
    A folder that cannot be written costs itself and not the run.
    """
    step = trainer.step
    if not trainer.config.save_best or not step or trainer.best.get("step") != step or trainer.torn:
        return
    main, final = trainer.accelerator.is_main_process, trainer.folder / BEST
    if not agree_max(trainer.accelerator, [int(main and best_step(final) != step)])[0]:
        return
    weights = gather_weights(trainer)
    if not main:
        return
    temporary, former = (trainer.folder / f".{BEST}.{kind}.tmp" for kind in ("new", "former"))
    try:
        for left in (temporary, former):
            shutil.rmtree(left, ignore_errors=True)
        temporary.mkdir()
        write_model(trainer, temporary, weights)
        found = {"step": step, "success": trainer.best["success"], "evaluation": trainer.evaluation}
        (temporary / BEST_CARD).write_text(json.dumps(found, indent=1), encoding="utf-8")
        if final.exists():
            os.replace(final, former)
        os.replace(temporary, final)
    except Exception as error:  # safetensors wraps what the disk says
        logger.warning("the best model so far, of update %d, could not be written: %s", step, error)
    finally:
        for left in (temporary, former):
            shutil.rmtree(left, ignore_errors=True)


def best_step(folder: Path) -> int | None:
    """The update whose model a folder of the best one holds; None where there is none."""
    try:
        return int(json.loads((folder / BEST_CARD).read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Inside, transformers draws no progress bars."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _beside_parameters(model: Any, weights: dict[str, Any]) -> dict[str, Any]:
    """Persistent buffers, and weights that are tied although the model does not say so: a reader would not tie them."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    extra = {name: value.clone() for name, value in model.state_dict().items() if name not in parameters}
    if is_adapted(model):
        return extra
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    declared = getattr(model, "all_tied_weights_keys", None) or {}
    for name, parameter in parameters.items():
        if name not in weights and name not in declared:
            extra[name] = weights[first[id(parameter)]].clone()
    return extra
