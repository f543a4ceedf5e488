"""Sigmoid attention (Ramapuram et al. 2024): each weight is a sigmoid of its own, without a sum over keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attentions.bases.pairwise import PairwiseAttention
from cab import Pattern, register_attention


@register_attention("sigmoid", patterns="NS CS NC CC", complexity="n^2", paper="Ramapuram et al. 2024")
class SigmoidAttention(PairwiseAttention):
    """Compute sum_j sigmoid(q_i k_j / sqrt(E) + b) v_j with b = -ln n of the n keys visible to target i (Eq. 3).

    In CS n is the number of keys so far, not the length of the sequence, on which no output may depend. The weights
    do not sum to one, and no option makes it softmax attention.
    """

    def weigh(self, query: Tensor, key: Tensor, masked: Tensor | None, count: Tensor) -> Tensor:
        bias = -count.clamp(min=1).to(query.dtype).log()
        weights = (query @ key.mT * self.scale + bias).sigmoid()
        return weights if masked is None else weights.masked_fill(masked, 0.0)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        outputs = []
        for i in range(query.shape[1]):
            seen = i + 1 if self.pattern is Pattern.CS else key.shape[1]
            weights = torch.sigmoid(query[:, i : i + 1] @ key[:, :seen].mT * self.scale - math.log(seen))
            outputs.append(weights @ value[:, :seen])
        return torch.cat(outputs, dim=1)
