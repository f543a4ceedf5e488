"""Softmax attention by three kernels: vanilla, eager, flash; and no attention at all."""

from __future__ import annotations

import pytest
import torch

from attentions.softmax import mask_by_coordinate
from cab import UserError
from tests.attentions import agreement

PATTERNS = ("NS", "CS", "NC", "CC")
KERNELS = ("vanilla", "eager", "flash")


def test_branches_of_one_state_are_independent() -> None:
    """Two continuations of the same prefix, as in a search: neither sees the other's tokens."""
    module = agreement.make("vanilla", "CS")
    x = torch.randn(2, 9, agreement.WIDTH, dtype=torch.float64)
    _, prefix = module.prefill(x[:, :7], module.init_state(2, dtype=torch.float64))
    _, first = module.step(x[:, 7], prefix)
    module.step(x[:, 8], prefix)
    output, _ = module.step(x[:, 8], first)
    torch.testing.assert_close(output, module(x)[:, 8])


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


@pytest.mark.parametrize("name", ["vanilla", "eager"])
def test_dropout_keeps_the_mean_and_stops_in_evaluation(name: str) -> None:
    module = agreement.make(name, "NS", dropout=0.5)
    x = torch.randn(1, 5, agreement.WIDTH, dtype=torch.float64)
    mean = module(x.expand(4000, -1, -1)).mean(dim=0, keepdim=True)
    module.eval()
    assert torch.equal(module(x), module(x))
    torch.testing.assert_close(mean, module(x), rtol=0.1, atol=0.1)


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


@pytest.mark.parametrize("pattern", PATTERNS)
def test_none_is_zero_without_parameters(pattern: str) -> None:
    module = agreement.make("none", pattern)
    inputs, masks = agreement.draw(module, 7, 5)
    output = module(*inputs, **masks)
    assert not list(module.parameters())
    assert output.shape == inputs[0].shape
    assert not output.any()
    (gradient,) = torch.autograd.grad(output.sum(), inputs[:1])
    assert not gradient.any()
