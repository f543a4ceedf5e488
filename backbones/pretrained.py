"""Import of released weights, with their published names and shapes, into the backbones.

The attention layers receive the released projections. Parameters without a counterpart in the release, such as an
attention's landmarks, are left unchanged, and their names are returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from backbones.gpt2 import GPT2
from backbones.roberta import RoBERTa
from cab import Backbone, UserError

HUGGINGFACE_GPT2 = (
    (r"wte\.weight", "decoder_embedding.tokens.weight"),
    (r"wpe\.weight", "decoder_embedding.positions.table.weight"),
    (r"h\.(\d+)\.ln_1\.", r"decoder_layers.\1.self_residual.norm."),
    (r"h\.(\d+)\.ln_2\.", r"decoder_layers.\1.feed_forward_residual.norm."),
    (r"h\.(\d+)\.attn\.c_attn\.", r"decoder_layers.\1.self_attention.qkv."),
    (r"h\.(\d+)\.attn\.c_proj\.", r"decoder_layers.\1.self_attention.out_proj."),
    (r"h\.(\d+)\.mlp\.c_fc\.", r"decoder_layers.\1.feed_forward.expand."),
    (r"h\.(\d+)\.mlp\.c_proj\.", r"decoder_layers.\1.feed_forward.reduce."),
    (r"ln_f\.", "final_norm."),
    (r"h\.\d+\.attn\.(?:masked_)?bias", ""),  # the causal mask stored by old releases
    (r"lm_head\.weight", ""),  # a copy of the embedding table
)

FAIRSEQ_LAYER = {
    "self_attn.": "self_attention.",
    "self_attn_layer_norm.": "self_residual.norm.",
    "fc1.": "feed_forward.expand.",
    "fc2.": "feed_forward.reduce.",
    "final_layer_norm.": "feed_forward_residual.norm.",
}
"""Modules of a layer: fairseq's names, and ours."""
FAIRSEQ_LAYERS = (
    (r"(layers\.\d+)\.self_attn\.in_proj_(weight|bias)", r"\1.self_attention.qkv.\2"),
    *((rf"(layers\.\d+)\.{re.escape(theirs)}", rf"\1.{ours}") for theirs, ours in FAIRSEQ_LAYER.items()),
)

FAIRSEQ_ROBERTA = (
    (r"embed_tokens\.weight", "embedding.tokens.weight"),
    (r"embed_positions\.weight", "embedding.positions.table.weight"),
    (r"(?:emb_layer_norm|layernorm_embedding)\.", "embedding.norm."),
    *FAIRSEQ_LAYERS,
    (r"lm_head\.dense\.", "head."),
    (r"lm_head\.layer_norm\.", "head_norm."),
    (r"lm_head\.bias", "output_bias"),
    (r"lm_head\.weight|version|classification_heads\..*", ""),
)


def load_huggingface_gpt2(backbone: GPT2, weights: Mapping[str, Tensor]) -> list[str]:
    """Load a GPT-2 in the layout of Hugging Face's ``GPT2LMHeadModel`` into ``backbone``.

    Logits agree if the backbone was built with ``positions="learned", scale_embedding=False, activation="gelu_tanh"``,
    the release's sizes, and ``vanilla`` attention.

    Returns:
        Names of the parameters that are not in the release.
    """
    renamed = rename(weights, HUGGINGFACE_GPT2, prefix=r"(?:transformer\.)?")
    maps = re.compile(r"self_attention\.\w+\.weight|feed_forward\.\w+\.weight")
    # Linear weights are stored as [inputs, outputs].
    return _load(backbone, {name: w.t() if maps.search(name) else w for name, w in renamed.items()})


def load_fairseq_roberta(backbone: RoBERTa, weights: Mapping[str, Tensor]) -> list[str]:
    """Load a RoBERTa in fairseq's layout, old (``in_proj_weight``) or new, into ``backbone``.

    ``weights`` is the entry ``model`` of a checkpoint. RoBERTa-base has ``max_length`` 512; its table has 514 rows.

    Returns, Raises: as :func:`load_huggingface_gpt2`.
    """
    prefix = r"(?:(?:encoder|decoder)\.)?(?:sentence_encoder\.)?"
    return _load(backbone, rename(weights, FAIRSEQ_ROBERTA, prefix=prefix))


def rename(weights: Mapping[str, Tensor], rules: Iterable[tuple[str, str]], *, prefix: str = "") -> dict[str, Tensor]:
    """Rename weights by regular expressions; an empty new name drops the match."""
    renamed = {}
    compiled = [(re.compile(f"{prefix}(?:{old})"), new) for old, new in rules]
    for name, weight in weights.items():
        matches = ((match, new) for old, new in compiled if (match := old.match(name)))
        match, new = next(matches, (None, ""))
        if match is None:
            raise UserError(f"the weights have '{name}' {list(weight.shape)}, which has no place in the other network")
        if new:
            renamed[match.expand(new) + name[match.end() :]] = weight
    return renamed


def _load(backbone: Backbone, weights: Mapping[str, Tensor]) -> list[str]:
    weights = _split_projections(weights)
    ours = backbone.state_dict()
    slots = tuple(path + "." for path, _ in backbone.attention_layers())
    missing = [name for name in ours if name not in weights]
    outside = [name for name in missing if not name.startswith(slots)]
    if outside:
        raise UserError(f"the released weights lack {', '.join(outside)}")
    for name, weight in weights.items():
        shape = list(ours[name].shape) if name in ours else None
        if shape != list(weight.shape):
            raise UserError(
                f"the release's {name} is {list(weight.shape)}, the backbone's "
                f"{'does not exist' if shape is None else f'is {shape}'}: build the backbone with its sizes"
            )
    backbone.load_state_dict(dict(weights), strict=False)
    return missing


def _split_projections(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Split the joint query, key and value projection [3 D, D], or bias [3 D], into three."""
    split = {}
    for name, weight in weights.items():
        if ".qkv." in name:
            for letter, projection in zip("qkv", torch.chunk(weight, 3), strict=True):
                split[name.replace(".qkv.", f".{letter}_proj.")] = projection
        else:
            split[name] = weight
    return split
