"""Softmax attention (Vaswani et al. 2017), through torch's fused kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cab import Attention, Pattern, register_attention
from cab.attention import SoftmaxLimit, State, compact_rows, take_rows, without_padding

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
    def softmax_limit(cls, pattern: Pattern, num_tokens: int) -> SoftmaxLimit:  # noqa: ARG003
        """Softmax attention itself."""
        return SoftmaxLimit(({},))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_padding_mask: Tensor | None,  # noqa: ARG002
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        if self.pattern is Pattern.CS:
            return self.softmax_attention(query, key, value, is_causal=True)
        visible = None if key_padding_mask is None else ~key_padding_mask[:, None, None]
        return self.softmax_attention(query, key, value, visible=visible)

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
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(query, key, value, visible, dropout, is_causal)

    def reference(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_padding_mask: Tensor | None,  # noqa: ARG002
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        """One target at a time: softmax over the keys it sees, and the weighted mean of their values."""
        output = torch.zeros_like(query)
        for row in range(query.shape[0]):
            for i in range(query.shape[2]):
                seen = torch.ones_like(key[row, 0, :, 0], dtype=torch.bool)
                if key_padding_mask is not None:
                    seen &= ~key_padding_mask[row]
                if self.pattern is Pattern.CS:
                    seen[i + 1 :] = False
                if seen.any():
                    logits = torch.einsum("he,hme->hm", query[row, :, i], key[row, :, seen]) * self.scale
                    weights = F.dropout(logits.softmax(dim=-1), self.dropout, self.training)
                    output[row, :, i] = torch.einsum("hm,hme->he", weights, value[row, :, seen])
        return output

    # --- decoding ---------------------------------------------------------------------------------------

    def init_state(
        self,
        batch_size: int,
        *,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """CS: no keys yet, long cache and recent ones. CC: keys and values of the source, projected once."""
        self._check_decoding(batch_size, key, value, key_padding_mask)
        if key is not None and value is not None:
            state = {
                "key": self.split_heads(self.k_proj(without_padding(key, key_padding_mask))),
                "value": self.split_heads(self.v_proj(without_padding(value, key_padding_mask))),
            }
            return state if key_padding_mask is None else state | {"key_padding": key_padding_mask}
        weight = self.k_proj.weight
        empty = torch.empty(
            batch_size, self.num_heads, 0, self.head_dim, device=device or weight.device, dtype=dtype or weight.dtype
        )
        return {
            "key": empty,
            "value": empty,
            "recent_key": empty,
            "recent_value": empty,
            "key_padding": empty.new_zeros(batch_size, 0, dtype=torch.bool),
        }

    def prefill(self, query: Tensor, state: State, *, query_padding_mask: Tensor | None = None) -> tuple[Tensor, State]:
        self._check_tokens(query, query_padding_mask)
        if self.pattern is Pattern.CC:
            mask = state.get("key_padding")
            query = self.split_heads(self.q_proj(without_padding(query, query_padding_mask)))
            visible = None if mask is None else ~mask[:, None, None]
            output = self.softmax_attention(query, state["key"], state["value"], visible=visible)
            return without_padding(self.out_proj(self.merge_heads(output)), query_padding_mask), state
        tokens, mask, order = compact_rows(without_padding(query, query_padding_mask), query_padding_mask)
        state = self._append(tokens, mask, state)
        query = self.split_heads(self.q_proj(tokens))
        output = self._attend_to_cache(query, state)
        output = without_padding(self.out_proj(self.merge_heads(output)), mask)
        return (output if order is None else take_rows(output, order.argsort(dim=1))), state

    def _append(self, tokens: Tensor, mask: Tensor | None, state: State) -> State:
        """The CS state with the keys and values of ``tokens`` [B, T, D] at its end."""
        new = {"key": self.split_heads(self.k_proj(tokens)), "value": self.split_heads(self.v_proj(tokens))}
        if mask is None:
            mask = tokens.new_zeros(tokens.shape[:2], dtype=torch.bool)
        state = state | {"key_padding": torch.cat([state["key_padding"], mask], dim=1)}
        is_full = state["recent_key"].shape[2] + tokens.shape[1] > RECENT
        for name in new:
            recent = torch.cat([state[f"recent_{name}"].to(new[name].dtype), new[name]], dim=2)
            if is_full:
                state[name] = torch.cat([state[name].to(recent.dtype), recent], dim=2)
                recent = recent[:, :, :0]
            state[f"recent_{name}"] = recent
        return state

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
        logits = torch.cat([query @ key.transpose(2, 3), query @ recent_key.transpose(2, 3)], dim=-1) * self.scale
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
        weights = F.dropout(logits.softmax(dim=-1), self.dropout, self.training)
        long, recent = weights.split([key.shape[2], recent_key.shape[2]], dim=-1)
        return long @ state["value"] + recent @ state["recent_value"]
