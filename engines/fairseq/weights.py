"""Conversion of weights between CAB's backbones and fairseq's checkpoints."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from backbones.gpt2 import GPT2
from backbones.layers.tokens import LearnedPositions
from backbones.pretrained import FAIRSEQ_LAYER, FAIRSEQ_OFFSET, load_fairseq_gpt2, load_fairseq_roberta, rename
from backbones.roberta import RoBERTa
from cab import Backbone
from engines.fairseq import environment

GPT2_NAMES = (
    (r"decoder_embedding\.tokens\.", "decoder.embed_tokens."),
    (r"decoder_embedding\.positions\.table\.", "decoder.embed_positions."),
    (r"final_norm\.", "decoder.layer_norm."),
    *(
        (rf"decoder_layers\.(\d+)\.{re.escape(ours)}", rf"decoder.layers.\1.{theirs}")
        for theirs, ours in FAIRSEQ_LAYER.items()
    ),
)

ROBERTA_NAMES = (
    (r"embedding\.tokens\.", "encoder.sentence_encoder.embed_tokens."),
    (r"embedding\.positions\.table\.", "encoder.sentence_encoder.embed_positions."),
    (r"embedding\.norm\.", "encoder.sentence_encoder.layernorm_embedding."),
    (r"head\.", "encoder.lm_head.dense."),
    (r"head_norm\.", "encoder.lm_head.layer_norm."),
    (r"output_bias", "encoder.lm_head.bias"),
    *(
        (rf"layers\.(\d+)\.{re.escape(ours)}", rf"encoder.sentence_encoder.layers.\1.{theirs}")
        for theirs, ours in FAIRSEQ_LAYER.items()
    ),
)


def write_checkpoint(backbone: Backbone, path: Path, arguments: Sequence[str]) -> None:
    """Write the weights of ``backbone`` as a fairseq checkpoint; ``arguments`` are those of `fairseq-train`."""
    weights, unfinished = path.with_suffix(".weights"), path.with_suffix(".unfinished")
    torch.save(fairseq_weights(backbone), weights)
    command = ["-P", "-m", "cab_fairseq.checkpoint", str(weights), str(unfinished), *arguments]
    environment.run("python", command, log=path.with_suffix(".log"))
    unfinished.replace(path)
    weights.unlink()


def fairseq_weights(backbone: Backbone) -> dict[str, Tensor]:
    """Return the backbone's weights with fairseq's names."""
    if isinstance(backbone, GPT2):
        weights = rename(backbone.state_dict(), GPT2_NAMES)
        weights["decoder.version"] = torch.tensor([3.0])
        weights["decoder.output_projection.weight"] = weights["decoder.embed_tokens.weight"]
        if isinstance(backbone.decoder_embedding.positions, LearnedPositions):
            name = "decoder.embed_positions.weight"
            weights[name] = F.pad(weights[name], (0, 0, FAIRSEQ_OFFSET, 0))
        return weights
    assert isinstance(backbone, RoBERTa)
    weights = rename(backbone.state_dict(), ROBERTA_NAMES)
    weights["encoder.sentence_encoder.version"] = torch.tensor([3.0])
    weights["encoder.lm_head.weight"] = weights["encoder.sentence_encoder.embed_tokens.weight"]
    return weights


def load_weights(backbone: Backbone, weights: Mapping[str, Tensor]) -> None:
    """Load weights with fairseq's names into the backbone."""
    if isinstance(backbone, GPT2):
        missing = load_fairseq_gpt2(backbone, weights)
    else:
        assert isinstance(backbone, RoBERTa)
        missing = load_fairseq_roberta(backbone, weights)
    assert not missing, missing


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Read the weights of a fairseq checkpoint."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)["model"]
    return weights
