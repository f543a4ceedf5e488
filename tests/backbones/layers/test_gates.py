"""Parts of layers: the gates of GTrXL and the identity they start near, gated feed-forward maps, simple RMS norm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn import functional as F

from backbones.layers.gates import GRUGate
from backbones.layers.tokens import make_norm
from backbones.layers.transformer import FeedForward
from tests.helpers.backbones.language_models import small, tokens


def written_out(gate: GRUGate, x: Sequence[float], y: Sequence[float]) -> list[float]:
    """One token, number by number, as the paper has it."""
    width = len(x)
    w_r, w_z, w_g = (gate.from_branch.weight[i * width : (i + 1) * width].tolist() for i in range(3))
    u_r, u_z = (gate.from_stream.weight[i * width : (i + 1) * width].tolist() for i in range(2))
    u_g, bias = gate.candidate.weight.tolist(), gate.bias.tolist()

    def dot(a: Sequence[float], b: Sequence[float]) -> float:
        return math.fsum(p * q for p, q in zip(a, b, strict=True))

    def sigmoid(number: float) -> float:
        return 1 / (1 + math.exp(-number))

    r = [sigmoid(dot(w_r[i], y) + dot(u_r[i], x)) for i in range(width)]
    z = [sigmoid(dot(w_z[i], y) + dot(u_z[i], x) - bias[i]) for i in range(width)]
    reset = [r[i] * x[i] for i in range(width)]
    h = [math.tanh(dot(w_g[i], y) + dot(u_g[i], reset)) for i in range(width)]
    return [(1 - z[i]) * x[i] + z[i] * h[i] for i in range(width)]


def test_a_gate_is_the_papers() -> None:
    gate = GRUGate(5, 2.0).double()
    assert gate.bias.tolist() == [2.0] * 5
    assert sum(p.numel() for p in gate.parameters()) == 6 * 25 + 5
    torch.nn.init.normal_(gate.bias)
    x, y = torch.randn(2, 3, 5, dtype=torch.double), torch.randn(2, 3, 5, dtype=torch.double)
    expected = [[written_out(gate, x[b, i].tolist(), y[b, i].tolist()) for i in range(3)] for b in range(2)]
    torch.testing.assert_close(gate(x, y), torch.tensor(expected, dtype=torch.double))


def test_a_layer_is_norm_branch_relu_gate() -> None:
    backbone, ids = small("gpt2", "CS", residual="gtrxl"), tokens(2, 11)
    x = backbone.decoder_embedding(ids, torch.arange(11)[None])
    for layer in backbone.decoder_layers:
        x = layer.self_residual.gate(x, F.relu(layer.self_attention(layer.self_residual.norm(x))))
        x = layer.feed_forward_residual.gate(x, F.relu(layer.feed_forward(layer.feed_forward_residual.norm(x))))
    torch.testing.assert_close(backbone(ids), backbone.predict(backbone.final_norm(x)))


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
