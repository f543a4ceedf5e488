"""Kernel attention over all keys with feature maps that are cheap to evaluate.

Tokens are processed in chunks whose features fit in the processor cache, and features are recomputed in the backward
pass instead of stored. The gradients are hand-written (results/efficiency/kernel_gains.csv lists what that gains).

Shapes: B batch, H heads, N queries, M keys, E width of a head, r features.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attentions.kernels.common.blocks import chunk_slices


class FeatureMap(Protocol):
    """A feature map phi and its gradient. ``factors`` [B or 1, 1, tokens, ...] depend on the position, or are None."""

    def forward(self, x: Tensor, factors: Tensor | None) -> Tensor:
        """Return the features of ``x``."""
        ...

    def backward(self, features: Tensor, factors: Tensor | None, grad: Tensor) -> Tensor:
        """Return the gradient of ``x`` from its features and their gradient."""
        ...


def away_from_zero(x: Tensor, smallest: float) -> Tensor:
    """Return ``x`` with absolute values below ``smallest`` raised to it, signs kept, for use as a denominator."""
    return torch.where(x.abs() < smallest, torch.full_like(x, smallest).copysign(x), x)


def _cut(x: Tensor | None, piece: slice) -> Tensor | None:
    return None if x is None else x[:, :, piece]


def _key_features(
    kind: FeatureMap, key: Tensor, factors: Tensor | None, padding: Tensor | None, piece: slice
) -> Tensor:
    features = kind.forward(key[:, :, piece], _cut(factors, piece))
    return features if padding is None else features.masked_fill_(padding[:, None, piece, None], 0.0)


class SumOfKeys(torch.autograd.Function):
    """Compute phi(k)^T v [B, H, r, E] and phi(k)^T 1 [B, H, r] from keys and values [B, H, M, E] and padding [B, M]."""

    @staticmethod
    def forward(
        ctx: Any, kind: FeatureMap, key: Tensor, value: Tensor, factors: Tensor | None, padding: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        sums: list[Tensor] = []
        mass: list[Tensor] = []
        for piece in chunk_slices(key):
            features = _key_features(kind, key, factors, padding, piece)
            sums.append(features.transpose(-2, -1) @ value[:, :, piece])
            mass.append(features.sum(dim=-2))
        ctx.save_for_backward(key, value, factors, padding)
        ctx.kind = kind
        return torch.stack(sums).sum(dim=0), torch.stack(mass).sum(dim=0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, sums_grad: Tensor, mass_grad: Tensor) -> tuple[Tensor | None, ...]:
        key, value, factors, padding = ctx.saved_tensors
        key_grad, value_grad = torch.empty_like(key), torch.empty_like(value)
        with torch.autocast(key.device.type, enabled=False):
            for piece in chunk_slices(key):
                features = _key_features(ctx.kind, key, factors, padding, piece)
                value_grad[:, :, piece] = features @ sums_grad
                grad = (value[:, :, piece] @ sums_grad.transpose(-2, -1)).add_(mass_grad.unsqueeze(-2))
                if padding is not None:
                    grad.masked_fill_(padding[:, None, piece, None], 0.0)
                key_grad[:, :, piece] = ctx.kind.backward(features, _cut(factors, piece), grad)
        return None, key_grad, value_grad, None, None


def _masses(features: Tensor, mass: Tensor) -> Tensor:
    """Return phi(q) mass, [B, H, tokens, 1]. A matrix-vector product would be eight times slower here."""
    return (features * mass.unsqueeze(-2)).sum(dim=-1, keepdim=True)


class MeanOfQueries(torch.autograd.Function):
    """Compute phi(q) sums / phi(q) mass, [B, H, N, E], with denominators of at least ``smallest`` in absolute value.

    The gradient of a denominator is minus the product of the features and their gradient, divided by the denominator.
    """

    @staticmethod
    def forward(
        ctx: Any,
        kind: FeatureMap,
        query: Tensor,
        factors: Tensor | None,
        sums: Tensor,
        mass: Tensor,
        smallest: float,
    ) -> Tensor:
        output = query.new_empty(*query.shape[:3], sums.shape[-1])
        for piece in chunk_slices(query):
            features = kind.forward(query[:, :, piece], _cut(factors, piece))
            divisor = away_from_zero(_masses(features, mass), smallest)
            output[:, :, piece] = (features @ sums).div_(divisor)
        ctx.save_for_backward(query, factors, sums, mass)
        ctx.kind, ctx.smallest = kind, smallest
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, factors, sums, mass = ctx.saved_tensors
        query_grad = torch.empty_like(query)
        sums_grad, mass_grad = torch.zeros_like(sums), torch.zeros_like(mass)
        with torch.autocast(query.device.type, enabled=False):
            for piece in chunk_slices(query):
                features = ctx.kind.forward(query[:, :, piece], _cut(factors, piece))
                divisor = away_from_zero(_masses(features, mass), ctx.smallest)
                g = grad[:, :, piece] / divisor
                features_grad = g @ sums.transpose(-2, -1)
                share = (features * features_grad).sum(dim=-1, keepdim=True).div_(divisor)
                share.masked_fill_(divisor.abs() <= ctx.smallest, 0.0)
                sums_grad.add_(features.transpose(-2, -1) @ g)
                mass_grad.sub_((features * share).sum(dim=-2))
                features_grad.addcmul_(share, mass.unsqueeze(-2), value=-1.0)
                query_grad[:, :, piece] = ctx.kind.backward(features, _cut(factors, piece), features_grad)
        return None, query_grad, None, sums_grad, mass_grad, None
