"""Feed-forward maps and norms that are options of the language models."""

from __future__ import annotations

import torch

from backbones.layers.tokens import make_norm
from backbones.layers.transformer import FeedForward


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
