"""Stick-breaking attention (Tan et al. 2024): every earlier key, the nearest first, takes a share of what is left."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.bases.pairwise import PairwiseAttention
from cab import register_attention


@register_attention("stick_breaking", patterns="CS", complexity="n^2", paper="Tan et al. 2024")
class StickBreakingAttention(PairwiseAttention):
    """Compute sum_{j < i} s_ij prod_{j < l < i} (1 - s_il) v_j with s_ij = sigmoid(q_i k_j / sqrt(E)).

    arXiv:2410.17980. A token does not see itself. The weights sum to at most 1, and the first output is zero. The
    product implies an order, so the method needs no positions.
    """

    def weigh(self, query: Tensor, key: Tensor, masked: Tensor | None, count: Tensor) -> Tensor:
        logits = query @ key.mT * self.scale
        assert masked is not None  # the causal order, in its only pattern
        hidden = masked | ((~masked).cumsum(dim=-1) >= count)  # the last visible key is the token's own
        rest = F.logsigmoid(-logits).masked_fill(hidden, 0.0)  # logarithm of the part that a key leaves
        between = rest.flip(-1).cumsum(dim=-1).flip(-1) - rest  # of all keys from the next one on: j < l < i
        return (F.logsigmoid(logits) + between).exp().masked_fill(hidden, 0.0)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        outputs = []
        for i in range(query.shape[1]):
            output, stick = torch.zeros_like(value[:, i]), torch.ones_like(query[:, i, :1])
            for j in reversed(range(i)):
                share = stick * (self.scale * (query[:, i] * key[:, j]).sum(dim=-1, keepdim=True)).sigmoid()
                output, stick = output + share * value[:, j], stick - share
            outputs.append(output)
        return torch.stack(outputs, dim=1)
