"""Feature maps of kernel attentions whose gradients follow from the features, so that no input is stored.

They implement ``linear_sums.FeatureMap``. Shapes: N tokens, E width of a head, r features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cab import UserError

LEAK = 0.01
"""Slope of the leaky ReLU below zero, torch's."""


class Elementwise(NamedTuple):
    """An elementwise function, its derivative as a function of its value, and whether it is never negative."""

    function: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    is_positive: bool

    def forward(self, x: Tensor, _factors: Tensor | None) -> Tensor:
        return self.function(x)

    def backward(self, features: Tensor, _factors: Tensor | None, grad: Tensor) -> Tensor:
        return self.slope(features).mul_(grad)


KERNELS = {
    "elu1": Elementwise(lambda x: F.elu(x).add_(1.0), lambda y: y.clamp(max=1.0), True),
    "relu": Elementwise(F.relu, lambda y: (y > 0).to(y.dtype), True),
    "leaky_relu": Elementwise(lambda x: F.leaky_relu(x, LEAK), lambda y: (y > 0).to(y.dtype).clamp_(min=LEAK), False),
    "identity": Elementwise(torch.clone, torch.ones_like, False),
}


def kernel_of(name: str) -> Elementwise:
    """Return the feature map called ``name``, or raise UserError if there is none."""
    if name not in KERNELS:
        raise UserError(f"kernel must be one of {', '.join(KERNELS)}, got '{name}'")
    return KERNELS[name]


class Reweighted:
    """Multiply features [.., N, E] with factors cos and sin [.., N, 2, 1] of a position: [.., N, 2 E].

    The same two factors give the features back, since their squares sum to one.
    """

    def __init__(self, kernel: Elementwise) -> None:
        self.kernel = kernel

    def forward(self, x: Tensor, factors: Tensor | None) -> Tensor:
        assert factors is not None
        return (self.kernel.function(x).unsqueeze(-2) * factors).flatten(-2)

    def backward(self, features: Tensor, factors: Tensor | None, grad: Tensor) -> Tensor:
        assert factors is not None
        cos, sin = factors.unbind(dim=-2)
        plain, grad = ((x * cos).addcmul_(y, sin) for x, y in (features.chunk(2, dim=-1), grad.chunk(2, dim=-1)))
        return self.kernel.slope(plain).mul_(grad)


class Trigonometric:
    """Map [.., r] to [sin x, cos x] / sqrt(r), [.., 2 r]; products of two are the mean of cos(x - y)."""

    def forward(self, x: Tensor, _factors: Tensor | None) -> Tensor:
        return torch.cat([x.sin(), x.cos()], dim=-1).mul_(x.shape[-1] ** -0.5)

    def backward(self, features: Tensor, _factors: Tensor | None, grad: Tensor) -> Tensor:
        sin, cos = features.chunk(2, dim=-1)
        d_sin, d_cos = grad.chunk(2, dim=-1)
        return (d_sin * cos).addcmul_(d_cos, sin, value=-1.0)


class Taylor:
    """Map [.., d] to 1, x and pairwise products, [.., 1 + d + d (d + 1) / 2]: second-order Taylor features.

    The inner product of two feature vectors is 1 + s + s^2 / 2 with s = x.y. Each pair of different features occurs
    once; in the published form it occurs twice, scaled by sqrt(1/2).
    """

    def forward(self, x: Tensor, _factors: Tensor | None) -> Tensor:
        width = x.shape[-1]
        pairs = [x[..., : width - apart] * x[..., apart:] for apart in range(1, width)]
        return torch.cat([torch.ones_like(x[..., :1]), x, x.square().mul_(0.5**0.5), *pairs], dim=-1)

    def backward(self, features: Tensor, _factors: Tensor | None, grad: Tensor) -> Tensor:
        width = int((2 * features.shape[-1]) ** 0.5) - 1
        sizes = [1, width, *range(width, 0, -1)]
        x = features[..., 1 : width + 1]
        _, own, squared, *pairs = grad.split(sizes, dim=-1)
        result = own.addcmul(squared, x, value=2**0.5)
        for apart, pair in enumerate(pairs, start=1):
            result[..., : width - apart].addcmul_(pair, x[..., apart:])
            result[..., apart:].addcmul_(pair, x[..., : width - apart])
        return result


def unit(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Divide x [..., K] by the square root of its squared norm plus ``eps``."""
    return x * (x.square().sum(dim=-1, keepdim=True) + eps).rsqrt()
