"""Small GPT-2, RoBERTa, encoder and Transformer networks with every parameter at random, and tokens for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cab import Attention, Backbone, build_backbone

VOCABULARY = 23
WIDTH = {
    "vocab_size": VOCABULARY,
    "embed_dim": 24,
    "num_heads": 3,
    "ffn_dim": 40,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {**WIDTH, "num_layers": 2},
    "llama": {**WIDTH, "num_layers": 2},
    "roberta": {**WIDTH, "num_layers": 2, "max_length": 37},
    "encoder": {**WIDTH, "num_layers": 2, "max_length": 37, "num_classes": 5, "init_std": 0.125},
    "transformer": {
        **WIDTH,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "max_source_length": 41,
        "max_target_length": 37,
    },
}
VARIANTS = ("gpt2_act", "gpt2_reversible", "gpt2_universal", "roberta_funnel")
SMALL |= {name: SMALL[name.partition("_")[0]] for name in VARIANTS}
OPTIONS = {  # small enough that windows, chunks and segments end inside the sequences
    "local": {"window_size": 5},
    "abc": {"num_landmarks": 5},
    "longshort CS": {"window_size": 5, "chunk_size": 4},
    "longshort NS": {"window_size": 5, "num_landmarks": 3},
    "performer": {"num_features": 6},
    "cosformer": {"reweighting_length": 50},
}


def small(name: str, pattern: str, attention: str | Mapping[str, Any] = "vanilla", **options: Any) -> Backbone:
    """In float64, without dropout, with biases and norms at random too."""
    backbone = build_backbone(
        name, attention=spec(attention, pattern), pattern=pattern, **{**SMALL[name], **options}
    ).double()
    for module in backbone.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, mean=1.0, std=0.2)
            nn.init.normal_(module.bias, std=0.2)
        elif isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.2)
    return backbone.eval()


def spec(attention: str | Mapping[str, Any], pattern: str) -> Mapping[str, Any]:
    """The attention with options that suit short sequences, unless it has its own."""
    if not isinstance(attention, str):
        return attention
    return {"name": attention, **OPTIONS.get(attention, OPTIONS.get(f"{attention} {pattern}", {}))}


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length))


def padding(length: int) -> Tensor:
    """Five rows: padding on the right, on the left, inside, all but one token, none."""
    mask = torch.zeros(5, length, dtype=torch.bool)
    mask[0, length - length // 3 :] = True
    mask[1, : length // 4] = True
    mask[2, 1::3] = True
    mask[3] = True
    mask[3, length // 2] = False
    return mask


def slots(backbone: Backbone) -> list[Attention]:
    return [module for module in backbone.modules() if isinstance(module, Attention)]
