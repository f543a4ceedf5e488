"""Random feature attention (Peng et al. 2021): sines and cosines of random projections, and a gate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.linearized import LinearizedAttention, PositionInfo
from attentions.bases.options import check_at_least, check_positive
from attentions.kernels.linear_attention import Trigonometric, unit
from cab import DecodeState, Pattern, UnsupportedError, register_attention
from cab.attention import CommonArguments

FIRST_GATE = 0.9
"""What a gate keeps before it has learned."""


@register_attention("rfa", patterns="NS CS NC CC", complexity="n", paper="Peng et al. 2021")
class RandomFeatureAttention(LinearizedAttention):
    """Compute phi(q) (phi(k)^T v) / phi(q) . sum phi(k), phi(x) = [sin W x', cos W x'] / sqrt(D) (RFA, Eq. 4 and 5).

    x' = x / |x|, and the rows of W are Gaussian with a learned standard deviation for each feature of a head, one at
    first: phi(q) . phi(k) estimates exp(-|q' - k'|^2 / 2), so weights are near those of softmax attention of unit
    vectors. They are drawn once and kept in the state_dict (the released code redraws in every training step).

    With the gate (Eq. 7, CS alone: it needs an order) g_t = sigmoid(w . x_t + b) for each head, sums are
    S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) (x) v_t.

    Args:
        num_features: D, pairs of features of each head.
        gate: whether CS forgets.
        denominator_floor: how near to zero, on either side, a denominator may come: estimates can be negative. The
            released code's causal form never goes below 1.0, with features times 0.1 in place of 1 / sqrt(D): that is
            a floor of 100 / D here.
    """

    feature_map = Trigonometric()
    weights: Tensor

    def __init__(
        self,
        *,
        num_features: int = 64,
        gate: bool = False,
        denominator_floor: float = 0.001,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        check_at_least(1, num_features=num_features)
        check_positive(denominator_floor=denominator_floor)
        if gate and self.pattern is not Pattern.CS:
            raise UnsupportedError(f"gate requires pattern CS, got {self.pattern}; set gate=false")
        self.smallest_denominator = denominator_floor
        self.deviation = nn.Parameter(torch.ones(self.num_heads, 1, self.head_dim))
        self.register_buffer("weights", torch.randn(self.num_heads, num_features, self.head_dim))
        if gate:
            self.gate_proj = nn.Linear(self.embed_dim, self.num_heads)
            nn.init.constant_(self.gate_proj.bias, math.log(FIRST_GATE / (1 - FIRST_GATE)))

    def angles(self, x: Tensor) -> Tensor:
        """Compute W x', [B, H, N, E] to [B, H, N, D]."""
        return unit(x) @ (self.weights * self.deviation).to(x.dtype).mT

    def reduce_source(self, key: Tensor, value: Tensor, padding: Tensor | None, where: PositionInfo) -> DecodeState:
        return super().reduce_source(self.angles(key), value, padding, where)

    def read(self, query: Tensor, summary: DecodeState, where: PositionInfo) -> Tensor:
        return super().read(self.angles(query), summary, where)

    def features(self, x: Tensor, where: PositionInfo) -> Tensor:
        return super().features(self.angles(x), where)

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {"gate": self.gate_proj(key)} if hasattr(self, "gate_proj") else {}

    def write_state(
        self, key: Tensor, padding: Tensor | None, where: PositionInfo, state: DecodeState, extras: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor | None, DecodeState]:
        keys, log_decay, new = super().write_state(key, padding, where, state, extras)
        if "gate" in extras:
            gate = extras["gate"].transpose(1, 2)
            log_decay = F.logsigmoid(gate)
            if padding is not None:
                log_decay = log_decay.masked_fill(padding[:, None], 0.0)
            keys = keys * (-gate).sigmoid().unsqueeze(-1)
        return keys, log_decay, new

    def reference(self, query: Tensor, key: Tensor, value: Tensor, gate: Tensor | None = None) -> Tensor:
        """Compute with weights mean cos(w . (q' - k')), which decay by the gates between key and query."""
        rows = self.weights * self.deviation
        query, key = (x / (x.square().sum(dim=-1, keepdim=True) + 1e-6).sqrt() for x in (query, key))
        angles = torch.einsum("hde,hnme->hnmd", rows, query.unsqueeze(2) - key.unsqueeze(1))
        weights = angles.cos().mean(dim=-1)
        if gate is not None:
            kept = gate.sigmoid().T  # [H, n]; the sum of log gates after j up to i
            sums = kept.log().cumsum(dim=1)
            weights = weights * (1 - kept).unsqueeze(1) * (sums.unsqueeze(2) - sums.unsqueeze(1)).tril().exp()
        return self.normalize(weights) @ value
