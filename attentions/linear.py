"""Linear attention (Katharopoulos et al. 2020), and what other features make of it."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.bases.linearized import LinearizedAttention
from attentions.kernels.linear_attention import LEAK, kernel_of
from cab import register_attention
from cab.attention import CommonArguments


@register_attention("linear", patterns="NS CS NC CC", complexity="n", paper="Katharopoulos et al. 2020")
class LinearAttention(LinearizedAttention):
    """Compute phi(q) (phi(k)^T v) / (phi(q) . sum phi(k)) with phi = elu + 1 (Eq. 5 and 7), without 1/sqrt(E).

    Args:
        kernel: phi: elu1, the published one; relu, leaky_relu (slope 0.01) or identity, with which cosFormer's
            ablation asks whether weights may be negative. Where they may, so may their sum, which is then kept 1e-6
            from zero on its own side; gradients can be huge.
    """

    def __init__(self, *, kernel: str = "elu1", **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.kernel = kernel
        self.feature_map = kernel_of(kernel)
        if not self.feature_map.is_positive:
            self.smallest_denominator = 1e-6

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.normalize(readable_kernel(self.kernel, query) @ readable_kernel(self.kernel, key).mT) @ value


def readable_kernel(name: str, x: Tensor) -> Tensor:
    """Return phi by its name, for readable forms."""
    above = torch.where(x > 0, x, 0.0)
    return {"elu1": F.elu(x) + 1.0, "relu": above, "leaky_relu": above + LEAK * (x - above), "identity": x}[name]
