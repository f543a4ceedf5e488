"""Differential attention (Ye et al. 2025): the difference of two softmax attentions.

Shapes: B batch, H heads, N targets, M keys, E width of a head, P differential heads, w width of their queries.
"""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.numerics import upcast
from attentions.kernels.softmax_attention import softmax
from attentions.softmax import VanillaAttention
from cab import LayerPosition, Pattern, UserError, register_attention
from cab.attention import SINGLE_LAYER, CommonArguments
from cab.claims import Claims


@register_attention("differential", patterns="NS CS NC CC", complexity="n^2", paper="Ye et al. 2025")
class DifferentialAttention(VanillaAttention):
    """Compute (1 - l0) RMSNorm((softmax(q_1 k_1^T / sqrt(w)) - l softmax(q_2 k_2^T / sqrt(w))) v) (Eq. 1 to 3).

    l = exp(a_1 b_1) - exp(a_2 b_2) + l0 with learned vectors a and b of width w that all heads share, and
    l0 = 0.8 - 0.6 exp(-0.3 i) in layer i, counted from 0. Two heads make a differential one, with values twice as wide,
    so that a slot of H heads has P = H / 2 of them, as published; where H is odd it has H, whose queries and keys are
    half as wide as the head.

    ``dropout`` is not used (as released): the norm would undo it. Decoding keeps every key and value.
    """

    claims = Claims()
    recent = 0  # the cache is one block of keys

    def __init__(self, *, layer_position: LayerPosition = SINGLE_LAYER, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.num_pairs = self.num_heads if self.num_heads % 2 else self.num_heads // 2
        if self.embed_dim % (2 * self.num_pairs):
            raise UserError(
                f"embed_dim must be divisible by {2 * self.num_pairs}, got {self.embed_dim}; "
                "change embed_dim or num_heads"
            )
        self.width = self.embed_dim // self.num_pairs // 2
        self.initial = 0.8 - 0.6 * math.exp(-0.3 * layer_position.index)
        self.lambdas = nn.Parameter(0.1 * torch.randn(2, 2, self.width))
        self.norm = nn.RMSNorm(2 * self.width, eps=1e-5)

    @property
    def weight_dropout(self) -> float:
        return 0.0

    def factor(self) -> Tensor:
        """Return l, the factor of the second attention."""
        lambda_1, lambda_2 = (self.lambdas[0] * self.lambdas[1]).sum(dim=-1).exp()
        return lambda_1 - lambda_2 + self.initial

    def pairs(self, x: Tensor, heads: int) -> Tensor:
        """Regroup heads: [..., H, N, E] to [..., heads, N, D / heads]."""
        return x.transpose(-3, -2).flatten(-2).unflatten(-1, (heads, -1)).transpose(-3, -2)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k = (self.pairs(x, 2 * self.num_pairs) for x in (query, key))
        logits = q @ k.mT * self.width**-0.5
        if self.pattern is Pattern.CS:
            logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
        weights = logits.softmax(dim=-1)
        x = (weights[0::2] - self.factor() * weights[1::2]) @ self.pairs(value, self.num_pairs)
        x = x / (x.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * self.norm.weight * (1 - self.initial)
        return self.pairs(x, self.num_heads)

    def softmax_attention(
        self, query: Tensor, key: Tensor, value: Tensor, *, visible: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        v = self.pairs(value, self.num_pairs)
        # The fused kernels want one width: queries and keys are filled up with zeros.
        q, k = (F.pad(self.pairs(x, 2 * self.num_pairs), (0, self.width)) for x in (query, key))
        attention_1, attention_2 = (
            super(DifferentialAttention, self).softmax_attention(
                q[:, i::2], k[:, i::2], v, visible=visible, is_causal=is_causal
            )
            for i in (0, 1)
        )
        with torch.autocast(query.device.type, enabled=False):
            x = self.norm(upcast(attention_1) - self.factor() * upcast(attention_2)) * (1 - self.initial)
        return self.pairs(x.to(query.dtype), self.num_heads)

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, is_causal: bool) -> Tensor:
        return softmax.rounding_to(query.dtype)(query, key, value, visible, 0.0, is_causal, scale=self.width**-0.5)
