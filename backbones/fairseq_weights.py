"""Export of GPT-2 and RoBERTa weights in fairseq's format; :mod:`backbones.pretrained` imports them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from backbones.gpt2 import GPT2
from backbones.layers.tokens import LearnedPositions
from backbones.pretrained import FAIRSEQ_OFFSET, rename
from backbones.roberta import RoBERTa

LAYER = (
    (r"self_attention\.", "self_attn."),
    (r"self_residual\.norm\.", "self_attn_layer_norm."),
    (r"feed_forward\.expand\.", "fc1."),
    (r"feed_forward\.reduce\.", "fc2."),
    (r"feed_forward_residual\.norm\.", "final_layer_norm."),
)

GPT2_NAMES = (
    (r"decoder_embedding\.tokens\.", "decoder.embed_tokens."),
    (r"decoder_embedding\.positions\.table\.", "decoder.embed_positions."),
    (r"final_norm\.", "decoder.layer_norm."),
    *((rf"decoder_layers\.(\d+)\.{ours}", rf"decoder.layers.\1.{theirs}") for ours, theirs in LAYER),
)

ROBERTA_NAMES = (
    (r"embedding\.tokens\.", "encoder.sentence_encoder.embed_tokens."),
    (r"embedding\.positions\.table\.", "encoder.sentence_encoder.embed_positions."),
    (r"embedding\.norm\.", "encoder.sentence_encoder.layernorm_embedding."),
    (r"head\.", "encoder.lm_head.dense."),
    (r"head_norm\.", "encoder.lm_head.layer_norm."),
    (r"output_bias", "encoder.lm_head.bias"),
    *((rf"layers\.(\d+)\.{ours}", rf"encoder.sentence_encoder.layers.\1.{theirs}") for ours, theirs in LAYER),
)


def fairseq_gpt2_weights(backbone: GPT2) -> dict[str, Tensor]:
    """Return the state dict of fairseq's ``transformer_lm_gpt`` (``cab_gpt2`` unless attention is ``vanilla``)."""
    weights = rename(backbone.state_dict(), GPT2_NAMES)
    weights["decoder.version"] = torch.tensor([3.0])
    weights["decoder.output_projection.weight"] = weights["decoder.embed_tokens.weight"]
    if isinstance(backbone.decoder_embedding.positions, LearnedPositions):
        name = "decoder.embed_positions.weight"
        weights[name] = F.pad(weights[name], (0, 0, FAIRSEQ_OFFSET, 0))
    return weights


def fairseq_roberta_weights(backbone: RoBERTa) -> dict[str, Tensor]:
    """Return the state dict of fairseq's ``roberta`` (``cab_roberta_base`` for attentions other than ``vanilla``)."""
    weights = rename(backbone.state_dict(), ROBERTA_NAMES)
    weights["encoder.sentence_encoder.version"] = torch.tensor([3.0])
    weights["encoder.lm_head.weight"] = weights["encoder.sentence_encoder.embed_tokens.weight"]
    return weights
