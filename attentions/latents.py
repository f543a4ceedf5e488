"""Luna (Ma et al. 2021) and Set Transformer (Lee et al. 2019): targets attend to slots that attended to all keys.

Shapes: B batch, H heads, N targets, M keys, D width, E head dimension, r landmarks, m inducing points.
"""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.linearized import mask_fill
from attentions.kernels.key_summaries import latent_attention, zero_empty_sources
from attentions.kernels.numerics import upcast
from attentions.kernels.recurrence import recurrence
from cab import Attention, DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import Claims
from cab.padding import lengths
from cab.registry.options import Positive


@register_attention("luna", patterns="NS CS NC CC", complexity="n", paper="Ma et al. 2021")
class LunaAttention(Attention):
    """Compute pack and unpack attention, Att(X, Att(P, C)), with learned landmarks P (Eq. 5 and 6).

    NS, NC, CC: the landmarks pack the context, softmax(P k^T / sqrt(E)) v. A linear map of the packed context gives
    the keys and values of the targets. CS is a different function (section 3.3) without a softmax over positions: with
    p_j = log2(1 + 2^(P k'_j / sqrt(E))) and a_t = softmax over landmarks of 1/t sum_(j <= t) (q_t k_j / sqrt(E)) p_j,
    output t is 1/t sum_(j <= t) (a_t p_j) v_j.

    The published network has a second stream: each layer normalizes its packed context and passes it to the next
    layer as P. A single attention layer has no second stream, so each module owns its P and never updates it. In the
    first layer of a network this is the published layer; in the layers above it is not.

    The decode state has constant size: the packed context (CC), or two sums over tokens and their number (CS).
    ``dropout`` is ignored; the released code drops weights of packing and of unpacking.

    Args:
        num_landmarks: number of landmarks r (published: 16 to 256).
    """

    has_constant_size_state = True

    def __init__(self, *, num_landmarks: Positive = 32, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.requires_right_padding = self.pattern is Pattern.CS  # counts tokens
        self.v_proj = self.k_proj
        self.slots = nn.Parameter(torch.empty(num_landmarks, self.embed_dim))
        nn.init.normal_(self.slots)  # as released: 1/sqrt(D), scaled by sqrt(D) like an embedding
        self.slots_q = self.make_map()
        if self.pattern is Pattern.CS:
            self.pack_k = self.make_map()  # of tokens, for the packing
        else:
            self.slots_k = self.make_map()
            self.slots_v = self.slots_k

    def make_map(self) -> nn.Linear:
        """Return a map from D to D, initialized as released."""
        linear = nn.Linear(self.embed_dim, self.embed_dim)
        nn.init.xavier_uniform_(linear.weight, gain=2**-0.5)
        return linear

    def queries_of_slots(self) -> Tensor:
        """Return the queries of the landmarks, [H, r, E]."""
        return self.split_heads(self.slots_q(self.slots).unsqueeze(0))[0]

    def reference(self, query: Tensor, key: Tensor, value: Tensor, packing: Tensor | None = None) -> Tensor:
        if packing is None:
            slots = (self.queries_of_slots() @ key.mT * self.scale).softmax(dim=-1) @ value
            slots = slots.transpose(0, 1).flatten(1)  # [r, D]
            keys, values = (
                linear(slots).unflatten(1, (self.num_heads, -1)).transpose(0, 1)
                for linear in (self.slots_k, self.slots_v)
            )
            return (query @ keys.mT * self.scale).softmax(dim=-1) @ values
        count = torch.arange(1, query.shape[1] + 1, device=query.device).unsqueeze(1)
        weights = (query @ key.mT * self.scale).tril() @ packing / count
        return (weights.softmax(dim=-1) @ packing.mT).tril() @ value / count

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks) -> DecodeState:
        """Return keys and values of the landmarks, [B, H, r, E]; values are zero if all keys of the row are padding."""
        slots = self.merge_heads(latent_attention(self.queries_of_slots(), key, value, padding.key))
        keys, values = self.split_heads(self.slots_k(slots)), self.split_heads(self.slots_v(slots))
        return {"keys": keys, "values": zero_empty_sources(values, padding.key)}

    def decode_cross(self, query: Tensor, state: DecodeState, _padding: PaddingMasks) -> Decoded:
        return F.scaled_dot_product_attention(query, state["keys"], state["values"]), state

    def key_side_inputs(self, x: Tensor) -> dict[str, Tensor]:
        """Return the packing weights p of each token, [B, H, N, r]."""
        if self.pattern is not Pattern.CS:
            return {}
        logits = self.split_heads(self.pack_k(x)) @ self.queries_of_slots().mT * self.scale
        return {"packing": F.softplus(upcast(logits), beta=math.log(2.0))}

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return packed sums of keys [B, H, E, r] and values [B, H, r, E], and the number of tokens [B]."""
        shape = batch_size, self.num_heads, len(self.slots), self.head_dim
        sums = upcast(like.new_zeros(shape))
        return {"keys": sums.mT, "values": sums, "length": sums.new_zeros(batch_size, dtype=torch.long)}

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks, packing: Tensor
    ) -> Decoded:
        with torch.autocast(query.device.type, enabled=False):
            q, k, v = upcast(query) * self.scale, upcast(key), upcast(value)
            packing = mask_fill(packing, padding.key)
            position = torch.arange(1, query.shape[2] + 1, device=query.device)
            count = (state["length"].unsqueeze(1) + position)[:, None, :, None].to(q.dtype)
            logits, keys = recurrence(q, k, packing, None, state["keys"].to(q.dtype))
            weights = (logits / count).softmax(dim=-1)
            sums, values = recurrence(weights, packing, v, None, state["values"].to(q.dtype))
            new = {"keys": keys, "values": values, "length": state["length"] + lengths(query, padding.key)}
            return (sums / count).to(query.dtype), new


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
    claims = Claims(parameter_budget=0.18)  # two maps of the points and their feed-forward layer, as published

    def __init__(
        self, *, num_inducing: Positive = 32, feedforward: bool = True, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(**common)
        self.inducing = nn.Parameter(torch.empty(self.num_heads, num_inducing, self.head_dim))
        nn.init.normal_(self.inducing)  # the released 0.02 makes all points start as the mean of all tokens
        self.slot_k, self.slot_v = nn.Linear(self.embed_dim, self.embed_dim), nn.Linear(self.embed_dim, self.embed_dim)
        self.slot_layer = nn.Linear(self.embed_dim, self.embed_dim) if feedforward else None
        for linear in (self.slot_k, self.slot_v):
            nn.init.xavier_uniform_(linear.weight, gain=2**-0.5)
            nn.init.zeros_(linear.bias)

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

    def decode_cross(self, query: Tensor, state: DecodeState, _padding: PaddingMasks) -> Decoded:
        return F.scaled_dot_product_attention(query, state["keys"], state["values"]), state
