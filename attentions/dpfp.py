"""DPFP and fast weights (Schlag et al. 2021): products of rectified features, and the delta rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import torch
from torch import Tensor

from attentions.bases.linearized import LinearizedAttention, PositionInfo, mask_fill
from attentions.bases.options import check_at_least
from attentions.bases.recurrent import xavier_linear
from attentions.kernels.delta_rule import delta_rule
from attentions.kernels.linear_attention import kernel_of
from cab import DecodeState, Pattern, UnsupportedError, UserError, register_attention
from cab.attention import CommonArguments
from cab.padding import lengths


@register_attention("dpfp", patterns="NS CS NC CC", complexity="n", paper="Schlag et al. 2021")
class DPFPAttention(LinearizedAttention):
    """Compute features x~ * roll(x~, i) for i = 1 .. nu, with x~ = [relu(x), relu(-x)] (fast weights, Eq. 37).

    With the sum: phi(q) (phi(k)^T v) / phi(q) . sum phi(k). With the delta rule, which needs an order and so CS:
    W_t = W_{t-1} + b_t phi(k_t) (x) (v_t - phi(k_t) W_{t-1}), o_t = phi(q_t) W_t (Eq. 24), b = sigmoid(x W_b), where
    phi is divided by its sum + 1e-6 and nothing else is normalized.

    Args:
        nu: products of each feature.
        update: delta or sum; when not given delta, the method, in CS, and sum elsewhere.
    """

    feature_map = kernel_of("identity")

    def __init__(self, *, nu: int = 1, update: str | None = None, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.update = update or ("delta" if self.pattern is Pattern.CS else "sum")
        check_at_least(1, nu=nu)
        if self.update not in ("delta", "sum"):
            raise UserError(f"update must be delta or sum, got '{update}'")
        if self.update == "delta" and self.pattern is not Pattern.CS:
            raise UnsupportedError(f"update=delta requires pattern CS, got {self.pattern}; use update=sum")
        self.nu = nu
        if self.update == "delta":
            self.strength_proj = xavier_linear(self.embed_dim, self.num_heads, bias=False)

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {"strength": self.strength_proj(key)} if self.update == "delta" else {}

    def products(self, x: Tensor) -> Tensor:
        """Compute phi(x) [..., 2 E nu]."""
        both = torch.cat([x.relu(), (-x).relu()], dim=-1)
        return torch.cat([both * both.roll(i, dims=-1) for i in range(1, self.nu + 1)], dim=-1)

    def reduce_source(self, key: Tensor, value: Tensor, padding: Tensor | None, where: PositionInfo) -> DecodeState:
        return super().reduce_source(self.products(key), value, padding, where)

    def read(self, query: Tensor, summary: DecodeState, where: PositionInfo) -> Tensor:
        return super().read(self.products(query), summary, where)

    def features(self, x: Tensor, _where: PositionInfo) -> Tensor:
        features = self.products(x)
        return features / (features.sum(dim=-1, keepdim=True) + 1e-6) if self.update == "delta" else features

    def decode_chunk(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        state: DecodeState,
        extras: Mapping[str, Tensor],
    ) -> tuple[Tensor, DecodeState]:
        if self.update == "sum":
            return super().decode_chunk(query, key, value, padding, state, extras)
        queries, keys = (self.features(x, PositionInfo()) for x in (query, key))
        memory = state.get("sums")
        if memory is None:
            memory = query.new_zeros(*query.shape[:2], keys.shape[-1], value.shape[-1])
        strength = extras["strength"].sigmoid().transpose(1, 2)
        output, memory = delta_rule(queries, mask_fill(keys, padding), value, strength, None, memory)
        count = lengths(query, padding)
        return output, {"sums": memory, "length": state["length"] + count if "length" in state else count}

    def reference(self, query: Tensor, key: Tensor, value: Tensor, strength: Tensor | None = None) -> Tensor:
        queries, keys = self.features(query, PositionInfo()), self.features(key, PositionInfo())
        if strength is None:
            return self.normalize(queries @ keys.mT) @ value
        memory, outputs = value.new_zeros(len(keys), keys.shape[-1], value.shape[-1]), []
        for t in range(keys.shape[1]):
            now = keys[:, t, None]
            missing = value[:, t, None] - now @ memory
            memory = memory + strength[t].sigmoid()[:, None, None] * now.mT @ missing
            outputs.append(queries[:, t, None] @ memory)
        return torch.cat(outputs, dim=1)
