"""Linear attention with elu(x) + 1 as features (Katharopoulos et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.linearized import LinearizedAttention
from cab import Pattern, register_attention


class EluPlusOne:
    """elu(x) + 1, whose slope is min(elu(x) + 1, 1)."""

    @staticmethod
    def forward(x: Tensor, factors: Tensor | None) -> Tensor:  # noqa: ARG004
        return F.elu(x).add_(1.0)

    @staticmethod
    def backward(features: Tensor, factors: Tensor | None, grad: Tensor) -> Tensor:  # noqa: ARG004
        return features.clamp(max=1.0).mul_(grad)


@register_attention("linear", patterns="NS CS NC CC", complexity="n", paper="Katharopoulos et al. 2020")
class LinearAttention(LinearizedAttention):
    """phi(q) (phi(k)^T v) / (phi(q) . sum phi(k)) with phi = elu + 1 (their Eq. 5 and 7), without 1/sqrt(E)."""

    feature_map = EluPlusOne

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


def normalised(
    weights: Tensor, value: Tensor, pattern: Pattern, key_padding_mask: Tensor | None, smallest: float = 1e-30
) -> Tensor:
    """Weights [B, H, N, M] of visible keys, divided by their sum, times the values."""
    if pattern is Pattern.CS:
        weights = weights * torch.ones_like(weights).tril()
    if key_padding_mask is not None:
        weights = weights.masked_fill(key_padding_mask[:, None, None, :], 0.0)
    return (weights / weights.sum(dim=-1, keepdim=True).clamp(min=smallest)) @ value
