"""FNet's transforms."""

from __future__ import annotations

import torch

from cab import build_attention
from tests.attentions import agreement


def test_odd_width() -> None:
    module = build_attention("fnet", pattern="NS", embed_dim=15, num_heads=3)
    x = torch.randn(2, 11, 15, dtype=torch.float64)
    torch.testing.assert_close(module(x), torch.fft.fft2(x).real)


def test_ortho_twice_is_the_even_part() -> None:
    """Re F twice gives half the input, and half the input read backwards in both directions."""
    module = agreement.make("fnet", "NS", norm="ortho")
    x = torch.randn(1, 9, agreement.WIDTH, dtype=torch.float64)
    backwards = x.flip(1, 2).roll(1, 1).roll(1, 2)
    torch.testing.assert_close(module(module(x)), (x + backwards) / 2)
