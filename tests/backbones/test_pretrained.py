"""Weights in the layouts of public releases: the same logits as the reference implementation, in float32."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backbones.pretrained import load_fairseq_roberta, load_huggingface_gpt2, rename
from cab import UserError
from engines.fairseq.weights import fairseq_weights
from tests.helpers.backbones.records import padding, small

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


def randomize(model: Any) -> dict[str, Tensor]:
    """The weights, with norms and biases at random too."""
    for name, parameter in model.named_parameters():
        is_norm = re.search(r"(ln_.|LayerNorm|layer_norm)\.weight", name)
        nn.init.normal_(parameter, mean=1.0 if is_norm else 0.0, std=0.2)
    return {name: weight.clone() for name, weight in model.eval().state_dict().items()}


@pytest.fixture
def released_gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=23, n_positions=31, n_embd=24, n_layer=2, n_head=3, n_inner=40))


def gpt2(attention: str = "vanilla") -> Any:
    return small("gpt2", "CS", attention, **AS_RELEASED).float()


def assert_same_logits(backbone: Any, released: Any) -> None:
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
def test_gpt2_in_hugging_faces_layout(released_gpt2: Any) -> None:
    """Another attention takes the projections and keeps its own parameters; what does not fit is refused."""
    weights, backbone, other = randomize(released_gpt2), gpt2(), gpt2("abc")
    assert load_huggingface_gpt2(backbone, weights) == []
    assert_same_logits(backbone, released_gpt2)
    landmarks = other.decoder_layers[1].self_attention.compress_k.clone()
    kept = load_huggingface_gpt2(other, weights)
    assert kept == [f"decoder_layers.{n}.self_attention.compress_{x}" for n in range(2) for x in "kv"]
    attention = other.decoder_layers[1].self_attention
    assert torch.equal(attention.compress_k, landmarks)
    assert torch.equal(attention.k_proj.weight, weights["transformer.h.1.attn.c_attn.weight"][:, 24:48].t())
    lacking = {name: weight for name, weight in weights.items() if name != "transformer.h.1.ln_2.bias"}
    for wrong, message in (
        ({**weights, "transformer.h.0.attn.c_new": torch.zeros(2)}, "c_new' .* has no place"),
        (lacking, r"lack decoder_layers\.1\.feed_forward_residual\.norm\.bias"),
        ({**weights, "transformer.wpe.weight": torch.zeros(30, 24)}, r"is \[30, 24\], the backbone's is \[31, 24\]"),
    ):
        with pytest.raises(UserError, match=message):
            load_huggingface_gpt2(gpt2(), wrong)


@pytest.mark.parametrize("old", [False, True], ids=["new names", "old names"])
def test_roberta_in_fairseqs_layout(old: bool) -> None:
    """Under the names of later checkpoints, and of 2019's release, which joins the projections."""
    ours, target = small("roberta"), small("roberta")
    weights = fairseq_weights(ours) | {"classification_heads.mnli.dense.weight": torch.zeros(24, 24)}
    assert {"encoder.sentence_encoder.layernorm_embedding.bias", "encoder.lm_head.layer_norm.bias"} <= weights.keys()
    assert "encoder.sentence_encoder.layers.1.self_attn.q_proj.bias" in weights
    if old:
        names = {name: name.replace("encoder.", "decoder.", 1) for name in weights}
        weights = {names[name].replace("layernorm_embedding", "emb_layer_norm"): x for name, x in weights.items()}
        for name in [name for name in weights if ".self_attn.q_proj." in name]:
            parts = [weights.pop(name.replace("q_proj", f"{x}_proj")) for x in "qkv"]
            weights[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
    assert load_fairseq_roberta(target, weights) == []
    assert all(torch.equal(x, target.state_dict()[name]) for name, x in ours.state_dict().items())


@pytest.mark.slow
def test_roberta_is_hugging_faces() -> None:
    """As the public RoBERTa-base: norms with 1e-5, one token type, a table with two rows more than positions."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(
        **{"vocab_size": 23, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3},
        **{"intermediate_size": 40, "max_position_embeddings": 39, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    )
    released, backbone = RobertaForMaskedLM(config), small("roberta").float()
    weights = rename(randomize(released), AS_IN_FAIRSEQ, prefix=r"(?:roberta\.)?(?:encoder\.)?")
    weights["embed_positions.weight"] += weights.pop("token_type")[0]
    assert load_fairseq_roberta(backbone, weights) == []
    assert_same_logits(backbone, released)
