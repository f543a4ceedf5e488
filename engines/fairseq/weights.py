"""Conversion of weights between CAB's backbones and fairseq's checkpoints."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from backbones.pretrained import FAIRSEQ_LAYER, rename
from backbones.roberta import RoBERTa
from backbones.transformer import Transformer
from cab import Backbone
from engines.fairseq import environment
from tasks.corpus.tokens import BEGIN, END, PAD

OFFSET = 2
"""Unused rows at the start of fairseq's learned position tables."""
LAYER = FAIRSEQ_LAYER | {"encoder_attn.": "cross_attention.", "encoder_attn_layer_norm.": "cross_residual.norm."}
"""Modules of a layer: fairseq's names, and ours."""
MODULES = {
    "decoder_embedding.tokens.": "decoder.embed_tokens.",
    "decoder_embedding.positions.table.": "decoder.embed_positions.",
    "decoder_embedding.norm.": "decoder.layernorm_embedding.",
    "final_norm.": "decoder.layer_norm.",
    "output.": "decoder.output_projection.",
    "encoder_embedding.tokens.": "encoder.embed_tokens.",
    "encoder_embedding.positions.table.": "encoder.embed_positions.",
    "encoder_embedding.norm.": "encoder.layernorm_embedding.",
    "embedding.tokens.": "encoder.sentence_encoder.embed_tokens.",
    "embedding.positions.table.": "encoder.sentence_encoder.embed_positions.",
    "embedding.norm.": "encoder.sentence_encoder.layernorm_embedding.",
    "head.": "encoder.lm_head.dense.",
    "head_norm.": "encoder.lm_head.layer_norm.",
    "output_bias": "encoder.lm_head.bias",
}
"""Modules outside the layers of all three backbones: our names, and fairseq's."""
STACKS = {
    "encoder_layers": "encoder.layers",
    "decoder_layers": "decoder.layers",
    "layers": "encoder.sentence_encoder.layers",
}
WEIGHT_NAMES = (
    *((re.escape(ours), theirs) for ours, theirs in MODULES.items()),
    *(
        (rf"{stack}\.(\d+)\.{re.escape(ours)}", rf"{name}.\1.{theirs}")
        for stack, name in STACKS.items()
        for theirs, ours in LAYER.items()
    ),
)
"""Rules from our names to fairseq's."""
TIED = {
    "decoder.output_projection.weight": "decoder.embed_tokens.weight",
    "encoder.lm_head.weight": "encoder.sentence_encoder.embed_tokens.weight",
}
"""Outputs that share the table of an embedding, unless they have one of their own."""


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
    weights = rename(backbone.state_dict(), WEIGHT_NAMES)
    tables = {name: weights[table] for name, table in TIED.items() if table in weights and name not in weights}
    for name, table in weights.items():
        if name.endswith("embed_tokens.weight"):
            tables[name.replace("embed_tokens.weight", "version")] = torch.tensor([3.0])  # a buffer of fairseq's stacks
        if name.endswith("embed_positions.weight") and not isinstance(backbone, RoBERTa):  # whose table has these rows
            tables[name] = F.pad(table, (0, 0, OFFSET, 0))
    if isinstance(backbone, Transformer):
        tables["decoder.embed_tokens.weight"] = exchange_first_tokens(weights["decoder.embed_tokens.weight"])
    return weights | tables


def load_weights(backbone: Backbone, weights: Mapping[str, Tensor]) -> None:
    """Load weights with fairseq's names into the backbone."""
    ours = backbone.state_dict()
    loaded = {name: weights[theirs] for name, theirs in zip(ours, rename(ours, WEIGHT_NAMES), strict=True)}
    for name, table in ours.items():
        if name.endswith("positions.table.weight"):
            loaded[name] = loaded[name][-len(table) :]  # without fairseq's unused rows
    if isinstance(backbone, Transformer):
        name = "decoder_embedding.tokens.weight"
        loaded[name] = exchange_first_tokens(loaded[name])
    backbone.load_state_dict(loaded)


def exchange_first_tokens(table: Tensor) -> Tensor:
    """Exchange the embeddings of the begin and the end token, of which fairseq's decoders read the end token first.

    As an input of a decoder, each of them is only the token before the first one.
    """
    return torch.cat([table[[END, PAD, BEGIN]], table[END + 1 :]])


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Read the weights of a fairseq checkpoint."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)["model"]
    return weights
