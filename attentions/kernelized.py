"""Kernelized attention (Chen et al. 2021): the Gaussian kernel in the place of softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from attentions.bases.pairwise import PairwiseAttention
from attentions.kernels.gaussian import gaussian
from cab import Pattern, register_attention


@register_attention("kernelized", patterns="NS CS NC CC", complexity="n^2", paper="Chen et al. 2021")
class KernelizedAttention(PairwiseAttention):
    """Compute sum_j exp(-|q_i - k_j|^2 / (2 sqrt(E))) v_j without normalization (Skyformer, Eq. 3).

    What Skyformer approximates. Outputs grow with the number of keys that are near the query.
    """

    def weigh(self, query: Tensor, key: Tensor, masked: Tensor | None, _count: Tensor) -> Tensor:
        return gaussian(query, key, masked)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        distances = (query.unsqueeze(2) - key.unsqueeze(1)).square().sum(dim=-1)
        weights = torch.exp(-0.5 * distances * self.scale)
        if self.pattern is Pattern.CS:
            weights = weights.tril()
        return weights @ value
