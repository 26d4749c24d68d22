"""Saving, tried before the first update: what cannot be saved is noticed at the start and not after the last one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .identity import is_adapted
from .readback import warn_where_it_reads_back_otherwise


def check_saveable(model: Any, tokenizer: Any, state: Any) -> None:
    """Write everything of a checkpoint but weights into a temporary folder; warn of a tokenizer that reads otherwise.

    Args:
        model: the bare policy.
        tokenizer: its tokenizer.
        state: what ``trainer_state.json`` will hold.

    Raises:
        ValueError: something could not be saved; the message names it and the fix.
    """
    fixes = {
        "generation_config": (
            "repair it, for instance model.generation_config.do_sample = True where a temperature is set, or replace "
            "it by transformers.GenerationConfig() (training does not read it)"
        ),
        "config": "remove the entry of model.config that is no plain value",
        "peft_config": "remove the entry of the adapter's configuration that is no plain value",
        "tokenizer": "load it with AutoTokenizer.from_pretrained, or mend its save_pretrained",
        "trainer state": "use plain values in the configuration",
    }
    with tempfile.TemporaryDirectory() as name:
        for part, save in _parts(model, tokenizer, state):
            try:
                save(Path(name))
            except Exception as error:
                raise ValueError(
                    f"GRPOTrainer: {part} must be something that can be saved, got {type(error).__name__}: "
                    f"{' '.join(str(error).split())}; {fixes[part]}"
                ) from error
        warn_where_it_reads_back_otherwise(tokenizer, Path(name))
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None and not is_adapted(model) and not quantizer.is_serializable():
        raise ValueError(
            f"GRPOTrainer: model must be something that can be saved, got weights quantised by "
            f"{type(quantizer).__name__}; load it without quantisation, or train an adapter (peft_config)"
        )


def _parts(model: Any, tokenizer: Any, state: Any) -> Iterator[tuple[str, Any]]:
    if is_adapted(model):
        for adapter in getattr(model, "peft_config", {}).values():
            yield "peft_config", adapter.save_pretrained
    elif hasattr(model.config, "save_pretrained"):
        yield "config", model.config.save_pretrained
        generates = getattr(model, "can_generate", lambda: True)()
        if generates and getattr(model, "generation_config", None) is not None:
            yield "generation_config", model.generation_config.save_pretrained
    yield "tokenizer", tokenizer.save_pretrained
    yield "trainer state", lambda folder: (folder / "trainer_state.json").write_text(json.dumps(state))
