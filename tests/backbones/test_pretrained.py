"""Weights in the layouts of public releases: the same logits as the reference implementation, in float32."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from backbones.gpt2 import GPT2
from backbones.pretrained import load_fairseq_roberta, load_huggingface_gpt2, rename
from backbones.roberta import RoBERTa
from cab import UserError
from engines.fairseq.weights import fairseq_weights
from tests.helpers.backbones.language_models import padding, small

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # takes seconds to import

AS_RELEASED = {"positions": "learned", "max_length": 31, "scale_embedding": False, "activation": "gelu_tanh"}

AS_IN_FAIRSEQ = (
    (r"embeddings\.word_embeddings\.", "embed_tokens."),
    (r"embeddings\.position_embeddings\.", "embed_positions."),
    (r"embeddings\.token_type_embeddings\.weight", "token_type"),
    (r"embeddings\.LayerNorm\.", "layernorm_embedding."),
    (r"layer\.(\d+)\.attention\.self\.(q|k|v)(?:uery|ey|alue)\.", r"layers.\1.self_attn.\2_proj."),
    (r"layer\.(\d+)\.attention\.output\.dense\.", r"layers.\1.self_attn.out_proj."),
    (r"layer\.(\d+)\.attention\.output\.LayerNorm\.", r"layers.\1.self_attn_layer_norm."),
    (r"layer\.(\d+)\.intermediate\.dense\.", r"layers.\1.fc1."),
    (r"layer\.(\d+)\.output\.dense\.", r"layers.\1.fc2."),
    (r"layer\.(\d+)\.output\.LayerNorm\.", r"layers.\1.final_layer_norm."),
    (r"lm_head\.decoder\..*", ""),
    (r"lm_head\.", "lm_head."),
)
"""Names of transformers' RoBERTa, and fairseq's."""


def randomize(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights, with norms and biases at random too."""
    for name, parameter in model.named_parameters():
        nn.init.normal_(
            parameter, mean=1.0 if re.search(r"(ln_.|LayerNorm|layer_norm)\.weight", name) else 0.0, std=0.2
        )
    return {name: weight.clone() for name, weight in model.eval().state_dict().items()}


@pytest.fixture
def released_gpt2() -> PreTrainedModel:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=23, n_positions=31, n_embd=24, n_layer=2, n_head=3, n_inner=40)
    return GPT2LMHeadModel(config)


