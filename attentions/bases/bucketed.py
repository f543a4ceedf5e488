"""What attentions share whose tokens see a part of their own bucket, and of no other.

Shapes: B batch, H heads, R rounds, N tokens, T new tokens, E width of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.buckets import BucketWindow, bucket_attention, positions_in_buckets, shared_rounds
from attentions.kernels.numerics import mask_value
from attentions.kernels.token_cache import append_tokens, empty_cache
from cab import Attention
from cab.attention import Decoded, DecodeState, PaddingMasks

QUERIES_AT_ONCE = 256
"""Tokens that are read at once in decoding."""


class BucketedAttention(Attention):
    """Compute softmax(q_i k_j / sqrt(E)) v_j over the keys within ``bucket_window`` of the token in one of its buckets.

    A subclass says in which buckets a token is (``assign``), from its query alone. A token sees itself where its window
    leaves it out and there is no other. Decoding keeps keys, values and buckets of all tokens.
    """

    requires_right_padding = True
    selects_tokens = True
    bucket_window: BucketWindow
    num_buckets: int

    assign: Callable[..., Tensor]
    """Buckets of queries [B, H, N, E] (and draws), [R, B, H, N]; no gradient flows through them."""

    def exactly(self, projection: nn.Linear, x: Tensor) -> Tensor:
        """Project to heads in float32 also under autocast, since rounding would change buckets."""
        with torch.autocast(x.device.type, enabled=False):
            return self.split_heads(projection(x.to(projection.weight.dtype)))

    def compute(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        """Compute with keys that are functions of the queries, see :meth:`project`."""
        draws = self.sample_noise(query, key, padding)
        q, k, v = self.project(query, key, value)
        return self.out_proj(self.merge_heads(self.attend(q, k, v, padding, **draws)))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, **draws: Tensor) -> Tensor:
        buckets = self.assign(query, **draws)
        if padding.key is not None:
            buckets = buckets.masked_fill(padding.key.unsqueeze(1), self.num_buckets)
        output = bucket_attention(query, key, value, buckets, self.bucket_window, dropout=self.weight_dropout)
        if self.bucket_window.itself:
            return output
        return torch.where(self.is_alone(buckets).unsqueeze(-1), value, output)

    def is_alone(self, buckets: Tensor) -> Tensor:
        """Return the mask of tokens without any other visible token, [B, H, N]."""
        positions = positions_in_buckets(buckets)
        alone = positions == 0 if self.bucket_window.left else torch.ones_like(positions, dtype=torch.bool)
        if self.bucket_window.right:
            alone = alone & (positions_in_buckets(buckets.flip(-1)).flip(-1) == 0)
        return alone.all(dim=0)

    def reference(self, query: Tensor, key: Tensor, value: Tensor, **draws: Tensor) -> Tensor:
        buckets = self.assign(query[None], **{name: x[None] for name, x in draws.items()})[:, 0]
        same = buckets.unsqueeze(-1) == buckets.unsqueeze(-2)  # [R, H, n, n]
        earlier = same.cumsum(dim=-1).diagonal(dim1=-2, dim2=-1)  # how many of the bucket, up to the token
        seen = (same & self.bucket_window.is_visible(earlier.unsqueeze(-1) - earlier.unsqueeze(-2))).any(dim=0)
        itself = torch.eye(len(seen[0]), dtype=torch.bool, device=seen.device)
        return self.weigh(query @ key.mT * self.scale, seen, itself) @ value

    def weigh(self, logits: Tensor, seen: Tensor, itself: Tensor) -> Tensor:
        """Compute the softmax over visible keys; a token without any attends to itself."""
        weights = logits.masked_fill(~seen, mask_value(logits.dtype)).softmax(dim=-1)
        return torch.where(seen.any(dim=-1, keepdim=True), weights, itself.to(weights.dtype))

    # --- decoding ---------------------------------------------------------------------------------------

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return empty keys, values and buckets."""
        shape = (self.num_heads, self.head_dim)
        state = empty_cache(batch_size, like, key=shape, value=shape)
        buckets = self.assign(like.new_zeros(batch_size, self.num_heads, 0, self.head_dim))
        return {**state, "bucket": buckets.movedim(0, 3)}

    def decode(self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        bucket = self.assign(query).movedim(0, 3)
        state = append_tokens(state, padding.key, key=key, value=value, bucket=bucket)
        hidden, count = state["hidden"][:, None], query.shape[2]
        buckets = state["bucket"].movedim(3, 0).masked_fill(hidden, self.num_buckets)
        positions, start = positions_in_buckets(buckets), hidden.shape[2] - count
        outputs = []
        for begin in range(0, count, QUERIES_AT_ONCE):
            piece = slice(start + begin, min(start + begin + QUERIES_AT_ONCE, hidden.shape[2]))
            seen = (
                shared_rounds(buckets[..., piece], positions[..., piece], (buckets, positions), self.bucket_window) > 0
            )
            itself = torch.arange(hidden.shape[2], device=query.device)
            logits = query[:, :, begin : begin + QUERIES_AT_ONCE] @ state["key"].mT * self.scale
            weights = self.weigh(logits, seen, itself[piece, None] == itself)
            outputs.append(F.dropout(weights, self.weight_dropout) @ state["value"])
        return torch.cat(outputs, dim=2), state
