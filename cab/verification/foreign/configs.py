"""Configurations of tiny Hugging Face models, for the widths and head counts that the checks use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

LENGTH = 8192
"""Largest number of positions."""
MODELS = yaml.safe_load(Path(__file__).with_name("models.yaml").read_text(encoding="utf-8"))
"""Options and padding of single model types."""
WINDOWED, LEFT_PROMPTS, SPECIFIC = MODELS["windowed"], MODELS["left_prompts"], MODELS["options"]


def config_of(model_type: str, width: int, heads: int, overrides: Mapping[str, Any]) -> tuple[Any, int | None]:
    """Return the configuration of a model, and the largest distance that its sliding windows permit or None.

    Args:
        model_type: model type of transformers.
        width: hidden size.
        heads: number of heads; the head dimension is rounded down to an even number for rotary embeddings.
        overrides: values that replace those of this module.
    """
    from transformers import AutoConfig

    default = AutoConfig.for_model(model_type)
    options = {*default.to_dict(), *default.attribute_map}
    sizes = {name: value for name, value in _sizes(width, heads).items() if name in options}
    if model_type == "mamba2":
        sizes["head_dim"] = width // heads
    config = AutoConfig.for_model(model_type, **{**sizes, **SPECIFIC.get(model_type, {}), **overrides})
    has_windows = model_type in WINDOWED and config.sliding_window
    return config, config.num_hidden_layers * (config.sliding_window - 1) if has_windows else None


def _sizes(width: int, heads: int) -> dict[str, Any]:
    """Return the values of all options that are sizes, by the names that configurations use."""
    dropouts = ("hidden_dropout", "hidden_dropout_prob", "attention_dropout", "attention_probs_dropout_prob")
    widths = ("hidden_size", "moe_intermediate_size", "shared_expert_intermediate_size", "lru_width", "embedding_size")
    head_widths = ("head_dim", "rotary_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    inner = ("intermediate_size", "shared_intermediate_size", "block_ff_dim", "mamba_d_ssm", "intermediate_size_mlp")
    head_counts = ("num_attention_heads", "num_key_value_heads", "linear_num_value_heads", "linear_num_key_heads")
    return {
        "vocab_size": 8,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "num_hidden_layers": 1,
        "mamba_d_head": width // heads,
        **dict.fromkeys((*dropouts, "resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        **dict.fromkeys(("num_experts", "num_local_experts", "num_experts_per_tok", "mamba_expand"), 2),
        **dict.fromkeys(("max_position_embeddings", "context_length"), LENGTH),
        **dict.fromkeys(head_widths, max(2, width // heads // 2 * 2)),
        **dict.fromkeys((*widths, "attention_hidden_size", "input_embedding_size"), width),
        **dict.fromkeys(inner, 2 * width),
        **dict.fromkeys(head_counts, heads),
        **dict.fromkeys(("num_heads", "mamba_n_heads"), 2 * heads),
        **dict.fromkeys(("n_groups", "mamba_n_groups"), 1),
        **dict.fromkeys(("state_size", "mamba_d_state", "linear_key_head_dim", "linear_value_head_dim"), 8),
        **dict.fromkeys(("mamba_d_conv", "linear_conv_kernel_dim", "mamba_dt_rank"), 4),
        **dict.fromkeys(("chunk_size", "mamba_chunk_size", "block_size"), 16),
    }
