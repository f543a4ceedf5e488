"""Feed-forward maps and norms that are options of the language models."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from backbones.layers.tokens import make_norm
from backbones.layers.transformer import FeedForward
from cab import UserError, build_backbone


def test_glu_is_a_gate_of_its_own_map() -> None:
    """W_3 (swish(W_1 x) * W_2 x), biases everywhere."""
    module, x = FeedForward(6, 5, activation="swish", kind="glu"), torch.randn(2, 3, 6)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    assert module.gate is not None
    w1, w2, w3 = (m.weight for m in (module.gate, module.expand, module.reduce))
    b1, b2, b3 = (m.bias for m in (module.gate, module.expand, module.reduce))
    gate = x @ w1.T + b1
    expected = (gate * gate.sigmoid() * (x @ w2.T + b2)) @ w3.T + b3
    torch.testing.assert_close(module(x), expected)


def test_simple_rms_norm_has_no_weights_and_leaves_zero_alone() -> None:
    norm, x = make_norm("simplerms", 8), torch.randn(3, 8)
    assert not list(norm.parameters())
    torch.testing.assert_close(norm(x), x / (x.square().mean(dim=-1, keepdim=True).sqrt() + 1e-8))
    assert not norm(torch.zeros(2, 8)).any()


@pytest.mark.parametrize(("name", "pattern"), [("gpt2", "CS"), ("roberta", "NS")])
def test_networks_have_them_as_options(name: str, pattern: str) -> None:
    options = {"vocab_size": 11, "embed_dim": 8, "num_heads": 2, "ffn_dim": 5, "num_layers": 2}
    glu = {"norm": "simplerms", "feed_forward": "glu", "activation": "swish"}
    network = build_backbone(name, attention="transnormer_t2", pattern=pattern, **options, **glu)
    tokens = torch.arange(18).view(2, 9) % 11
    loss = F.cross_entropy(network(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    assert sum("norm" in key for key in network.state_dict()) == (0 if name == "gpt2" else 4)  # embedding and head
    for option, value in (("norm", "batch"), ("feed_forward", "maxout"), ("activation", "sine")):
        with pytest.raises(UserError, match=f"backbone.{option} must be one of"):
            build_backbone(name, attention="none", pattern=pattern, **options, **{option: value})
