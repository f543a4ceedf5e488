"""Linformer (Wang et al. 2020): keys and values are mixed to a few slots by learned maps of positions.

Shapes: B batch, H heads, N targets, M keys, E width of a head, r slots.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.linearized import mask_fill
from attentions.kernels.numerics import upcast
from cab import Attention, DecodeState, PaddingMasks, UserError, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import Claims
from cab.registry.options import Positive


@register_attention("linformer", patterns="NS NC CC", complexity="n", paper="Wang et al. 2020")
class LinformerAttention(Attention):
    """Compute softmax(q (E k)^T / sqrt(E)) F v (Eq. 7) with learned maps of positions E and F, [r, max_length].

    A source of M tokens uses the first M columns, so that a shorter one has smaller slots, padded or alone. All heads
    share the maps. Causal self attention is not possible: every slot mixes all positions. The state of CC is the
    mixed keys and values of the source.

    Args:
        num_landmarks: slots r.
        max_length: keys up to which it is defined.

    Raises:
        ValueError: for sizes below 1, and, when called, for more keys than ``max_length``.
    """

    requires_right_padding = True
    has_constant_size_state = True
    claims = Claims(parameter_budget=0.21)  # two maps of 8,192 positions to 128 slots a layer

    def __init__(
        self,
        *,
        num_landmarks: Positive = 128,
        max_length: Positive = 8192,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.max_length = max_length
        self.mix_k = self.make_map(num_landmarks)
        self.mix_v = self.make_map(num_landmarks)

    def make_map(self, num_landmarks: int) -> nn.Parameter:
        """Create a map initialized in a range that does not depend on max_length, which may exceed the lengths read."""
        bound = num_landmarks**-0.5
        return nn.Parameter(torch.empty(num_landmarks, self.max_length).uniform_(-bound, bound))

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        m = key.shape[1]
        weights = (query @ (self.mix_k[:, :m] @ key).mT * self.scale).softmax(dim=-1)
        return weights @ (self.mix_v[:, :m] @ value)

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks) -> DecodeState:
        """Return mixed keys and values [B, H, r, E], zero for a sequence that is all padding."""
        length = key.shape[2]
        if length > self.max_length:
            raise UserError(
                f"linformer projects at most {self.max_length} keys, got {length}; increase attention.max_length"
            )
        return {"keys": self.mix(self.mix_k, key, padding), "values": self.mix(self.mix_v, value, padding)}

    def mix(self, weights: Tensor, x: Tensor, padding: PaddingMasks) -> Tensor:
        """Mix keys or values [B, H, M, E] to [B, H, r, E] by a batched product, as ``@`` would copy and keep them."""
        with torch.autocast(x.device.type, enabled=False):  # sums grow with the length, and so would their rounding
            tokens = self.merge_heads(mask_fill(upcast(x), padding.key))
            shared = upcast(weights[:, : x.shape[2]]).expand(len(x), -1, -1)
            return self.split_heads(torch.bmm(shared, tokens))

    def decode_cross(self, query: Tensor, state: DecodeState, _padding: PaddingMasks) -> Decoded:
        keys, values = state["keys"], state["values"]
        with torch.autocast(query.device.type, enabled=False):
            output = F.scaled_dot_product_attention(upcast(query), keys, values, dropout_p=self.weight_dropout)
        return output.to(query.dtype), state
