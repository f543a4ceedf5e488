"""Softmax attention: targets without keys, biases, and the flash kernel."""

from __future__ import annotations

import pytest
import torch

from attentions.softmax import mask_by_coordinate
from cab import UserError
from tests.attentions import agreement

PATTERNS = ("NS", "CS", "NC", "CC")


def test_target_without_keys_is_zero_before_the_output_projection() -> None:
    module = agreement.make("vanilla", "NC")
    inputs, masks = agreement.draw(module, 6, 4)
    masks["key_padding_mask"][4] = True
    output = module(*inputs, key_padding_mask=masks["key_padding_mask"])
    torch.testing.assert_close(output[4], module.out_proj.bias.expand_as(output[4]))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_without_biases(pattern: str) -> None:
    biased, unbiased = (agreement.make("vanilla", pattern, qkv_bias=bias) for bias in (True, False))
    count = [sum(p.numel() for p in module.parameters()) for module in (biased, unbiased)]
    assert count == [4 * agreement.WIDTH**2 + 4 * agreement.WIDTH, 4 * agreement.WIDTH**2 + agreement.WIDTH]


def test_flash_says_where_there_is_no_kernel() -> None:
    module = agreement.make("flash", "NS", dropout=0.1)
    x = torch.randn(2, 5, agreement.WIDTH, dtype=torch.float64)
    with pytest.raises(UserError, match=r"no flash kernel for torch.float64 on cpu.*vanilla"):
        module(x)
    assert module.eval()(x).shape == x.shape


def test_flash_hides_padding_without_a_mask() -> None:
    """As on CUDA, whose kernel takes none."""
    query, key, value = torch.randn(3, 2, 4, 7, 8, requires_grad=True).unbind()
    visible = torch.tensor([[True] * 4 + [False] * 3, [False, True] * 3 + [True]])[:, None, None]
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, visible)
    padded = mask_by_coordinate(query, key * 9.0, value, visible)
    output = torch.nn.functional.scaled_dot_product_attention(*padded, scale=8**-0.5 / 9.0)[..., :8]
    torch.testing.assert_close(output, expected)
