"""The banded convolution against ``conv2d``: outputs and both gradients."""

import pytest
import torch
from torch.nn import functional as F

from attentions.kernels.layers import BLOCK, depthwise_conv


@pytest.mark.parametrize(("length", "taps"), [(1, 3), (5, 35), (BLOCK, 5), (BLOCK + 1, 1), (3 * BLOCK + 7, 35)])
def test_equals_conv2d(length: int, taps: int) -> None:
    torch.manual_seed(length * 100 + taps)
    x = torch.randn(2, length, 3, 4, dtype=torch.float64).transpose(1, 2).requires_grad_()
    weight = torch.randn(3, 1, taps, 1, dtype=torch.float64, requires_grad=True)
    results = []
    for y in (depthwise_conv(x, weight), F.conv2d(x, weight, padding=(taps // 2, 0), groups=3)):
        results.append([y, *torch.autograd.grad(y.sin().sum(), [x, weight])])
    torch.testing.assert_close(*results)
    exact = F.conv2d(x.float(), weight.float(), padding=(taps // 2, 0), groups=3)
    half = depthwise_conv(x.bfloat16(), weight)
    assert half.dtype is torch.bfloat16
    torch.testing.assert_close(half.float(), exact, atol=0.2, rtol=0.05)