@pytest.fixture
def released_roberta() -> PreTrainedModel:
    """As the public RoBERTa-base: norms with 1e-5, one token type, a table with two rows more than positions."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(
        **{"vocab_size": 23, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3},
        **{"intermediate_size": 40, "max_position_embeddings": 39, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    )
    return RobertaForMaskedLM(config)


def empty_gpt2(attention: str = "vanilla") -> GPT2:
    backbone = small("gpt2", "CS", attention, **AS_RELEASED).float()
    assert isinstance(backbone, GPT2)
    return backbone


def empty_roberta(attention: str = "vanilla") -> RoBERTa:
    backbone = small("roberta", "NS", attention).float()
    assert isinstance(backbone, RoBERTa)
    return backbone


def assert_same_logits(backbone: GPT2 | RoBERTa, released: PreTrainedModel) -> None:
    """Of rows padded on the right, as both allow."""
    mask = padding(27)
    mask[1:4] = False
    mask[2, 5:] = True
    ids = torch.randint(2, 23, (5, 27)).masked_fill(mask, 1)  # 1 is the padding token of both
    with torch.no_grad():
        expected = released(ids, attention_mask=(~mask).long()).logits
        error = (backbone(ids, mask) - expected)[~mask].abs().max()
    assert error < 1e-4
    assert expected.abs().max() > 1.0


@pytest.mark.slow
def test_gpt2_in_hugging_faces_layout(released_gpt2: PreTrainedModel) -> None:
    weights = randomize(released_gpt2)
    backbone = empty_gpt2()
    assert load_huggingface_gpt2(backbone, weights) == []
    assert_same_logits(backbone, released_gpt2)


@pytest.mark.parametrize("old", [False, True], ids=["new names", "old names"])
def test_roberta_in_fairseqs_layout(old: bool) -> None:
    """Under the names of later checkpoints, and of 2019's release, which joins the projections."""
    ours, target = empty_roberta(), empty_roberta()
    weights = fairseq_weights(ours) | {"classification_heads.mnli.dense.weight": torch.zeros(24, 24)}
    layer = "encoder.sentence_encoder.layers.1."
    modules = [*(f"self_attn.{x}_proj" for x in ("q", "k", "v", "out")), "self_attn_layer_norm", "fc1", "fc2"]
    assert {name.removeprefix(layer) for name in weights if name.startswith(layer)} == {
        f"{module}.{kind}" for module in [*modules, "final_layer_norm"] for kind in ("weight", "bias")
    }
    assert {"encoder.sentence_encoder.layernorm_embedding.bias", "encoder.lm_head.layer_norm.bias"} <= weights.keys()
    if old:
        names = {name: name.replace("encoder.", "decoder.", 1) for name in weights}
        weights = {names[name].replace("layernorm_embedding", "emb_layer_norm"): x for name, x in weights.items()}
        for name in [name for name in weights if ".self_attn.q_proj." in name]:
            parts = [weights.pop(name.replace("q_proj", f"{x}_proj")) for x in "qkv"]
            weights[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
    assert load_fairseq_roberta(target, weights) == []
    assert all(torch.equal(x, target.state_dict()[name]) for name, x in ours.state_dict().items())


@pytest.mark.slow
def test_roberta_is_hugging_faces(released_roberta: PreTrainedModel) -> None:
    weights = rename(randomize(released_roberta), AS_IN_FAIRSEQ, prefix=r"(?:roberta\.)?(?:encoder\.)?")
    weights["embed_positions.weight"] += weights.pop("token_type")[0]
    backbone = empty_roberta()
    assert load_fairseq_roberta(backbone, weights) == []
    assert_same_logits(backbone, released_roberta)


@pytest.mark.slow
def test_another_attention_takes_the_projections_and_keeps_its_own(released_gpt2: PreTrainedModel) -> None:
    weights = randomize(released_gpt2)
    backbone = empty_gpt2("abc")
    landmarks = backbone.decoder_layers[1].self_attention.compress_k.clone()
    kept = load_huggingface_gpt2(backbone, weights)
    assert kept == [f"decoder_layers.{n}.self_attention.compress_{x}" for n in range(2) for x in "kv"]
    attention = backbone.decoder_layers[1].self_attention
    assert torch.equal(attention.compress_k, landmarks)
    assert torch.equal(attention.k_proj.weight, weights["transformer.h.1.attn.c_attn.weight"][:, 24:48].t())


@pytest.mark.slow
def test_names_and_shapes_that_do_not_fit(released_gpt2: PreTrainedModel) -> None:
    weights = randomize(released_gpt2)
    bare = {name.removeprefix("transformer."): weight for name, weight in weights.items() if name != "lm_head.weight"}
    assert load_huggingface_gpt2(empty_gpt2(), bare) == []
    with pytest.raises(UserError, match=r"'transformer.h.0.attn.c_new' \[2\], which has no place"):
        load_huggingface_gpt2(empty_gpt2(), {**weights, "transformer.h.0.attn.c_new": torch.zeros(2)})
    lacking = {name: weight for name, weight in weights.items() if name != "transformer.h.1.ln_2.bias"}
    with pytest.raises(UserError, match=r"lack decoder_layers\.1\.feed_forward_residual\.norm\.bias"):
        load_huggingface_gpt2(empty_gpt2(), lacking)
    short = {**weights, "transformer.wpe.weight": torch.zeros(30, 24)}
    with pytest.raises(UserError, match=r"positions.table.weight is \[30, 24\], the backbone's is \[31, 24\]"):
        load_huggingface_gpt2(empty_gpt2(), short)
    with pytest.raises(UserError, match=r"'transformer.wte.weight' \[23, 24\], which has no place"):
        load_fairseq_roberta(empty_roberta(), weights)
