"""The banded convolution against ``conv2d``: outputs and both gradients."""

import pytest
import torch
from torch.nn import functional as F

from attentions.kernels.layers import BLOCK, depthwise_conv


@pytest.mark.parametrize("length", [1, 2, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
@pytest.mark.parametrize("taps", [1, 3, 5, 35])
def test_equals_conv2d(length: int, taps: int) -> None:
    torch.manual_seed(length * 100 + taps)
    x = torch.randn(2, length, 3, 4, dtype=torch.float64).transpose(1, 2).requires_grad_()
    weight = torch.randn(3, 1, taps, 1, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(2, 3, length, 4, dtype=torch.float64)
    ours = depthwise_conv(x, weight)
    theirs = F.conv2d(x, weight, padding=(taps // 2, 0), groups=3)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(
        torch.autograd.grad(ours, [x, weight], grad), torch.autograd.grad(theirs, [x, weight], grad), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_half_precision_sums_wide() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(1, 2, 200, 8), torch.randn(2, 1, 5, 1)
    exact = F.conv2d(x, weight, padding=(2, 0), groups=2)
    half = depthwise_conv(x.bfloat16(), weight)
    assert half.dtype is torch.bfloat16
    torch.testing.assert_close(half.float(), exact, atol=0.1, rtol=0.05)


@pytest.mark.slow
def test_operators_are_well_formed() -> None:
    x = torch.randn(2, 2, 70, 3, requires_grad=True)
    taps = torch.randn(4, 5, requires_grad=True)
    torch.library.opcheck(torch.ops.cab.depthwise_conv.default, (x, taps))
