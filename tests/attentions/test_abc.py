"""ABC's causal form: spans and blocks, its memory as a state, extreme weights, and its operators."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attentions.abc import ABCAttention
from attentions.kernels import causal_abc as kernel, chunks
from attentions.kernels.causal_abc import BLOCK, causal_abc
from attentions.kernels.numerics import mask_value


def build(scale: float = 1.0, num_landmarks: int = 5) -> ABCAttention:
    torch.manual_seed(7)
    attention = ABCAttention(pattern="CS", embed_dim=8, num_heads=2, num_landmarks=num_landmarks).double()
    with torch.no_grad():
        attention.compress_k.mul_(scale)
        attention.compress_v.mul_(scale)
    return attention


def gradients(attention: ABCAttention, x: Tensor, padding: Tensor | None) -> list[Tensor]:
    leaf = x.clone().requires_grad_()
    output = attention(leaf, key_padding_mask=padding)
    loss = (output * torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view_as(output)).sum()
    return [output, *torch.autograd.grad(loss, [leaf, *attention.parameters()])]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 149])
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_spans_equal_the_readable_form(
    length: int, padded: bool, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "SPAN", 2 * BLOCK)
    monkeypatch.setattr(chunks, "CPU_TOKENS", 8 * BLOCK)  # two of three rows at once
    attention = build(scale)
    x = 2 * torch.randn(3, length, 8, dtype=torch.float64)
    padding = None
    if padded:
        padding = torch.rand(3, length) < 0.4
        padding[1] = True
        x[padding] = torch.nan
    fast = gradients(attention, x, padding)
    attention.use_reference = True
    for got, expected in zip(fast, gradients(attention, x, padding), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)


def test_gradients_of_the_memory_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "BLOCK", 3)
    monkeypatch.setattr(kernel, "SPAN", 6)
    torch.manual_seed(5)
    heads = torch.randn(3, 1, 1, 11, 2, dtype=torch.float64, requires_grad=True)
    compress = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    mass = torch.randn(2, 1, 1, 3, dtype=torch.float64, requires_grad=True)
    mean = torch.randn(2, 1, 1, 3, 2, dtype=torch.float64, requires_grad=True)

    def call(heads: Tensor, compress: Tensor, mass: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return causal_abc(*heads, compress, None, mass, mean)

    assert torch.autograd.gradcheck(call, (heads, compress, mass, mean))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.slow
def test_operators_are_well_formed(padded: bool) -> None:
    torch.manual_seed(0)
    heads = [torch.randn(2, 1, 40, 4, requires_grad=True) for _ in range(3)]
    compress = torch.randn(2, 4, 3, requires_grad=True)
    padding = torch.rand(2, 40) < 0.3 if padded else None
    mass = torch.full((2, 2, 1, 3), mask_value(), dtype=torch.float64)
    mean = torch.zeros(2, 2, 1, 3, 4)
    torch.library.opcheck(torch.ops.cab.causal_abc.default, (*heads, compress, padding, mass, mean))
