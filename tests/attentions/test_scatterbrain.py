"""Scatterbrain: softmax attention in a window, random features beyond it."""

from __future__ import annotations

import pytest
import torch

from cab import PaddingMasks
from tests.attentions import agreement


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
