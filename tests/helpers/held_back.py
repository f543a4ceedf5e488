"""Attentions whose rank is known before they are trained, to check that the suite finds it.

Not causal, and not registered: `attention=FILE.py:Class` with ``pattern=NS`` or ``NC``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cab import Attention, PaddingMasks


class FirstTokens(Attention):
    """Softmax attention to the first 8 tokens alone: what stands after them is never found."""

    count = 8

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        hidden = None if padding.key is None else padding.key[:, : self.count]
        return softmax_attention(query, key[:, :, : self.count], value[:, :, : self.count], hidden)


class MeanOfAll(Attention):
    """The mean of all values whatever is asked: nothing can be looked up."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        return softmax_attention(torch.zeros_like(query), key, value, padding.key)


class HalfDead(Attention):
    """Softmax attention whose second half of the heads is zero."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        alive = self.num_heads // 2
        heads = softmax_attention(query[:, :alive], key[:, :alive], value[:, :alive], padding.key)
        return F.pad(heads, (0, 0, 0, 0, 0, self.num_heads - alive))


def softmax_attention(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Tensor:
    """A target that sees no key gets zero."""
    if hidden is None:
        return F.scaled_dot_product_attention(query, key, value)
    visible = ~hidden[:, None, None]
    sees_none = ~visible.any(dim=-1, keepdim=True)
    return F.scaled_dot_product_attention(query, key, value, visible | sees_none).masked_fill(sees_none, 0.0)
