"""Softmax attention (Vaswani et al. 2017), through torch's fused kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cab import Attention, register_attention
from cab.attention import State


@register_attention("vanilla", patterns="NS CS NC CC", complexity="n^2", paper="Vaswani et al. 2017")
class VanillaAttention(Attention):
    """softmax(q k^T / sqrt(E)) v  (CAB, Eq. 1)."""

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_padding_mask: Tensor | None,
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        causal = self.pattern.value == "CS"
        dropout = self.dropout if self.training else 0.0
        if key_padding_mask is None:
            return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal)
        # A row with no key at all sees padding, whose values are finite; its output is discarded.
        visible = (~key_padding_mask | key_padding_mask.all(dim=1, keepdim=True))[:, None, None, :]
        if causal:
            n = query.shape[2]
            visible = visible & torch.ones(n, n, dtype=torch.bool, device=query.device).tril()
            visible = visible | torch.eye(n, dtype=torch.bool, device=query.device)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout)
