"""Scatterbrain: softmax attention in a window, random features beyond it."""

from __future__ import annotations

import pytest
import torch

from attentions.scatterbrain import ScatterbrainAttention
from cab import PaddingMasks, build_attention
from cab.registry.build import state_bytes
from tests.attentions import agreement


@pytest.mark.parametrize("pattern", ["NS", "CS"])
def test_weights_are_the_sum_of_both_parts(pattern: str) -> None:
    """phi(q) phi(k) everywhere, and exp(q k) - phi(q) phi(k) in the window: the paper's way to write it."""
    module = agreement.make("scatterbrain", pattern, window=2, num_features=8)
    assert isinstance(module, ScatterbrainAttention)
    query, key, value = (torch.randn(2, agreement.HEADS, 9, 8, dtype=torch.float64) for _ in range(3))
    phi_query, phi_key = (module.logarithms(x / 8**0.25).exp() for x in (query, key))
    low_rank = phi_query @ phi_key.mT
    distance = torch.arange(9)[:, None] - torch.arange(9)
    support = (distance.abs() <= 2) & ((distance >= 0) | (pattern == "NS"))
    weights = low_rank + support * ((query @ key.mT / 8**0.5).exp() - low_rank)
    if pattern == "CS":
        weights = weights.tril()
    expected = weights @ value / weights.sum(dim=-1, keepdim=True)
    found = module.attend(query, key, value, PaddingMasks())
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("pattern", ["NS", "CS"])
def test_large_products_stay_numbers(pattern: str) -> None:
    """Features of which the largest is e^1000 times the next, as exp(q k) beside them."""
    module = agreement.make("scatterbrain", pattern, window=2)
    x = 100.0 * torch.randn(2, 50, agreement.WIDTH, dtype=torch.float64, requires_grad=True)
    output = module(x)
    gradients = torch.autograd.grad(output.sum(), [x, *module.parameters()])
    assert all(tensor.isfinite().all() for tensor in (output, *gradients))


def test_dropout_leaves_what_is_far() -> None:
    """Of values that are zero in the window, nothing is dropped."""
    module = agreement.make("scatterbrain", "NS", window=0, dropout=0.5)
    query, key = torch.randn(2, 1, agreement.HEADS, 20, 8, dtype=torch.float64)
    value = torch.zeros_like(key)
    value[:, :, :10] = 1.0
    dropped, whole = (
        module.attend(query, key, value, PaddingMasks()),
        module.eval().attend(query, key, value, PaddingMasks()),
    )
    torch.testing.assert_close(dropped[:, :, 10:], whole[:, :, 10:])
    assert not torch.equal(dropped[:, :, :10], whole[:, :, :10])


def test_state_is_of_constant_size() -> None:
    module = build_attention("scatterbrain", pattern="CS", embed_dim=8, num_heads=2, window=4, num_features=6)
    assert state_bytes(module, 3) == state_bytes(module, 300)
