"""The Llama backbone: the logits and the text of transformers, and the published size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from backbones.generation import Limits, greedy
from backbones.pretrained import rename
from cab import build_backbone
from cab.registry.build import without_memory
from tests.helpers.backbones.records import VOCABULARY, padding, small, tokens

LLAMA = {"name": "vanilla", "positions": "rope", "qkv_bias": False, "out_bias": False, "num_kv_heads": 2}
SIZES: dict[str, Any] = {"embed_dim": 32, "num_heads": 4, "ffn_dim": 40}

AS_IN_TRANSFORMERS = (
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
def test_logits_and_greedy_text_are_those_of_transformers() -> None:
    """With padding on the right and on the left; positions count from the first token."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
    }
    public: Any = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    for name, parameter in public.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    ours = small("llama", "CS", LLAMA, **SIZES).float()
    weights = {name: x for name, x in public.state_dict().items() if "rotary" not in name}
    ours.load_state_dict(rename(weights, AS_IN_TRANSFORMERS, prefix=r"(?:model\.)?"))
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


def test_size_of_the_published_network() -> None:
    """Two tables, and 12 layers of 4 D^2 and 3 * 8/3 D^2 parameters."""
    with without_memory():
        network = build_backbone("llama", attention=LLAMA | {"num_kv_heads": None}, pattern="CS")
    assert sum(x.numel() for x in network.parameters()) == 159_480_576
    assert not [name for name, _ in network.named_parameters() if "bias" in name]
