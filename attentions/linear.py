"""Linear attention (Katharopoulos et al. 2020), cosFormer (Qin et al. 2022) and Based (Arora et al. 2024)."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.bases.linearized import LinearizedAttention, PositionInfo
from attentions.bases.recurrent import xavier_linear
from attentions.kernels.linear_attention import KERNELS, LEAK, Kernel, Reweighted, Taylor
from cab import register_attention
from cab.attention import CommonArguments
from cab.registry.options import Positive


@register_attention("linear", patterns="NS CS NC CC", complexity="n", paper="Katharopoulos et al. 2020")
class LinearAttention(LinearizedAttention):
    """Compute phi(q) (phi(k)^T v) / (phi(q) . sum phi(k)) with phi = elu + 1 (Eq. 5 and 7), without 1/sqrt(E).

    Args:
        kernel: phi: elu1, the published one; relu, leaky_relu (slope 0.01) or identity, with which cosFormer's
            ablation asks whether weights may be negative. Where they may, so may their sum, which is then kept 1e-6
            from zero on its own side; gradients can be huge.
    """

    def __init__(self, *, kernel: Kernel = "elu1", **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.kernel = kernel
        self.feature_map = KERNELS[kernel]
        if not self.feature_map.is_positive:
            self.smallest_denominator = 1e-6

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.normalize(readable_kernel(self.kernel, query) @ readable_kernel(self.kernel, key).mT) @ value


def readable_kernel(name: str, x: Tensor) -> Tensor:
    """Return phi by its name, for readable forms."""
    above = torch.where(x > 0, x, 0.0)
    return {"elu1": F.elu(x) + 1.0, "relu": above, "leaky_relu": above + LEAK * (x - above), "identity": x}[name]


@register_attention("cosformer", patterns="NS CS NC CC", complexity="n", paper="Qin et al. 2022")
class CosformerAttention(LinearizedAttention):
    """Compute normalized weights relu(q_i) . relu(k_j) cos(pi/2 (i - j) / L) (CAB, Eq. 16 and 17).

    NS and NC are the paper's: L is the longer of the two sequences, of the row itself and not of the padded
    batch. In CS and CC that length is not known when a target is computed (which is why the paper's causal
    form looks ahead), so L is fixed: position t has the angle pi/2 min(t / L, 1). Up to ``reweighting_length``
    tokens this is the paper's formula with that L; beyond it late positions are not distinguished, weights
    stay non-negative, and nothing ever depends on the future.

    Args:
        reweighting_length: L of the causal patterns; not used by NS and NC.
        kernel: relu, the published one, or another of `linear`. Where weights may be negative, their sum is kept
            1e-6 from zero on its own side.
    """

    smallest_denominator = 1e-6
    autocast_dtypes = (torch.bfloat16,)  # gradients of small denominators overflow float16 (CAB, Table 3)

    def __init__(
        self,
        *,
        reweighting_length: Positive = 8192,
        kernel: Kernel = "relu",
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.reweighting_length = reweighting_length
        self.kernel = kernel
        self.feature_map = Reweighted(KERNELS[kernel])

    def factors(self, x: Tensor, where: PositionInfo) -> Tensor:
        """Return cos and sin of each angle, counted from 1: products of features give cos of the difference."""
        position = torch.arange(1, x.shape[2] + 1, device=x.device, dtype=x.dtype).expand(1, -1)
        if where.start is not None:
            position = position + where.start.unsqueeze(1)
        length = self.reweighting_length if where.length is None else where.length.clamp(min=1).unsqueeze(1)
        angle = (position / length).clamp(max=1.0)[:, None, :, None] * (math.pi / 2)
        return torch.stack([angle.cos(), angle.sin()], dim=-2)  # [B or 1, 1, N, 2, 1]

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = readable_kernel(self.kernel, query) @ readable_kernel(self.kernel, key).mT
        i, j = (torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype) for x in (query, key))
        length = self.reweighting_length if self.pattern.is_causal else max(len(i), len(j))
        distance = i.clamp(max=length)[:, None] - j.clamp(max=length)
        return self.normalize(weights * (distance * math.pi / 2 / length).cos()) @ value


@register_attention("based", patterns="NS CS NC CC", complexity="n", paper="Arora et al. 2024")
class BasedAttention(LinearizedAttention):
    """Compute normalized weights 1 + s + s^2 / 2, at least 1/2, with s = q . k / sqrt(d) (Based, section 4.1).

    q and k are narrow, d features of a head, of which 1 + d + d (d + 1) / 2 products are formed. The other half of
    the published network, softmax attention in small windows in some layers, is `local`.

    Args:
        feature_dim: d.
    """

    feature_map = Taylor()

    def __init__(self, *, feature_dim: Positive = 16, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.feature_dim = feature_dim
        self.q_proj = xavier_linear(self.embed_dim, self.num_heads * feature_dim, gain=2**-0.5)
        self.k_proj = xavier_linear(self.embed_dim, self.num_heads * feature_dim, gain=2**-0.5)
        self.make_convolutions()

    def prepare(self, x: Tensor) -> Tensor:
        return x * self.feature_dim**-0.25

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        products = query @ key.mT / self.feature_dim**0.5
        return self.normalize(1 + products + products.square() / 2) @ value
