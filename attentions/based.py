"""Based (Arora et al. 2024): linear attention with the Taylor features of the exponential."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from attentions.bases.linearized import LinearizedAttention, PositionInfo
from attentions.bases.options import check_at_least
from attentions.bases.recurrent import xavier_linear
from attentions.kernels.linear_attention import Taylor
from cab import DecodeState, register_attention
from cab.attention import CommonArguments


@register_attention("based", patterns="NS CS NC CC", complexity="n", paper="Arora et al. 2024")
class BasedAttention(LinearizedAttention):
    """Compute normalized weights 1 + s + s^2 / 2, at least 1/2, with s = q . k / sqrt(d) (Based, section 4.1).

    q and k are narrow, d features of a head, of which 1 + d + d (d + 1) / 2 products are formed. The other half of
    the published network, softmax attention in small windows in some layers, is `local`.

    Args:
        feature_dim: d.
    """

    feature_map = Taylor()

    def __init__(self, *, feature_dim: int = 16, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        check_at_least(1, feature_dim=feature_dim)
        self.feature_dim = feature_dim
        self.q_proj = xavier_linear(self.embed_dim, self.num_heads * feature_dim, gain=2**-0.5)
        self.k_proj = xavier_linear(self.embed_dim, self.num_heads * feature_dim, gain=2**-0.5)

    def reduce_source(self, key: Tensor, value: Tensor, padding: Tensor | None, where: PositionInfo) -> DecodeState:
        return super().reduce_source(key * self.feature_dim**-0.25, value, padding, where)

    def read(self, query: Tensor, summary: DecodeState, where: PositionInfo) -> Tensor:
        return super().read(query * self.feature_dim**-0.25, summary, where)

    def features(self, x: Tensor, where: PositionInfo) -> Tensor:
        return super().features(x * self.feature_dim**-0.25, where)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        products = query @ key.mT / self.feature_dim**0.5
        return self.normalize(1 + products + products.square() / 2) @ value
