"""Attention masks of any shape, in the form that a model's own forward takes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .limits import text_config

_BACKENDS = ("sdpa", "eager", "flex_attention")
_WINDOWED = {"full_attention": False, "sliding_attention": True}


def attention_backend(model: Any) -> str:
    """The name of a model's attention implementation, such as ``"sdpa"``."""
    return getattr(text_config(model), "_attn_implementation", None) or "eager"


def attention_windows(model: Any) -> dict[str, int | None]:
    """Kind of layer -> how many tokens its attention reaches back, the token itself included; None for all.

    A model whose layers are of one kind has one entry.

    Raises:
        ValueError: layers of other kinds, such as recurrent ones, or an attention backend that takes no mask.
    """
    config, backend = text_config(model), attention_backend(model)
    if backend not in _BACKENDS:
        raise ValueError(
            f"attention_windows: the attention backend must be one of {_BACKENDS}, got {backend!r}; it takes no mask"
        )
    window = getattr(config, "sliding_window", None)
    kinds = dict.fromkeys(getattr(config, "layer_types", None) or ["sliding_attention"])
    if unknown := [kind for kind in kinds if kind not in _WINDOWED]:
        raise ValueError(
            f"attention_windows: layers must be of the kinds {tuple(_WINDOWED)}, got {unknown[0]!r}; such a layer "
            "takes no mask"
        )
    return {kind: window if _WINDOWED[kind] else None for kind in kinds}


def attention_masks(model: Any, visible: Tensor, query_positions: Tensor, key_positions: Tensor) -> Any:
    """What the model's forward takes as ``attention_mask`` so that its queries see these keys and no others.

    Sliding windows count positions in the text, not places in the sequence.

    Args:
        model: a causal language model; see `attention_windows`.
        visible: ``[B, 1, Q, K]`` bool, before sliding windows; every query must see a key.
        query_positions: ``[B, Q]`` int64, position of every query in its text.
        key_positions: ``[B, K]`` int64, of every key.

    Returns:
        A mask ``[B, 1, Q, K]``: bool for sdpa, added to the scores for eager, a ``BlockMask`` for flex_attention; where
        the layers are of several kinds, one each in a mapping by kind.

    Raises:
        ValueError: see `attention_windows`.
    """
    masks, made = {}, {}
    for kind, window in attention_windows(model).items():
        if window not in made:
            seen = visible
            if window is not None:
                near = query_positions[:, :, None] - key_positions[:, None, :] < window
                seen = visible & near[:, None]
            made[window] = _as_taken(model, seen)
        masks[kind] = made[window]
    return masks if len(masks) > 1 else next(iter(masks.values()))


def tree_masks(model: Any, ends: Tensor, position_ids: Tensor) -> Any:
    """`attention_masks` of sequences that hold trees, depth first.

    Args:
        model: a causal language model.
        ends: ``[B, S]`` int64: token j is visible to token i where ``j <= i < ends[j]``.
        position_ids: ``[B, S]`` int64, depth of every token in its row.
    """
    place = torch.arange(ends.shape[1], device=ends.device)
    visible = (place[None, None, :] <= place[None, :, None]) & (place[None, :, None] < ends[:, None, :])
    return attention_masks(model, visible[:, None], position_ids, position_ids)


def _as_taken(model: Any, visible: Tensor) -> Any:
    backend = attention_backend(model)
    if backend == "eager":
        mask = torch.zeros(visible.shape, dtype=model.dtype, device=visible.device)
        return mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)
    if backend == "flex_attention":
        from torch.nn.attention.flex_attention import create_block_mask

        def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return visible[batch, 0, query, key]

        rows, _, queries, keys = visible.shape
        return create_block_mask(seen, rows, None, queries, keys, device=str(visible.device))
    return visible
