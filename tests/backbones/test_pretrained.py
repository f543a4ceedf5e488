"""Weights in the layouts of public releases: the logits, and the text, of the reference implementation."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backbones.generation import Limits, greedy
from backbones.pretrained import load_fairseq_roberta, load_huggingface_gpt2, rename
from cab import UserError, build_backbone
from cab.registry.build import without_memory
from engines.fairseq.weights import fairseq_weights
from tests.helpers.backbones.records import VOCABULARY, padding, small, tokens

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
        is_norm = re.search(r"(ln_.|LayerNorm|norm)\.weight", name)
        nn.init.normal_(parameter, mean=1.0 if is_norm else 0.0, std=0.2)
    return {name: weight.clone() for name, weight in model.eval().state_dict().items()}


def gpt2(attention: str = "vanilla") -> Any:
    released = {"positions": "learned", "max_length": 31, "scale_embedding": False, "activation": "gelu_tanh"}
    return small("gpt2", "CS", attention, **released).float()


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
def test_gpt2_in_hugging_faces_layout():
    """Another attention takes the projections and keeps its own parameters; what does not fit is refused."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=23, n_positions=31, n_embd=24, n_layer=2, n_head=3, n_inner=40)
    released, backbone, other = GPT2LMHeadModel(config), gpt2(), gpt2("abc")
    weights = randomize(released)
    assert load_huggingface_gpt2(backbone, weights) == []
    assert_same_logits(backbone, released)
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
def test_roberta_in_fairseqs_layout(old):
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
def test_roberta_is_hugging_faces():
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


LLAMA = {"name": "vanilla", "positions": "rope", "qkv_bias": False, "out_bias": False, "num_kv_heads": 2}
AS_LLAMA = (
    (r"embed_tokens\.", "decoder_embedding.tokens."),
    (r"layers\.(\d+)\.input_layernorm\.", r"decoder_layers.\1.self_residual.norm."),
    (r"layers\.(\d+)\.post_attention_layernorm\.", r"decoder_layers.\1.feed_forward_residual.norm."),
    (r"layers\.(\d+)\.self_attn\.o_proj\.", r"decoder_layers.\1.self_attention.out_proj."),
    (r"layers\.(\d+)\.self_attn\.", r"decoder_layers.\1.self_attention."),
    (r"layers\.(\d+)\.mlp\.up_proj\.", r"decoder_layers.\1.feed_forward.expand."),
    (r"layers\.(\d+)\.mlp\.gate_proj\.", r"decoder_layers.\1.feed_forward.gate."),
    (r"layers\.(\d+)\.mlp\.down_proj\.", r"decoder_layers.\1.feed_forward.reduce."),
    (r"norm\.", "final_norm."),
    (r"lm_head\.", "head."),
)


@pytest.mark.slow
def test_logits_and_greedy_text_of_llama_are_those_of_transformers():
    """With padding on the right and on the left; positions count from the first token."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
    )
    public = LlamaForCausalLM(config)
    ours = small("llama", "CS", LLAMA, embed_dim=32, num_heads=4, ffn_dim=40).float()
    weights = {name: x for name, x in randomize(public).items() if "rotary" not in name}
    ours.load_state_dict(rename(weights, AS_LLAMA, prefix=r"(?:model\.)?"))
    ids, mask = tokens(5, 29), padding(29)
    mask[2] = False
    positions = ((~mask).cumsum(dim=1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = public(ids, attention_mask=(~mask).long(), position_ids=positions).logits
        error = (ours(ids, mask) - expected)[~mask].abs().max()
    assert error < 1e-5
    assert expected.abs().max() > 1.0
    prompt = tokens(4, 9)
    arguments = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": None, "pad_token_id": 0}
    text = public.generate(prompt, attention_mask=torch.ones_like(prompt), **arguments)
    assert torch.equal(greedy(ours, ours.init_state(4), prompt, Limits(20)), text[:, 9:])


def test_size_of_the_published_llama():
    """Two tables, and 12 layers of 4 D^2 and 3 * 8/3 D^2 parameters."""
    with without_memory():
        network = build_backbone("llama", attention=LLAMA | {"num_kv_heads": None}, pattern="CS")
    assert sum(x.numel() for x in network.parameters()) == 159_480_576
    assert not [name for name, _ in network.named_parameters() if "bias" in name]
