"""Masks of branching attention: who sees whom, in the form of every backend, and under sliding windows."""

from __future__ import annotations

import random

import pytest
import torch
from helpers.families import KINDS, build
from helpers.tiny import tiny_model

from turncredit.rollout import PolicyScorer
from turncredit.rollout.attention import attention_backend, attention_masks, attention_windows, tree_masks


def random_trees(seed: int, width: int) -> tuple[torch.Tensor, torch.Tensor, list[list[int]]]:
    """``ends``, depths and the ancestors of every place, of random trees side by side, laid out depth first."""
    rng = random.Random(seed)
    parents: list[int | None] = []
    stack: list[int] = []
    for place in range(width):
        if stack and rng.random() < 0.4:
            stack = stack[: rng.randint(rng.random() > 0.1, len(stack))]
        parents.append(stack[-1] if stack else None)
        stack.append(place)
    ancestors: list[list[int]] = []
    for place, parent in enumerate(parents):
        ancestors.append([place] if parent is None else [*ancestors[parent], place])
    ends = [max(i for i in range(width) if place in ancestors[i]) + 1 for place in range(width)]
    depths = [len(above) - 1 for above in ancestors]
    return torch.tensor([ends]), torch.tensor([depths]), ancestors


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_every_place_sees_its_ancestors_within_the_window(attention, window):
    model = build("mistral", KINDS["mistral"], attn_implementation=attention, sliding_window=window)
    for seed in range(5):
        ends, depths, ancestors = random_trees(seed, 20)
        mask = tree_masks(model, ends, depths)
        assert mask.shape == (1, 1, 20, 20)
        assert mask.dtype == model.dtype
        hidden = torch.finfo(mask.dtype).min if attention == "eager" else -torch.inf
        assert set(mask.unique().tolist()) <= {0.0, hidden}
        mask = mask == 0
        for place, above in enumerate(ancestors):
            seen = above if window is None else above[-window:]  # positions count along the branch, not places
            assert mask[0, 0, place].nonzero().flatten().tolist() == seen


def test_layers_of_two_kinds_get_a_mask_each():
    model = build("gemma2", KINDS["gemma2"])
    assert attention_backend(model) == "eager"
    assert attention_windows(model) == {"sliding_attention": 4, "full_attention": None}
    ends, depths, ancestors = random_trees(1, 16)
    masks = tree_masks(model, ends, depths)
    assert set(masks) == {"sliding_attention", "full_attention"}
    for place, above in enumerate(ancestors):
        assert (masks["full_attention"][0, 0, place] == 0).nonzero().flatten().tolist() == above
        assert (masks["sliding_attention"][0, 0, place] == 0).nonzero().flatten().tolist() == above[-4:]


@pytest.mark.parametrize("autocast", [False, True])
def test_layers_keep_one_mask_for_the_backward_pass(autocast):
    """Of S x S entries; one a layer would be most of what a long sequence keeps."""
    model = tiny_model(num_hidden_layers=3).train()
    ends, depths, _ = random_trees(2, 21)
    kept = {}

    def keep(tensor):
        if tensor.shape[-2:] == (21, 21):
            kept[tensor.untyped_storage().data_ptr()] = tensor.dtype
        return tensor

    scorer = PolicyScorer(model)
    tokens = torch.arange(21)[None] % 20
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", enabled=autocast):
        logprobs = scorer(tokens, torch.arange(20), tokens[0, 1:], position_ids=depths, ends=ends)[0]
    logprobs.sum().backward()
    assert list(kept.values()) == [torch.bfloat16 if autocast else torch.float32]


def test_queries_and_keys_may_be_others_and_batches_differ():
    model = build("mistral", KINDS["mistral"], sliding_window=2)
    visible = torch.ones(2, 1, 2, 3, dtype=torch.bool)
    visible[1, 0, 0, 2] = False
    mask = attention_masks(model, visible, torch.tensor([[2, 3], [1, 2]]), torch.tensor([[0, 1, 2], [0, 1, 2]]))
    assert mask[0, 0].tolist() == [[False, True, True], [False, False, True]]
    assert mask[1, 0].tolist() == [[True, True, False], [False, True, True]]


def test_models_without_a_window_have_one_kind_of_layer():
    assert attention_windows(tiny_model()) == {"full_attention": None}
    assert attention_windows(build("llama", KINDS["llama"])) in ({"full_attention": None}, {"sliding_attention": None})
    assert attention_backend(tiny_model(attn_implementation="eager")) == "eager"


@pytest.mark.parametrize("family", ["falcon_h1", "bamba", "qwen3_next"])
def test_layers_that_take_no_mask_are_refused(family):
    with pytest.raises(ValueError, match=r"layers must be of the kinds .* takes no mask"):
        attention_windows(build(family, KINDS[family]))


def test_a_backend_that_takes_no_mask_is_refused():
    model = tiny_model()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match=r"the attention backend must be one of .*, got 'flash_attention_2'"):
        attention_windows(model)
