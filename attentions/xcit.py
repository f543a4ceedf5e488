"""XCiT's cross-covariance attention (Ali et al. 2021): channels attend to channels.

Shapes: B batch, H heads, N tokens, E width of a head.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.linearized import mask_fill
from attentions.kernels.numerics import upcast
from cab import Attention, PaddingMasks, ParamGroupOverride, register_attention
from cab.attention import CommonArguments
from cab.claims import Claims


@register_attention("xcit", patterns="NS", complexity="n", paper="Ali et al. 2021")
class CrossCovarianceAttention(Attention):
    """Compute v_n softmax(t q^T k)^T with unit vectors over positions as channels of q and k (Eq. 2).

    An E x E matrix of weights, of channels and not of tokens: tokens meet in its entries alone. The temperature t is
    learned per head, starts at 1 and has no weight decay. The image convolutions around it in the paper belong to the
    network. Cross patterns would need as many keys as targets, in the same places.
    """

    claims = Claims(max_self_contribution=0.96)  # until it is trained, the matrix is near uniform

    def __init__(self, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.temperature = nn.Parameter(torch.ones(self.num_heads, 1, 1))

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        return {"temperature": ParamGroupOverride(weight_decay=0.0)}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            q, k = (F.normalize(mask_fill(upcast(x), padding.key), dim=2) for x in (query, key))
            weights = (q.mT @ k * self.temperature).softmax(dim=-1)
            return (upcast(value) @ F.dropout(weights, self.weight_dropout).mT).to(query.dtype)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key = (x / x.norm(dim=1, keepdim=True).clamp(min=1e-12) for x in (query, key))
        weights = (torch.einsum("hnc,hnd->hcd", query, key) * self.temperature).softmax(dim=-1)
        return torch.einsum("hcd,hnd->hnc", weights, value)
