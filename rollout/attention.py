"""Attention masks of any shape, in the form that a model's own forward takes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .limits import embedding_rows, text_config

_BACKENDS = ("sdpa", "eager", "flex_attention")
_WINDOWED = {"full_attention": False, "sliding_attention": True}
_TRIED_WINDOW = 6
# what counts places of the sequence, further than a trial reaches
_BY_PLACE = (
    "window_size",
    "attention_window_size",
    "sliding_window_size",
    "local_attention",
    "attn_temperature_tuning",
)


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
    if getattr(config, "model_type", None) == "gpt_neo":  # a trial shorter than its window would not tell
        raise ValueError(
            "attention_windows: windows must be in the mask, got GPT-Neo's layers, whose own tables count places in "
            "the sequence"
        )
    window = getattr(config, "sliding_window", None)
    kinds = dict.fromkeys(getattr(config, "layer_types", None) or ["sliding_attention"])
    if unknown := [kind for kind in kinds if kind not in _WINDOWED]:
        raise ValueError(
            f"attention_windows: layers must be of the kinds {tuple(_WINDOWED)}, got {unknown[0]!r}; such a layer "
            "takes no mask"
        )
    return {kind: window if _WINDOWED[kind] else None for kind in kinds}


def attention_masks(
    model: Any, visible: Tensor, query_positions: Tensor, key_positions: Tensor, *, added: bool = False
) -> Any:
    """What the model's forward takes as ``attention_mask`` so that its queries see these keys and no others.

    Sliding windows count positions in the text, not places in the sequence.

    Args:
        model: a causal language model; see `attention_windows`.
        visible: ``[B, 1, Q, K]`` bool, before sliding windows; every query must see a key.
        query_positions: ``[B, Q]`` int64, position of every query in its text.
        key_positions: ``[B, K]`` int64, of every key.
        added: for sdpa too a mask that is added to the scores. Layers share it until the backward pass; of a bool one
            each would make, and keep, such a mask of its own.

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
                near = query_positions[:, :, None] < (key_positions + window)[:, None, :]  # no [Q, K] of int64
                seen = visible & near[:, None]
            made[window] = _as_taken(model, seen, added)
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
    return attention_masks(model, visible[:, None], position_ids, position_ids, added=True)


def _as_taken(model: Any, visible: Tensor, added: bool) -> Any:
    backend = attention_backend(model)
    if backend == "sdpa" and added:
        kind, keys = visible.device.type, visible.shape[-1]
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else model.dtype
        # rows begin at multiples of 16 entries: CUDA's kernel copies others, once a layer
        mask = torch.zeros((*visible.shape[:-1], -(-keys // 16) * 16), dtype=dtype, device=visible.device)[..., :keys]
        return mask.masked_fill_(~visible, -torch.inf)
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


def attention_cost(model: Any) -> float:
    """What attending to one more key costs, where all else that a token costs is 1: 1 / (6 x hidden size).

    Counted: a layer multiplies and adds 12 times the squared hidden size for a token, and twice the hidden size for a
    key. Measured with sdpa on a CPU (hidden size 128, forward and backward, up to 2,048 keys): 1.0 times that with a
    mask, 0.5 times without one, which leaves out what lies ahead.
    """
    config = text_config(model)
    hidden = getattr(config, "hidden_size", None) or model.get_input_embeddings().weight.shape[-1]
    return 1 / (6 * hidden)


@torch.no_grad()
def why_no_branches(model: Any, hidden: Callable[..., Tensor]) -> str | None:
    """Why rows that part after a common beginning cannot share it in one sequence; None where they can.

    A small tree is computed in one sequence and as separate rows; the hidden states must agree, and far better than
    without its mask. Meanwhile a sliding window is shorter than the rows, so that it is tried whatever its size.

    Args:
        model: a causal language model, whose weights are not sharded.
        hidden: model, ``input_ids``, ``position_ids`` and ``ends`` (see `tree_masks`) -> hidden states ``[B, S, H]``.
    """
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        return "its weights are sharded already, so that it cannot be tried"
    if places := [name for name in _BY_PLACE if getattr(text_config(model), name, None)]:
        return f"{places[0]} of its configuration counts places of the sequence, not positions of a row"
    if any(name.endswith("token_type_ids") for name, _ in model.named_buffers()):
        return "its table of token types is no wider than a row may be long, a tree is"
    was_training = model.training
    model.eval()
    try:
        with _short_window(text_config(model)):
            return _try_tree(model, hidden)
    except Exception as error:  # whatever a class does with a mask that it does not know
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    finally:
        model.train(was_training)


@contextlib.contextmanager
def _short_window(config: Any) -> Iterator[None]:
    """Inside, the configuration asks for a window of a few tokens, where it asks for any."""
    window = getattr(config, "sliding_window", None)
    if window is None:
        yield
        return
    config.sliding_window = min(window, _TRIED_WINDOW)
    try:
        yield
    finally:
        config.sliding_window = window


def _try_tree(model: Any, hidden: Callable[..., Tensor]) -> str | None:
    attention_windows(model)  # raises where its layers or its backend take no mask
    trunk = 5 + _TRIED_WINDOW
    # trunk, two branches of 6; the second parts once more, into twigs of 4 and 5
    first, second, third = trunk + 6, trunk + 12, trunk + 16
    size = third + 5
    device = model.get_input_embeddings().weight.device
    ids = ((torch.arange(size, device=device) * 37 + 11) % embedding_rows(model))[None]
    place = torch.arange(size, device=device)
    lines = [place[:first], place[[*range(trunk), *range(first, third)]], place[[*range(trunk), *range(first, second)]]]
    lines[2] = torch.cat([lines[2], place[third:]])
    depth, ends = torch.zeros_like(place), torch.full_like(place, size)
    for line in lines:
        depth[line] = torch.arange(len(line), device=device)
    ends[trunk:first], ends[second:third] = first, third
    tree, flat = hidden(model, ids, depth[None], ends[None])[0].float(), hidden(model, ids)[0].float()
    errors, effects = [], []
    for line in lines:
        alone = hidden(model, ids[:, line])[0].float()
        norm = alone.norm(dim=-1).clamp(min=1e-12)
        errors.append((tree[line] - alone).norm(dim=-1) / norm)
        effects.append((flat[line] - alone).norm(dim=-1) / norm)
    exact = next(model.parameters()).dtype == torch.float32
    # in half precision rounding can send a token to another expert, but it does not move many
    error = float(torch.cat(errors).quantile(1.0 if exact else 0.9))
    effect = float(torch.cat(effects)[-5:].mean())
    if not error <= min(1e-3, effect / 20) if exact else not error <= min(0.05, effect / 2):
        return f"a tree in one sequence changes hidden states by {error:.1%} (without its mask by {effect:.1%})"
    return None
