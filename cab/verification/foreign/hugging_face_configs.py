"""Configurations of tiny Hugging Face models, for the widths and head counts that the checks use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LENGTH = 8192
"""Largest number of positions."""
WINDOW = 8
"""Sliding window, short enough to matter in every check."""


def config_of(model_type: str, width: int, heads: int, overrides: Mapping[str, Any]) -> tuple[Any, int | None]:
    """Return the configuration of a model, and the largest distance that its sliding windows reach or None.

    Args:
        model_type: model type of transformers.
        width: hidden size.
        heads: number of heads; the head dimension is rounded down to an even number for rotary embeddings.
        overrides: values that replace those of this module.
    """
    from transformers import AutoConfig

    default = AutoConfig.for_model(model_type)
    known = {*default.to_dict(), *default.attribute_map}
    usual = {name: value for name, value in _usual(width, heads).items() if name in known}
    specific = SPECIFIC.get(model_type, lambda _width, _heads: {})(width, heads)
    config = AutoConfig.for_model(model_type, **{**usual, **specific, **overrides})
    return config, _reach(model_type, config)


def _usual(width: int, heads: int) -> dict[str, Any]:
    """Return values of the names that most configurations share."""
    head_dim = max(2, width // heads // 2 * 2)
    return {
        "vocab_size": 8,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": width,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": head_dim,
        "intermediate_size": 2 * width,
        "max_position_embeddings": LENGTH,
        "hidden_dropout": 0.0,
        "hidden_dropout_prob": 0.0,
        "attention_dropout": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "num_experts": 2,
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": width,
        "shared_expert_intermediate_size": width,
    }


def _reach(model_type: str, config: Any) -> int | None:
    """Return the largest distance between an output and a token that sliding windows permit."""
    if model_type not in WINDOWED or not config.sliding_window:
        return None
    return config.num_hidden_layers * (config.sliding_window - 1)


def _mamba_heads(width: int, heads: int) -> dict[str, Any]:
    return {
        "mamba_n_heads": 2 * heads,
        "mamba_d_head": width // heads,
        "mamba_n_groups": 1,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_chunk_size": 16,
    }


def _delta_net(_width: int, heads: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_value_heads": heads,
        "linear_num_key_heads": heads,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
    }


WINDOWED = ("mistral", "qwen2", "phi3", "starcoder2")
"""Model types in which every layer has a sliding window."""
LEFT_PROMPTS = (*WINDOWED, "gemma2", "gemma3_text", "gpt_oss", "llama4_text", "recurrent_gemma")
"""Model types whose windows count padding, so that prompts can be padded on the left only."""

SPECIFIC = {
    "mamba": lambda _width, _heads: {"state_size": 8, "use_mambapy": False},
    "falcon_mamba": lambda _width, _heads: {"state_size": 8, "use_mambapy": False},
    "mamba2": lambda width, heads: {
        "num_heads": 2 * heads,
        "head_dim": width // heads,
        "state_size": 8,
        "n_groups": 1,
        "chunk_size": 16,
    },
    "qwen3_next": _delta_net,
    "qwen3_5_text": _delta_net,
    "olmo_hybrid": _delta_net,
    "bamba": lambda width, heads: {**_mamba_heads(width, heads), "attn_layer_indices": [1], "num_hidden_layers": 2},
    "falcon_h1": lambda width, heads: {**_mamba_heads(width, heads), "mamba_d_ssm": 2 * width},
    "granitemoehybrid": lambda width, heads: {
        **_mamba_heads(width, heads),
        "num_hidden_layers": 2,
        "layer_types": ["mamba", "attention"],
        "shared_intermediate_size": 2 * width,
    },
    "lfm2": lambda width, _heads: {
        "num_hidden_layers": 2,
        "layer_types": ["conv", "full_attention"],
        "conv_L_cache": 3,
        "block_ff_dim": 2 * width,
    },
    "jamba": lambda _width, _heads: {
        "num_hidden_layers": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 1,
        "num_experts_per_tok": 1,
        "mamba_d_state": 8,
        "use_mamba_kernels": False,
        "mamba_dt_rank": 4,
    },
    "minimax": lambda _width, _heads: {
        "num_hidden_layers": 2,
        "block_size": 16,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "mistral": lambda _width, _heads: {"sliding_window": WINDOW},
    "phi3": lambda _width, _heads: {"sliding_window": WINDOW},
    "starcoder2": lambda _width, _heads: {"sliding_window": WINDOW},
    "qwen2": lambda _width, _heads: {"sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 0},
    "gemma2": lambda _width, _heads: {"sliding_window": WINDOW, "num_hidden_layers": 2},
    "gemma3_text": lambda _width, _heads: {
        "sliding_window": WINDOW,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gpt_oss": lambda _width, _heads: {
        "sliding_window": WINDOW,
        "rope_scaling": None,
        "layer_types": ["sliding_attention"],
    },
    "llama4_text": lambda width, _heads: {
        "attention_chunk_size": WINDOW,
        "intermediate_size_mlp": 2 * width,
        "num_experts_per_tok": 1,
        "no_rope_layers": [1],
        "moe_layers": [],
        "use_qk_norm": False,
    },
    "recurrent_gemma": lambda width, _heads: {
        "num_key_value_heads": 1,
        "lru_width": width,
        "attention_window_size": WINDOW,
        "num_hidden_layers": 2,
        "block_types": ["recurrent", "attention"],
    },
    "rwkv": lambda width, _heads: {
        "num_hidden_layers": 2,
        "attention_hidden_size": width,
        "context_length": LENGTH,
    },
}
"""Values of single model types, as functions of width and number of heads."""
