"""cosFormer (Qin et al. 2022): ReLU features, re-weighted by the cosine of the distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attentions.linearized import LinearizedAttention, Where
from cab import Pattern, UserError, register_attention


class Reweighted:
    """relu(x) times the factors [.., N, 2, 1], side by side: [.., N, E] to [.., N, 2 E].

    cos + sin is at least one up to a right angle, so a feature is above zero exactly where x is.
    """

    @staticmethod
    def forward(x: Tensor, factors: Tensor | None) -> Tensor:
        assert factors is not None
        return (x.relu().unsqueeze(-2) * factors).flatten(-2)

    @staticmethod
    def backward(features: Tensor, factors: Tensor | None, grad: Tensor) -> Tensor:
        assert factors is not None
        first, second = features.chunk(2, dim=-1)
        cos, sin = factors.unbind(dim=-2)
        first_grad, second_grad = grad.chunk(2, dim=-1)
        return (first_grad * cos).addcmul_(second_grad, sin).mul_((first > 0) | (second > 0))


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

    feature_map = Reweighted
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

    def factors(self, x: Tensor, where: Where) -> Tensor:
        """cos and sin of each position's angle, counted from 1: products of features give cos of the difference."""
        position = torch.arange(1, x.shape[2] + 1, device=x.device, dtype=x.dtype).expand(1, -1)
        if where.start is not None:
            position = position + where.start.unsqueeze(1)
        length = self.reweighting_length if where.length is None else where.length.clamp(min=1).unsqueeze(1)
        angle = (position / length).clamp(max=1.0)[:, None, :, None] * (math.pi / 2)
        return torch.stack([angle.cos(), angle.sin()], dim=-2)  # [B or 1, 1, N, 2, 1]

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        i, j = (torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype) for x in (query, key))
        length = self.reweighting_length if self.pattern.is_causal else max(len(i), len(j))
        distance = i.clamp(max=length)[:, None] - j.clamp(max=length)
        return self.normalised(query.relu() @ key.relu().mT * (distance * math.pi / 2 / length).cos()) @ value
