"""Softmax attention of tiles of queries over listed keys, gathered once for all queries of a tile.

Shapes: B batch, H heads, N queries, M keys, E width of a head, Q queries and K keys of a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attentions.kernels.numerics import neg_inf
from attentions.kernels.over_blocks import Biases, BlockLogits, Tokens, over_blocks


class Tile(NamedTuple):
    """Queries that are in no other tile, and the keys that they see."""

    queries: Tokens
    keys: Tokens
    hidden: Tensor | None = None
    """True = hidden, [Q or 1, K] or [H, Q or 1, K]."""
    slots: slice = slice(0)


def tiled_attention(
    query: Tensor, key: Tensor, value: Tensor, tiles: Sequence[Tile], *, dropout: float = 0.0
) -> Tensor:
    """Return softmax(q K^T / sqrt(E)) V of each tile, [B, H, N, E]; zero for queries without a key or a tile."""

    def mask(tile: Tile, logits: Tensor) -> None:
        if tile.hidden is not None:
            hidden = torch.zeros_like(tile.hidden, dtype=logits.dtype).masked_fill_(tile.hidden, neg_inf(logits.dtype))
            logits.unflatten(0, query.shape[:2]).add_(hidden)

    logits = BlockLogits(lambda: tiles, lambda *_: Biases(), mask, dropout)
    output = over_blocks(logits, query, key, value)
    empty = torch.zeros(1, query.shape[1], query.shape[2], 1, dtype=torch.bool, device=query.device)
    for tile in tiles:
        if tile.hidden is not None:
            empty[:, :, tile.queries] = tile.hidden.all(dim=-1, keepdim=True)
    return output.masked_fill(empty, 0.0)
