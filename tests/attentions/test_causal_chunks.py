"""Kernel attentions over many spans and pieces of tokens: outputs and all gradients are the readable form's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cab import build_attention

LENGTHS = {"query": 1037, "source": 1301}
"""Above what is in memory at once, and multiples of nothing."""


KINDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "linear": ("linear", {}, "NS CS NC CC"),
    "cosformer": ("cosformer", {}, "NS CS NC CC"),
    "performer": ("performer", {"num_features": 5}, "NS CS NC CC"),
    "performer, released": ("performer", {"denominator_floor": 0.1}, "NS NC CC"),
}


@pytest.mark.parametrize(("kind", "pattern"), [(kind, p) for kind in KINDS for p in KINDS[kind][2].split()])
def test_many_spans(kind: str, pattern: str) -> None:
    name, options, _ = KINDS[kind]
    attention = build_attention(name, pattern=pattern, embed_dim=8, num_heads=2, **options).double()
    query = 2 * torch.randn(3, LENGTHS["query"], 8, dtype=torch.float64)
    source = 2 * torch.randn(3, LENGTHS["source"], 8, dtype=torch.float64)
    inputs = [query, source] if pattern in ("NC", "CC") else [query]
    padding = torch.rand(3, inputs[-1].shape[1]) < 0.3
    padding[0], padding[1] = False, pattern in ("NC", "CC")  # a row without padding, a source that is all padding
    found = []
    for attention.use_reference in (True, False):
        leaves = [x.clone().requires_grad_() for x in inputs]
        output = attention(leaves[0], *(2 * leaves[1:]), key_padding_mask=padding)
        loss = (output * output.detach().sin()).sum()
        found.append([output, *torch.autograd.grad(loss, [*leaves, *attention.parameters()])])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)
