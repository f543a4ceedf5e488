"""Gates of GTrXL in place of sums: the paper's equations, and the identity they start near."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn import functional as F

from backbones.layers.gates import GRUGate
from tests.backbones.language_models import small, tokens


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


def test_a_large_bias_starts_at_the_identity() -> None:
    backbone, ids = small("gpt2", "CS", residual="gtrxl", gate_bias=60.0), tokens(2, 11)
    x = backbone.decoder_embedding(ids, torch.arange(11)[None])
    torch.testing.assert_close(backbone.decoder_layers[0](x), x)
