"""Kernel attention over all keys with features that are cheap to form: they are never kept.

Tokens are taken some at a time, whose features stay in the processor's cache; the backward pass forms them anew.
What a feature map is: ``forward(x, factors)`` gives the features, ``backward(features, factors, grad)`` the gradient
of x from the features themselves. ``factors`` [B or 1, 1, tokens, ...] depend on the position, or are None.

Shapes: B batch, H heads, N queries, M keys, E width of a head, r features.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attentions.kernels.blocks import pieces


class FeatureMap(Protocol):
    def forward(self, x: Tensor, factors: Tensor | None) -> Tensor: ...

    def backward(self, features: Tensor, factors: Tensor | None, grad: Tensor) -> Tensor: ...


def away_from_zero(x: Tensor, smallest: float) -> Tensor:
    """``x``, or ``smallest`` with its sign where it is nearer to zero: a denominator."""
    return torch.where(x.abs() < smallest, torch.full_like(x, smallest).copysign(x), x)


def _cut(x: Tensor | None, piece: slice) -> Tensor | None:
    return None if x is None else x[:, :, piece]


def _key_features(
    kind: FeatureMap, key: Tensor, factors: Tensor | None, padding: Tensor | None, piece: slice
) -> Tensor:
    features = kind.forward(key[:, :, piece], _cut(factors, piece))
    return features if padding is None else features.masked_fill_(padding[:, None, piece, None], 0.0)


class Mapped(torch.autograd.Function):
    """phi(x); keeps its output alone, which is what its reader keeps as well.

    By hand, `linear` in CS takes 0.85 of the memory of plain autograd at 512 tokens; where spans are formed anew, from
    4,096 on, the same (results/efficiency/kernel_gains.csv).
    """

    @staticmethod
    def forward(ctx: Any, kind: FeatureMap, x: Tensor, factors: Tensor | None) -> Tensor:
        features = kind.forward(x, factors)
        ctx.save_for_backward(features, factors)
        ctx.kind = kind
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, factors = ctx.saved_tensors
        return None, ctx.kind.backward(features, factors, grad), None


class SumOfKeys(torch.autograd.Function):
    """phi(k)^T v [B, H, r, E] and phi(k)^T 1 [B, H, r] of keys and values [B, H, M, E]; padding [B, M] or None.

    By hand it takes 0.88 of the memory of plain autograd at 4,096 keys (results/efficiency/kernel_gains.csv).
    """

    @staticmethod
    def forward(
        ctx: Any, kind: FeatureMap, key: Tensor, value: Tensor, factors: Tensor | None, padding: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        sums: list[Tensor] = []
        mass: list[Tensor] = []
        for piece in pieces(key):
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
            for piece in pieces(key):
                features = _key_features(ctx.kind, key, factors, padding, piece)
                value_grad[:, :, piece] = features @ sums_grad
                grad = (value[:, :, piece] @ sums_grad.transpose(-2, -1)).add_(mass_grad.unsqueeze(-2))
                if padding is not None:
                    grad.masked_fill_(padding[:, None, piece, None], 0.0)
                key_grad[:, :, piece] = ctx.kind.backward(features, _cut(factors, piece), grad)
        return None, key_grad, value_grad, None, None


def _masses(features: Tensor, mass: Tensor) -> Tensor:
    """phi(q) mass, [B, H, tokens, 1]; a product of matrix and vector is eight times slower here."""
    return (features * mass.unsqueeze(-2)).sum(dim=-1, keepdim=True)


class MeanOfQueries(torch.autograd.Function):
    """phi(q) sums / phi(q) mass, kept away from zero by ``smallest``: [B, H, N, E] of queries [B, H, N, E].

    The gradient of a denominator is minus the product of features and their own gradient, over the denominator.
    By hand it takes 0.50 of the memory of plain autograd at 4,096 queries (results/efficiency/kernel_gains.csv).
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
        for piece in pieces(query):
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
            for piece in pieces(query):
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
