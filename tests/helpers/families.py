"""Tiny random models of every causal family of the installed transformers, by shrinking default configurations."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

CAUSAL: dict[str, str] = dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
WRAPPERS = {name: kind for name, kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items() if name not in CAUSAL}
KINDS = {**CAUSAL, **WRAPPERS}
"""Class names by model type: language models, and image-and-text models, whose text half is run alone."""

VOCABULARY = 64
SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "n_tokens", "unpadded_vocab_size", "decoder_vocab_size"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "emb_dim", "embedding_dim", "embedding_size"), 32),
    **dict.fromkeys(("word_embed_proj_dim", "lru_width", "attention_hidden_size", "input_embedding_size"), 32),
    **dict.fromkeys(("out_hidden_size", "text_hidden_size", "adapter_in_dim", "codebook_dim", "projection_dim"), 32),
    **dict.fromkeys(("output_embedding_size", "dim_model_base", "router_hidden_size"), 32),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("shared_intermediate_size", "shared_experts_intermediate_size", "dense_intermediate_size"), 48),
    **dict.fromkeys(("intermediate_size_mlp", "expert_ffn_hidden_size", "ffn_dim", "ffn_hidden_size", "dim_ff"), 48),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "dff", "d_inner", "feed_forward_size"), 48),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "mlp_hidden_size", "block_ffn_dim"), 48),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads", "num_query_groups"), 2),
    **dict.fromkeys(("head_dim", "d_head", "dim_head", "kv_channels", "swa_head_dim", "attention_head_dim"), 8),
    **dict.fromkeys(("linear_head_dim", "linear_key_head_dim", "linear_value_head_dim", "index_head_dim"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim", "mamba_d_head", "mamba_head_dim", "mamba_headdim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 4),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_heads", "mamba_n_groups", "n_groups"), 2),
    **dict.fromkeys(("linear_num_value_heads",), 4),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    "qk_head_dim": 12,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "o_lora_rank": 16,
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks"), 4),
    **dict.fromkeys(("decoder_layers", "encoder_layers", "num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("depth", "vision_layers"), 2),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "n_shared_experts", "num_shared_experts"), 1),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size"), 8),
    **dict.fromkeys(("time_step_rank", "mamba_dt_rank"), 4),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length"), 128),
    "max_target_positions": 128,
    "sliding_window": 4,
    "attention_window_size": 4,
    "sliding_window_size": 4,
    "attention_chunk_size": 4,
    "local_attention": 8,
    "index_topk": 4,
    "index_n_heads": 16,  # with few, all scores of an indexer can be 0, and ties are broken by the length of a row
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # what heads do to logits, away from where it would not show
    "final_logit_softcapping": 2.0,
    "logits_soft_cap": 2.0,
    "output_logit_soft_cap": 2.0,
    "logit_scale": 0.3,
    "logits_scaling": 3.0,
    "lm_head_multiplier": 0.3,
    "output_multiplier": 0.3,
    "logits_mup_width_multiplier": 3.0,
    "is_decoder": True,
}
"""What makes a configuration tiny, whatever its family calls it."""

OPTIONAL = ("sliding_window", "q_lora_rank", "unpadded_vocab_size", "qk_head_dim")
CHANCE = re.compile("drop|jitter")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks")
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
SPECIAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "paddleocr_vl_text"), ROPE),
    **dict.fromkeys(("glm4v_text", "glm4v_moe_text", "glm46v_text", "glm_ocr_text"), ROPE),
    "bailing_hybrid": {"num_hidden_layers": 4, "layer_group_size": 2},
    "bamba": {"num_hidden_layers": 3, "attn_layer_indices": [1]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "num_hidden_layers": 2,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
            "full_attention": None,
        },
    },
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "deepseek_v2": {"topk_method": "greedy"},
    "dots3_note": {"num_key_value_heads": 4},
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n_text": {"num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0, 0.0], "num_hidden_layers": 2},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2, "num_dense_layers": 1},
    "mamba2": {"head_dim": 8, "num_heads": 8},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "reformer": {"axial_pos_shape": [8, 16], "axial_pos_embds_dim": [8, 24]},
    "xlstm": {"qk_dim_factor": 1.0, "hidden_size": 64, "embedding_dim": 64, "chunk_size": 64},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "n_mamba_heads": 8,
    },
    "zaya": {"num_experts_per_tok": 1},
}
"""Settings by model type, where sizes alone do not make a working model."""


def shrunk(config: Any, special: dict[str, Any], keep_lists: bool = True, chance: float = 0.0) -> dict[str, Any]:
    """Arguments that make a configuration like this one, tiny.

    Lists with one entry per layer are cut to one layer of each kind, so that hybrids keep all their kinds. With
    `chance`, all rates of dropout, layerdrop and jitter are set to it.
    """
    arguments: dict[str, Any] = {}
    depth = next((getattr(config, name) for name in LAYERS if isinstance(getattr(config, name, None), int)), 0)
    by_layer = {}
    for name, value in vars(config).items():
        if isinstance(value, transformers.PreTrainedConfig):
            arguments[name] = shrunk(value, SPECIAL.get(value.model_type, {}), keep_lists, chance)
        elif chance and isinstance(value, float) and CHANCE.search(name):
            arguments[name] = chance
        elif name in SIZES and not (value is None and name in OPTIONAL):
            arguments[name] = SIZES[name]
        elif name == "rope_parameters" and isinstance(value, dict) and "mrope_section" in value:
            arguments[name] = {**value, "mrope_section": [2, 1, 1], "partial_rotary_factor": 1.0}
        elif keep_lists and isinstance(value, list | tuple) and depth and len(value) == depth:
            by_layer[name] = value
    if "qk_rope_head_dim" in arguments:  # latent attention: its keys are as many as its queries
        arguments |= {"num_key_value_heads": 4, "head_dim": arguments["qk_rope_head_dim"]}
    if by_layer:
        kinds = {str(row): row for row in zip(*by_layer.values(), strict=True)}
        rows = (list(kinds.values()) * 2)[: max(2, min(6, len(kinds)))]
        arguments |= {name: list(column) for name, column in zip(by_layer, zip(*rows, strict=True), strict=True)}
        arguments |= {name: len(rows) for name in LAYERS if name in arguments}
    return {**arguments, **special}


def make_config(model_type: str, class_name: str, keep_lists: bool = True, chance: float = 0.0, **changes: Any) -> Any:
    """The tiny configuration that a class takes; that of its text half, where a mapping names a whole model's."""
    kind = CONFIG_MAPPING[model_type]
    wanted = getattr(transformers, class_name).config_class
    default = kind()
    if wanted is not None and not isinstance(default, wanted):
        kind, default = wanted, wanted()
    special = {**SPECIAL.get(kind.model_type, {}), **SPECIAL.get(model_type, {}), **changes}
    return kind(**shrunk(default, special, keep_lists, chance))


def scramble(model: nn.Module, seed: int = 0) -> None:
    """Random weights whose every part shows in the logits: norms and biases are not left at 1 and 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if parameter.dim() >= 2 and "log" not in name.lower():
                parameter.copy_(noise / math.sqrt(parameter.shape[-1]))
            else:
                parameter.add_(0.1 * noise)


def build(model_type: str, class_name: str, **changes: Any) -> Any:
    """A tiny random model of this class in eval mode that can be run on text.

    Raises:
        Exception: what its configuration, its constructor or its forward says.
    """
    failure: Exception | None = None
    for keep_lists in (True, False):
        try:
            config = make_config(model_type, class_name, keep_lists, **changes)
            model = getattr(transformers, class_name)(config).eval()
            scramble(model)
            with torch.no_grad():
                model(input_ids=torch.arange(3, 12)[None])
            return model
        except Exception as error:
            failure = failure or error
    assert failure is not None
    raise failure
