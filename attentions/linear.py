"""Linear attention with elu(x) + 1 as features (Katharopoulos et al. 2020)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from attentions.linearized import LinearizedAttention
from cab import register_attention


class EluPlusOne:
    """elu(x) + 1, whose slope is min(elu(x) + 1, 1)."""

    @staticmethod
    def forward(x: Tensor, _factors: Tensor | None) -> Tensor:
        return F.elu(x).add_(1.0)

    @staticmethod
    def backward(features: Tensor, _factors: Tensor | None, grad: Tensor) -> Tensor:
        return features.clamp(max=1.0).mul_(grad)


@register_attention("linear", patterns="NS CS NC CC", complexity="n", paper="Katharopoulos et al. 2020")
class LinearAttention(LinearizedAttention):
    """phi(q) (phi(k)^T v) / (phi(q) . sum phi(k)) with phi = elu + 1 (their Eq. 5 and 7), without 1/sqrt(E)."""

    feature_map = EluPlusOne

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.normalised((F.elu(query) + 1.0) @ (F.elu(key) + 1.0).mT) @ value
