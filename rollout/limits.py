"""How long a sequence a model can read and which ids it knows, from its configuration and its own modules."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_seq_length",
    "max_sequence_length",
    "n_ctx",
    "max_context_length",
    "context_length",
)
_TABLE = re.compile(r"(^|\.)(wpe|embed_positions|position_embeddings?|pos_emb(ed)?|embed_pos)$")
_SENSES = re.compile(r"vision|visual|image|video|audio|speech|patch")
# kinds of rotary scaling whose factor widens the range; llama3's configuration names the wide range
_WIDENED = ("linear", "yarn")


@dataclass(frozen=True)
class Positions:
    """Longest sequence of a model. Args: limit (tokens), source (where it stands), hard (longer ones raise)."""

    limit: int
    source: str
    hard: bool


def text_config(model: Any) -> Any:
    """The configuration of the language model inside `model`."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    with contextlib.suppress(ValueError, AttributeError):  # several text models in one, or none
        return base.config.get_text_config()
    return base.config


def embedding_rows(model: Any) -> int:
    """Rows of the input embedding, also where an adapter wraps it or ZeRO-3 shards it."""
    embedding = model.get_input_embeddings()
    rows = getattr(embedding, "num_embeddings", None)
    if rows is None:
        weight = embedding.weight
        rows = getattr(weight, "ds_shape", weight.shape)[0]
    return int(rows)


def model_positions(model: Any) -> Positions | None:
    """The longest sequence that `model` was made for, or None where nothing limits it (ALiBi, recurrent models).

    A table of learned positions is a hard limit; a configuration's number (rotary positions, scaled ones included)
    is the range the model was trained for. Where rotary frequencies change with the longest row of a batch, the length
    up to which they do not is the limit: scores of longer rows would depend on their neighbours.
    """
    tables = [
        (module.num_embeddings - _unused_rows(module), name)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and _TABLE.search(name) and not _SENSES.search(name)
    ]
    if tables:
        limit, name = min(tables)
        return Positions(limit, f"rows of {name}", True)
    config = text_config(model)
    if _uses_alibi(config):
        return None
    constant = constant_rotary_length(config)
    if constant is not None:
        return Positions(constant, "beyond it the rotary frequencies change with length", False)
    for name in _NAMES:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return Positions(_widened(config, value), f"config.{name}", False)
    return None


def constant_rotary_length(config: Any) -> int | None:
    """Up to which length rotary frequencies do not depend on the longest row of a batch; None where they never do."""
    settings = getattr(config, "rope_parameters", None) or {}
    limits = []
    for rope in (settings, *settings.values()):
        kind = (rope.get("rope_type") or "") if isinstance(rope, Mapping) else ""
        if "dynamic" in kind:
            limits.append(config.max_position_embeddings)
        elif kind == "longrope":
            limits.append(rope["original_max_position_embeddings"])
    return min(limits, default=None)


def _unused_rows(table: nn.Embedding) -> int:
    """Rows before the first position: OPT's offset, or those up to the pad's where positions count from there."""
    offset = getattr(table, "offset", None)
    if isinstance(offset, int):
        return offset
    return 0 if table.padding_idx is None else table.padding_idx + 1


def _uses_alibi(config: Any) -> bool:
    attention = getattr(config, "attn_config", None)
    inner = attention.get("alibi") if isinstance(attention, Mapping) else getattr(attention, "alibi", False)
    return bool(inner or getattr(config, "alibi", False) or getattr(config, "position_embedding_type", "") == "alibi")


def _widened(config: Any, limit: int) -> int:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(rope, Mapping):
        return limit
    kind = rope.get("rope_type", rope.get("type"))
    factor = rope.get("factor")
    if kind not in _WIDENED or not isinstance(factor, int | float):
        return limit
    return max(limit, int((rope.get("original_max_position_embeddings") or limit) * factor))


def check_row_lengths(function: str, model: Any, prompts: Any, responses: Any) -> None:
    """Refuse rows that are longer than the model's positions.

    Raises:
        ValueError: names the first such row, its lengths and the limit.
    """
    positions = model_positions(model)
    if positions is None:
        return
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        if len(prompt) + len(response) > positions.limit:
            raise ValueError(
                f"{function}: prompts and responses must fit the model's {positions.limit} positions "
                f"({positions.source}), got {len(prompt)} + {len(response)} tokens in row {row}; leave such turns out "
                "or load a model with more positions"
            )
