"""Efficient attention (Shen et al. 2021): a softmax over the features of a query, one over the positions of keys.

Shapes: B batch, H heads, N targets, M keys, E width of a head.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from attentions.kernels.common.precision import neg_inf, upcast
from attentions.kernels.recurrences.cumulative_softmax_mean import read_cumulative_means
from cab import Attention, DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments


@register_attention("efficient", patterns="NS CS NC CC", complexity="n", paper="Shen et al. 2021")
class EfficientAttention(Attention):
    """Compute softmax over features of q, times (softmax over positions of k)^T v (Eq. 6), without 1/sqrt(E).

    A feature of the keys is a slot that holds the mean of all values, weighted by e^k. In pattern CS, which the paper
    does not have, the mean runs along: that of target t is over the positions up to t. The state is of constant size:
    E means a head and, in CS, the logarithms of their total weights. There are no weights over tokens to drop, so
    ``dropout`` is not used (as released).
    """

    has_constant_size_state = True

    def __init__(self, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.requires_right_padding = self.pattern is Pattern.CS  # so that a row begins with a token

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        if self.pattern is Pattern.CS:
            return self.decode(query, key, value, self.init_decode_state(len(query), query), padding)[0]
        return self.decode_cross(query, self.encode_source(key, value, padding), padding)[0]

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        read = query.softmax(dim=-1)
        if self.pattern is not Pattern.CS:
            return read @ (key.softmax(dim=1).mT @ value)
        outputs = []
        for t in range(1, query.shape[1] + 1):
            outputs.append(read[:, t - 1 : t] @ (key[:, :t].softmax(dim=1).mT @ value[:, :t]))
        return torch.cat(outputs, dim=1)

    # --- means over all keys: NS, NC, CC -----------------------------------------------------------------

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks) -> DecodeState:
        """Compute the mean of each feature, [B, H, E, E]; zero for a sequence whose keys are all padding."""
        with torch.autocast(key.device.type, enabled=False):
            logits, values = _shown(key, value, padding.key)
            return {"mean": logits.softmax(dim=2).mT @ values}

    def decode_cross(self, query: Tensor, state: DecodeState, _padding: PaddingMasks) -> tuple[Tensor, DecodeState]:
        with torch.autocast(query.device.type, enabled=False):
            return (upcast(query).softmax(dim=-1) @ state["mean"]).to(query.dtype), state

    # --- means that run along: CS ------------------------------------------------------------------------

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return the logarithms of masses [B, H, E] and the means [B, H, E, E] of no keys."""
        shape = (batch_size, self.num_heads, self.head_dim)
        mass = like.new_full(shape, neg_inf(), dtype=torch.float64)
        return {"mass": mass, "mean": upcast(like.new_zeros(*shape, self.head_dim))}

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks
    ) -> tuple[Tensor, DecodeState]:
        with torch.autocast(query.device.type, enabled=False):
            logits, values = _shown(key, value, padding.key)
            read = upcast(query).softmax(dim=-1)
            output, mass, mean = read_cumulative_means(
                read, logits, values, state["mass"], state["mean"].to(values.dtype)
            )
        return output.to(query.dtype), {"mass": mass, "mean": mean}


def _shown(key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mask padding, with a key of weight zero and value zero, in float32 or wider."""
    key, value = upcast(key), upcast(value)
    if padding is None:
        return key, value
    hidden = padding[:, None, :, None]
    return key.masked_fill(hidden, neg_inf(key.dtype)), value.masked_fill(hidden, 0.0)
