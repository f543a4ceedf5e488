"""Softmax attention with the weights written out: the baseline that the paper measures against."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.vanilla import VanillaAttention
from cab import register_attention


@register_attention("eager", patterns="NS CS NC CC", complexity="n^2", paper="Vaswani et al. 2017")
class EagerAttention(VanillaAttention):
    """Compute softmax(q k^T / sqrt(E)) v (CAB, Eq. 1) with separate operations, which store all N x M weights.

    The same function, options and decoding as ``vanilla``.
    """

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, is_causal: bool) -> Tensor:
        if is_causal:
            visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
        logits = (query * self.scale) @ key.transpose(2, 3)
        if visible is not None:
            logits = logits.masked_fill(~visible, float("-inf"))
        return F.dropout(logits.softmax(dim=-1), self.dropout, self.training) @ value
