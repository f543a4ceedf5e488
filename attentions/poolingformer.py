"""Poolingformer (Zhang et al. 2021): a window of tokens, and a wider one of pooled tokens.

Shapes: B batch, H heads, N tokens, E width of a head, S pooled tokens.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.chunks import by_length
from attentions.kernels.numerics import mask_value
from attentions.kernels.over_blocks import Block, tiled_attention
from attentions.kernels.window_attention import Window, window_attention
from cab import Attention, PaddingMasks, UserError, register_attention
from cab.attention import CommonArguments
from cab.claims import NUM_TOKENS, Claims, softmax_if

BLOCK = 128
"""Queries that share the pooled tokens around them."""

WIDTH, STRIDE = 5, 4
"""Tokens in the mean of a pooled token, and from one pooled token to the next."""


@register_attention("poolingformer", patterns="NS", complexity="n", paper="Zhang et al. 2021")
class PoolingformerAttention(Attention):
    """Compute y_i + z_i: softmax attention to tokens up to ``window`` away, and to pooled ones up to ``pooled_window``.

    Pooled token s is a mean of the 5 tokens around token 4 s, of keys and of values, with weights softmax(W x) from the
    token in the middle (the paper's LDConv, W a head's own). The paper's second level has
    projections of its own, of the first level's output; in one slot both levels share theirs, the layer's inputs'.

    Args:
        window, pooled_window: tokens on each side; with a ``pooled_window`` of 0 there is the first level alone.
    """

    claims = Claims(softmax_limit=softmax_if(window=NUM_TOKENS, pooled_window=0))
    requires_right_padding = True
    selects_tokens = True

    def __init__(
        self,
        *,
        window: int = 128,
        pooled_window: int = 512,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        if 0 < pooled_window < STRIDE:
            raise UserError(f"pooled_window must be 0 or at least {STRIDE}, got {pooled_window}")
        self.window, self.pooled_window = window, pooled_window
        if pooled_window:
            self.kernels = nn.Parameter(torch.empty(2, self.num_heads, self.head_dim, WIDTH))
            for kernel in self.kernels.flatten(0, 1):
                nn.init.xavier_uniform_(kernel)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        n = query.shape[1]
        position = torch.arange(n, device=query.device)
        far = (position[:, None] - position).abs()
        logits = (query @ key.mT * self.scale).masked_fill(far > self.window, -torch.inf)
        output = logits.softmax(dim=-1) @ value
        if not self.pooled_window:
            return output
        centers = range(0, n, STRIDE)
        pooled = []
        for which, x in enumerate((key, value)):
            tokens = []
            for center in centers:
                around = torch.arange(center - WIDTH // 2, center + WIDTH // 2 + 1)
                inside = (around >= 0) & (around < n)
                weights = torch.einsum("he,hew->hw", x[:, center], self.kernels[which])
                weights = weights[:, inside].softmax(dim=-1)
                tokens.append(torch.einsum("hw,hwe->he", weights, x[:, around[inside]]))
            pooled.append(torch.stack(tokens, dim=1))
        logits = (query @ pooled[0].mT * self.scale).masked_fill(far[:, ::STRIDE] > self.pooled_window, -torch.inf)
        return output + logits.softmax(dim=-1) @ pooled[1]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        return by_length(self.attend_visible, (query, key, value), padding.key, masks=True)

    def attend_visible(self, query: Tensor, key: Tensor, value: Tensor, *, hidden: Tensor | None = None) -> Tensor:
        window, dropout = Window(self.window, self.window), self.weight_dropout
        output = window_attention(query, key, value, window, key_padding_mask=hidden, dropout=dropout)
        if not self.pooled_window:
            return output
        keys, values = self.pool(key, 0, hidden), self.pool(value, 1, hidden)
        tiles, centers = self.tiles(query.shape[2], keys.shape[2], query.device), None
        if hidden is not None:
            centers = hidden[:, ::STRIDE]
        return output + tiled_attention(query, keys, values, tiles, key_padding_mask=centers, dropout=dropout)

    def pool(self, x: Tensor, which: int, hidden: Tensor | None) -> Tensor:
        """Return the pooled tokens [B, H, S, E] of keys (0) or values (1) [B, H, N, E]."""
        length, side = x.shape[2], WIDTH // 2
        center = torch.arange(0, length, STRIDE, device=x.device)
        around = center[:, None] + torch.arange(-side, side + 1, device=x.device)
        outside = (around < 0) | (around >= length)
        if hidden is not None:
            outside = (outside | hidden[:, around.clamp(0, length - 1)]).unsqueeze(1)
        logits = x[:, :, ::STRIDE] @ self.kernels[which].to(x.dtype)
        weights = logits.masked_fill(outside, mask_value(logits.dtype)).softmax(dim=-1).to(x.dtype)
        filled = F.pad(x, (0, 0, side, side + STRIDE))
        taps = (filled[:, :, i : i + length : STRIDE] * weights[..., i, None] for i in range(WIDTH))
        return torch.stack(list(taps)).sum(dim=0)

    def tiles(self, length: int, num_pooled: int, device: torch.device) -> list[Block]:
        """Return blocks of queries and the pooled tokens around them."""
        tiles = []
        for begin in range(0, length, BLOCK):
            end = min(begin + BLOCK, length)
            start = max(0, -((self.pooled_window - begin) // STRIDE))
            stop = min(num_pooled, (end - 1 + self.pooled_window) // STRIDE + 1)
            query = torch.arange(begin, end, device=device)[:, None]
            pooled = torch.arange(start, stop, device=device) * STRIDE
            tiles.append(Block(slice(begin, end), slice(start, stop), (query - pooled).abs() > self.pooled_window))
        return tiles
