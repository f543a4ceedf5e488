"""Linear attention with elu(x) + 1 as features (Katharopoulos et al. 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from attentions.linearized import LinearizedAttention, Where
from cab import Pattern, register_attention


@register_attention("linear", patterns="NS CS NC CC", complexity="n", paper="Katharopoulos et al. 2020")
class LinearAttention(LinearizedAttention):
    """phi(q) (phi(k)^T v) / (phi(q) . sum phi(k)) with phi = elu + 1 (their Eq. 5 and 7), without 1/sqrt(E)."""

    def query_features(self, query: Tensor, where: Where) -> Tensor:  # noqa: ARG002
        return EluPlusOne.apply(query)

    def key_features(self, key: Tensor, where: Where) -> Tensor:
        return self.query_features(key, where)

    def reference(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_padding_mask: Tensor | None,  # noqa: ARG002
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        """With the weight of every pair written out."""
        weights = (F.elu(query) + 1.0) @ (F.elu(key) + 1.0).transpose(-2, -1)
        return normalised(weights, value, self.pattern, key_padding_mask)


class EluPlusOne(torch.autograd.Function):
    """elu(x) + 1; keeps its output alone, which is what its reader keeps as well: the slope is min(output, 1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        features = F.elu(x).add_(1.0)
        ctx.save_for_backward(features)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (features,) = ctx.saved_tensors
        return features.clamp(max=1.0).mul_(grad)


def normalised(
    weights: Tensor, value: Tensor, pattern: Pattern, key_padding_mask: Tensor | None, smallest: float = 1e-30
) -> Tensor:
    """Weights [B, H, N, M] of visible keys, divided by their sum, times the values."""
    if pattern is Pattern.CS:
        weights = weights * torch.ones_like(weights).tril()
    if key_padding_mask is not None:
        weights = weights.masked_fill(key_padding_mask[:, None, None, :], 0.0)
    return (weights / weights.sum(dim=-1, keepdim=True).clamp(min=smallest)) @ value
