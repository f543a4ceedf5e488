"""The Llama backbone: the logits and the text of transformers, initialization, tied tables and other attentions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backbones.generation import Limits, greedy
from backbones.llama import Llama
from backbones.pretrained import rename
from cab import UserError, build_backbone
from cab.registry.build import without_memory
from tests.helpers.backbones.language_models import VOCABULARY, padding, small, tokens

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


def ported(**options: Any) -> tuple[Llama, Any]:
    """A small Llama of transformers with weights at random, and the backbone with these weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
    }
    public = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    for name, parameter in public.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    ours = small("llama", "CS", LLAMA, **SIZES, **options).float()
    assert isinstance(ours, Llama)
    weights = {name: x for name, x in public.state_dict().items() if "rotary" not in name}
    ours.load_state_dict(rename(weights, AS_IN_TRANSFORMERS, prefix=r"(?:model\.)?"))
    return ours, public


@pytest.mark.slow
def test_logits_are_those_of_transformers() -> None:
    """With padding on the right and on the left; positions count from the first token."""
    ours, public = ported()
    ids, mask = tokens(5, 29), padding(29)
    mask[2] = False
    positions = ((~mask).cumsum(dim=1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = public(ids, attention_mask=(~mask).long(), position_ids=positions).logits
        error = (ours(ids, mask) - expected)[~mask].abs().max()
    assert error < 1e-5
    assert expected.abs().max() > 1.0


@pytest.mark.slow
def test_greedy_text_is_that_of_transformers() -> None:
    ours, public = ported()
    prompt = tokens(4, 9)
    arguments = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": None, "pad_token_id": 0}
    expected = public.generate(prompt, attention_mask=torch.ones_like(prompt), **arguments)
    with torch.no_grad():
        found = greedy(ours, ours.init_state(4), prompt, Limits(20))
    assert torch.equal(found, expected[:, 9:])


def test_initialization() -> None:
    """As released; norms stay at one, and the decays of a recurrent attention at theirs."""
    torch.manual_seed(0)
    options: dict[str, Any] = {**SIZES, "vocab_size": 300, "num_layers": 2}
    network = build_backbone("llama", attention="gated_deltanet", pattern="CS", init_std=0.02, **options)
    assert isinstance(network, Llama)
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Embedding) and module.weight.numel() > 500:
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.1)
    attention: Any = network.decoder_layers[0].self_attention
    assert (nn.functional.softplus(attention.step_proj.bias) > 9e-4).all()
    assert torch.equal(network.state_dict()["final_norm.weight"], torch.ones(32))


def test_no_biases_and_tied_tables() -> None:
    network = small("llama", "CS", LLAMA, **SIZES)
    assert not [name for name, _ in network.named_parameters() if "bias" in name]
    tied = small("llama", "CS", LLAMA, tied=True, **SIZES)
    count = [sum(x.numel() for x in each.parameters()) for each in (network, tied)]
    assert count[0] - count[1] == VOCABULARY * 32


@pytest.mark.parametrize("depth_block", [1, 3, 4])
def test_depth_attention(depth_block: int) -> None:
    """Sources are the embedding and sums of branch outputs; in readable form, with gradients and in decoding."""
    options: dict[str, Any] = {**SIZES, "num_layers": 3, "depth_block": depth_block}
    network: Any = small("llama", "CS", LLAMA, **options)
    stack, ids = network.decoder_layers, tokens(2, 9)
    assert not stack.depth_query.any()
    assert (stack.depth_norm == 1.0).all()
    for parameter in (stack.depth_query, stack.depth_norm):
        nn.init.normal_(parameter)
    outputs = [network.decoder_embedding(ids, torch.arange(9)[None])]

    def mixed() -> Tensor:
        sums = [sum(outputs[i : i + depth_block]) for i in range(1, len(outputs), depth_block)]
        v, place = torch.stack([outputs[0], *sums]), len(outputs) - 1
        norm = v / (v.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * stack.depth_norm[place]
        return ((norm @ stack.depth_query[place]).softmax(dim=0).unsqueeze(-1) * v).sum(dim=0)

    for layer in stack:
        outputs.append(layer.self_attention(layer.self_residual.norm(mixed())))
        outputs.append(layer.feed_forward(layer.feed_forward_residual.norm(mixed())))
    expected, found = network.predict(network.final_norm(mixed())), network(ids)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    direction, parameters = torch.randn_like(found), list(network.parameters())
    gradients = [torch.autograd.grad((x * direction).sum(), parameters) for x in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    logits, state = network.prefill(ids[:, :8], network.init_state(2))
    torch.testing.assert_close(torch.stack([logits, network.step(ids[:, 8], state)[0]], dim=1), expected[:, -2:])


def test_size_of_the_published_network() -> None:
    """Two tables, and 12 layers of 4 D^2 and 3 * 8/3 D^2 parameters."""
    with without_memory():
        network = build_backbone("llama", attention=LLAMA | {"num_kv_heads": None}, pattern="CS")
    assert sum(x.numel() for x in network.parameters()) == 159_480_576


def test_masked_words_from_both_sides() -> None:
    network = small("llama", "NS", {**LLAMA, "num_kv_heads": 4}, **SIZES)
    ids = tokens(2, 11)
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCABULARY
    assert not torch.allclose(network(ids)[:, 0], network(changed)[:, 0])
    picked: Tensor = network(ids, selected=torch.tensor([3, 12]))
    torch.testing.assert_close(picked, network(ids).flatten(0, 1)[[3, 12]])


def test_cross_attention_is_refused() -> None:
    with pytest.raises(UserError, match="backbone 'llama' has no layer with pattern CC"):
        small("llama", "CC", **SIZES)
