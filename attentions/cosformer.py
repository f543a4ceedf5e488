"""cosFormer (Qin et al. 2022): ReLU features, re-weighted by the cosine of the distance."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attentions.linear import normalised
from attentions.linearized import LinearizedAttention, Where
from cab import Pattern, UserError, register_attention


@register_attention("cosformer", patterns="NS CS NC CC", complexity="n", paper="Qin et al. 2022")
class CosformerAttention(LinearizedAttention):
    """s(i, j) = relu(q_i) . relu(k_j) cos(pi/2 (i - j) / L), normalised  (CAB, Eq. 16 and 17).

    NS and NC are the paper's: L is the longer of the two sequences, of the row itself and not of the padded
    batch. In CS and CC that length is not known when a target is computed (which is why the paper's causal
    form looks ahead), so L is fixed: position t has the angle pi/2 min(t / L, 1). Up to ``reweighting_length``
    tokens this is the paper's formula with that L; beyond it late positions are no longer told apart, weights
    stay non-negative, and nothing ever depends on the future.

    Args:
        reweighting_length: L of the causal patterns; not used by NS and NC.

    Raises:
        ValueError: for ``reweighting_length`` below 1.
    """

    smallest_denominator = 1e-6
    autocast_dtypes = (torch.bfloat16,)  # gradients of small denominators overflow float16 (CAB, Table 3)

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        reweighting_length: int = 8192,
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        if reweighting_length < 1:
            raise UserError(f"reweighting_length must be at least 1, got {reweighting_length}")
        self.reweighting_length = reweighting_length

    def query_features(self, query: Tensor, where: Where) -> Tensor:
        """relu(x) cos(angle) and relu(x) sin(angle), side by side: their products give cos of the difference."""
        angle = self.angles(query, where)
        return Reweighted.apply(query, torch.stack([angle.cos(), angle.sin()], dim=-2))

    def key_features(self, key: Tensor, where: Where) -> Tensor:
        return self.query_features(key, where._replace(start=None) if self.pattern.is_cross else where)

    def angles(self, x: Tensor, where: Where) -> Tensor:
        """Angle of each position, counted from 1: [B or 1, 1, N, 1]."""
        first = where.offset + 1
        position = torch.arange(first, first + x.shape[2], device=x.device, dtype=x.dtype).expand(1, -1)
        if where.start is not None:
            position = position + where.start.unsqueeze(1)
        length = self.reweighting_length if where.length is None else where.length.clamp(min=1).unsqueeze(1)
        return (position / length).clamp(max=1.0)[:, None, :, None] * (math.pi / 2)

    def reference(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_padding_mask: Tensor | None,
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        """With the weight of every pair written out, Eq. 16."""
        where = self.locate(query, key, query_padding_mask, key_padding_mask)
        difference = self.angles(query, where) - self.angles(key, where).transpose(-2, -1)
        weights = query.relu() @ key.relu().transpose(-2, -1) * difference.cos()
        return normalised(weights, value, self.pattern, key_padding_mask, self.smallest_denominator)


class Reweighted(torch.autograd.Function):
    """relu(x) times the factors [.., N, 2, 1], side by side: [.., N, E] to [.., N, 2 E].

    Keeps its output alone, which is what its reader keeps as well: cos + sin is at least one up to a right angle,
    so an output is above zero exactly where x is.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor) -> Tensor:
        features = (x.relu().unsqueeze(-2) * factors).flatten(-2)
        ctx.save_for_backward(features, factors)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        features, factors = ctx.saved_tensors
        first, second = features.chunk(2, dim=-1)
        cos, sin = factors.unbind(dim=-2)
        first_grad, second_grad = grad.chunk(2, dim=-1)
        return (first_grad * cos).addcmul_(second_grad, sin).mul_((first > 0) | (second > 0)), None
