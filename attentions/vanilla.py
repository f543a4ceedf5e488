"""Softmax attention (Vaswani et al. 2017), through torch's fused kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.precision import no_weight
from cab import Attention, Pattern, register_attention
from cab.attention import Padding, SoftmaxLimit, State

RECENT = 64
"""Decoded tokens that are kept apart from the long cache, so that a step does not copy the whole of it."""


@register_attention("vanilla", patterns="NS CS NC CC", complexity="n^2", paper="Vaswani et al. 2017")
class VanillaAttention(Attention):
    """softmax(q k^T / sqrt(E)) v  (CAB, Eq. 1).

    A target that sees no key gets zero. Decoding keeps every key and value: 2 D numbers a token.

    Args:
        qkv_bias: whether the query, key and value projections have biases (PoinTr's have none).
    """

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        # With the padding on the right, the causal order alone hides it from every real target.
        self.compacts_padding = self.pattern is Pattern.CS
        if not qkv_bias:
            for projection in (self.q_proj, self.k_proj, self.v_proj):
                projection.register_parameter("bias", None)

    @classmethod
    def softmax_limit(cls, _pattern: Pattern, _num_tokens: int) -> SoftmaxLimit:
        """Softmax attention itself."""
        return SoftmaxLimit(({},))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Padding) -> Tensor:
        if self.pattern is Pattern.CS:
            return self.softmax_attention(query, key, value, is_causal=True)
        return self.softmax_attention(query, key, value, visible=_visible(padding.key))

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        logits = self.logits(query, key)
        if self.pattern is Pattern.CS:
            logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
        return logits.softmax(dim=-1) @ value

    def logits(self, query: Tensor, key: Tensor) -> Tensor:
        """[..., N, E] and [..., M, E] to [..., N, M]."""
        return query @ key.mT * self.scale

    def softmax_attention(
        self, query: Tensor, key: Tensor, value: Tensor, *, visible: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Weighted means of ``value`` [B, H, N, E]; ``visible`` is bool [B, 1, 1 or N, M], zero where it has none."""
        if visible is None:
            return self.kernel(query, key, value, None, is_causal)
        sees_none = ~visible.any(dim=-1, keepdim=True)
        return self.kernel(query, key, value, visible | sees_none, False).masked_fill(sees_none, 0.0)

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, is_causal: bool) -> Tensor:
        """Softmax attention in which every target sees at least one key."""
        return F.scaled_dot_product_attention(query, key, value, visible, self.weight_dropout, is_causal)

    # --- decoding ---------------------------------------------------------------------------------------

    def start(self, batch_size: int, like: Tensor) -> State:
        """No keys yet, neither in the long cache nor among the recent ones."""
        empty = like.new_empty(batch_size, self.num_heads, 0, self.head_dim)
        state = dict.fromkeys(("key", "value", "recent_key", "recent_value"), empty)
        return {**state, "key_padding": empty.new_zeros(batch_size, 0, dtype=torch.bool)}

    def read_source(self, key: Tensor, value: Tensor, padding: Padding) -> State:
        """Keys and values of the source."""
        state = {"key": key, "value": value}
        return state if padding.key is None else {**state, "key_padding": padding.key}

    def decode_cross(self, query: Tensor, state: State, _padding: Padding) -> tuple[Tensor, State]:
        visible = _visible(state.get("key_padding"))
        return self.softmax_attention(query, state["key"], state["value"], visible=visible), state

    def decode(self, query: Tensor, key: Tensor, value: Tensor, state: State, padding: Padding) -> tuple[Tensor, State]:
        state = _appended(state, key, value, padding.key)
        return self._attend_to_cache(query, state), state

    def _attend_to_cache(self, query: Tensor, state: State) -> Tensor:
        """Attention of the last T tokens, which the state already holds: query [B, H, T, E]."""
        key, recent_key, padding = state["key"], state["recent_key"], state["key_padding"]
        length, past = query.shape[2], padding.shape[1] - query.shape[2]
        if past == 0 and recent_key.shape[2] == 0:
            return self.softmax_attention(query, key, state["value"], is_causal=True)
        visible = ~padding[:, None, None] & padding.new_ones(length, past + length).tril(past)
        if recent_key.shape[2] == 0:
            return self.softmax_attention(query, key, state["value"], visible=visible)
        # A few targets and two blocks of keys: one row of weights a target, without joining the blocks.
        logits = torch.cat([self.logits(query, key), self.logits(query, recent_key)], dim=-1)
        logits = logits.masked_fill(~visible, no_weight(logits.dtype))
        weights = F.dropout(logits.softmax(dim=-1), self.dropout, self.training)
        long, recent = weights.split([key.shape[2], recent_key.shape[2]], dim=-1)
        return long @ state["value"] + recent @ state["recent_value"]


def _visible(hidden: Tensor | None) -> Tensor | None:
    return None if hidden is None else ~hidden[:, None, None]


def _appended(state: State, key: Tensor, value: Tensor, padding: Tensor | None) -> State:
    """The state with keys and values [B, H, T, E] at its end."""
    if padding is None:
        padding = key.new_zeros(key.shape[0], key.shape[2], dtype=torch.bool)
    new = {"key_padding": torch.cat([state["key_padding"], padding], dim=1)}
    is_full = state["recent_key"].shape[2] + key.shape[2] > RECENT
    for name, x in (("key", key), ("value", value)):
        long, recent = state[name], torch.cat([state[f"recent_{name}"].to(x.dtype), x], dim=2)
        if is_full:
            long, recent = torch.cat([long.to(recent.dtype), recent], dim=2), recent[:, :, :0]
        new |= {name: long, f"recent_{name}": recent}
    return new
