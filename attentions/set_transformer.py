"""Set Transformer (Lee et al. 2019): targets read a few learnt points that have read all keys.

Shapes: B batch, H heads, N targets, M keys, D width, E width of a head, m inducing points.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.latents import pack, without_source
from cab import Attention, Pattern, register_attention
from cab.attention import DecodeState, PaddingMasks
from cab.errors import UserError


@register_attention("set_transformer", patterns="NS NC CC", complexity="n", paper="Lee et al. 2019")
class SetTransformerAttention(Attention):
    """ISAB: Att(X, Att(I, Y)) with m learnt inducing points I  (their Eq. 9 and 10), both softmax attentions.

    The points read the source: P = softmax(I k^T / sqrt(E)) v. What they found passes two maps of its own to keys and
    values, which the targets read. The residual, norm and feed-forward layer around the outer attention are the
    backbone's. Of those of the inner one, ``feedforward`` adds what the released class has without layer norm:
    S = I + P, S + relu(W S). PMA, which pools a set to k outputs, is no attention of N targets.

    Causal self attention is not defined: every point reads all tokens. The state of CC is the points' keys and values.
    There are no weights over tokens to drop, so ``dropout`` is not used (as released). The released code scales by
    1/sqrt(D); here it is 1/sqrt(E), as in the paper's multi-head attention.

    Args:
        num_inducing: points m.
        feedforward: whether the points keep themselves and pass a layer of their own.

    Raises:
        ValueError: for ``num_inducing`` below 1.
    """

    has_constant_size_state = True
    parameter_budget = 0.12  # two maps of the points, as published; 0.18 with their feed-forward layer

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        num_inducing: int = 32,
        feedforward: bool = False,
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        if num_inducing < 1:
            raise UserError(f"num_inducing must be at least 1, got {num_inducing}")
        self.inducing = nn.Parameter(torch.empty(num_heads, num_inducing, self.head_dim))
        nn.init.normal_(
            self.inducing
        )  # as released, some hundredths, every point would begin as the mean of all tokens
        self.slot_k, self.slot_v = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        self.slot_layer = nn.Linear(embed_dim, embed_dim) if feedforward else None
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
        """Keys and values of the points, [B, H, m, E]; the values are zero in a row whose keys are all padding."""
        slots = pack(self.inducing, key, value, padding.key)
        if self.slot_layer is not None:
            slots = slots + self.inducing
        slots = self.merge_heads(slots)
        if self.slot_layer is not None:
            slots = slots + self.slot_layer(slots).relu()
        keys, values = self.split_heads(self.slot_k(slots)), self.split_heads(self.slot_v(slots))
        return {"keys": keys, "values": without_source(values, padding.key)}

    def decode_cross(self, query: Tensor, state: DecodeState, _padding: PaddingMasks) -> tuple[Tensor, DecodeState]:
        return F.scaled_dot_product_attention(query, state["keys"], state["values"]), state
