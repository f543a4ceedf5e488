"""Set Transformer (Lee et al. 2019): targets attend to a few inducing points that have attended to all keys.

Shapes: B batch, H heads, N targets, M keys, D width, E head dimension, m inducing points.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.options import check_at_least
from attentions.kernels.key_summaries import latent_attention, zero_empty_sources
from cab import Attention, DecodeState, PaddingMasks, register_attention
from cab.attention import CommonArguments


@register_attention("set_transformer", patterns="NS NC CC", complexity="n", paper="Lee et al. 2019")
class SetTransformerAttention(Attention):
    """Compute induced set attention: softmax attention of the targets X over H = MAB(I, Y) (Eq. 9 and 10).

    The m learned inducing points I attend to the source: P = softmax(I k^T / sqrt(E)) v. As in the released class,
    the inner block then computes S = I + P and H = S + relu(W S), and two linear maps of H give the keys and values
    of the targets. The residual connection, normalization, and feed-forward layer of the outer block belong to the
    backbone. The points are stored after their query map, whose product with them is one matrix.

    The inner layer normalization is left out, as in the released defaults (``ln=False``). Logits are divided by
    sqrt(E), as in the multi-head attention that the paper refers to; the released code divides them by sqrt(D).
    ``dropout`` is ignored, as in the released code. Pooling by attention (PMA) returns m outputs instead of N and is
    not provided.

    Causal self attention is undefined, because every point attends to all tokens. The decode state of CC consists of
    the keys and values of the points.

    Args:
        num_inducing: number of inducing points m.
        feedforward: whether the inner block has its residual connection and feed-forward layer.
    """

    has_constant_size_state = True
    parameter_budget = 0.18  # two maps of the points and their feed-forward layer, as published

    def __init__(self, *, num_inducing: int = 32, feedforward: bool = True, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        check_at_least(1, num_inducing=num_inducing)
        self.inducing = nn.Parameter(torch.empty(self.num_heads, num_inducing, self.head_dim))
        nn.init.normal_(self.inducing)  # the released 0.02 makes all points start as the mean of all tokens
        self.slot_k, self.slot_v = nn.Linear(self.embed_dim, self.embed_dim), nn.Linear(self.embed_dim, self.embed_dim)
        self.slot_layer = nn.Linear(self.embed_dim, self.embed_dim) if feedforward else None
        for linear in (self.slot_k, self.slot_v):
            nn.init.xavier_uniform_(linear.weight, gain=2**-0.5)
            nn.init.zeros_(linear.bias)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        return self.decode_cross(query, self.encode_source(key, value, padding), padding)[0]

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        slots = (self.inducing @ key.mT * self.scale).softmax(dim=-1) @ value
        slots = slots.transpose(0, 1).flatten(1)  # [m, D]
        if self.slot_layer is not None:
            slots = slots + self.inducing.transpose(0, 1).flatten(1)
            slots = slots + self.slot_layer(slots).relu()
        keys, values = (
            linear(slots).unflatten(1, (self.num_heads, -1)).transpose(0, 1) for linear in (self.slot_k, self.slot_v)
        )
        return (query @ keys.mT * self.scale).softmax(dim=-1) @ values

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks) -> DecodeState:
        """Return keys and values of the points, [B, H, m, E]; values are zero in a row whose keys are all padding."""
        slots = latent_attention(self.inducing, key, value, padding.key)
        if self.slot_layer is not None:
            slots = slots + self.inducing
        slots = self.merge_heads(slots)
        if self.slot_layer is not None:
            slots = slots + self.slot_layer(slots).relu()
        keys, values = self.split_heads(self.slot_k(slots)), self.split_heads(self.slot_v(slots))
        return {"keys": keys, "values": zero_empty_sources(values, padding.key)}

    def decode_cross(self, query: Tensor, state: DecodeState, _padding: PaddingMasks) -> tuple[Tensor, DecodeState]:
        return F.scaled_dot_product_attention(query, state["keys"], state["values"]), state
