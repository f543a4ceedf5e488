"""Softmax attention with relative positions over listed keys per segment, and over all keys.

The logits by distance are one product of queries and embeddings of distances, skewed to line up with the keys. A few
heads are processed at a time, and activations are recomputed in the backward pass.

Shapes: B batch, H heads, h heads of a chunk, N queries, E width of a head, J segments of L queries.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.chunks import chunk_size, in_chunks
from attentions.kernels.numerics import attention_weights, recompute_upcast
from attentions.kernels.over_blocks import by_key


def _in_blocks(x: Tensor, size: int, count: int) -> Tensor:
    """Split [..., N, E] into [..., J, L, E], with zeros after the last query."""
    return F.pad(x, (0, 0, 0, size * count - x.shape[-2])).unflatten(-2, (count, size))


def segment_attention(
    query: Tensor,
    source: tuple[Tensor, Tensor],
    table: Tensor,
    size: int,
    embeddings: Tensor,
    biases: Tensor,
    *,
    dropout: float = 0.0,
) -> Tensor:
    """Return softmax((q_i k_j + q_i p_(i-j)) / sqrt(E) + s_(i-j)) v_j of segments over listed keys, [B, H, N, E].

    Keys are listed in the order of the queries, and the last L columns of a segment are its own tokens. The distance
    between a query and a key is counted in columns.

    Args:
        query: [B, H, N, E].
        source: keys and values, [B, H, S, E] each.
        table: indices of the keys of each segment, [J, K]; -1 for no key.
        size: L.
        embeddings, biases: p [H, K, E] and s [H, K] of the distances K - 1 to 0.
        dropout: probability of dropping a weight.
    """
    length, scale, (count, width) = query.shape[2], query.shape[3] ** -0.5, table.shape
    column, row = torch.arange(width, device=query.device), torch.arange(size, device=query.device)
    hidden = (table < 0)[:, None] | (column > width - size + row[:, None])
    listed = table.clamp(min=0).flatten()

    def attend(query: Tensor, key: Tensor, value: Tensor, embeddings: Tensor, biases: Tensor) -> Tensor:
        q = _in_blocks(query * scale, size, count)
        keys, values = (x.index_select(1, listed).unflatten(1, (count, width)) for x in (key, value))
        of_distance = by_key(q @ embeddings[:, None].mT + biases[:, None, None])
        logits = q @ keys.mT + of_distance[..., size - 1 :]
        return (attention_weights(logits, hidden, dropout) @ values).flatten(1, 2)[:, :length]

    cost = 3 * hidden.numel()
    return in_chunks(attend, (query, *source), (embeddings, biases), cost=cost, dropout=dropout)


def all_pairs_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embeddings: Tensor,
    biases: Tensor,
    *,
    hidden: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return softmax((q_i k_j + q_i p_(i-j)) / sqrt(E) + s_(i-j)) v_j over all keys, a few queries at a time.

    Args:
        query, key, value: [B, H, N, E].
        embeddings, biases: p [H, 2 N - 1, E] and s [H, 2 N - 1] of the distances N - 1 to 1 - N.
        hidden: bool [B, N], True = hidden key.
        dropout: probability of dropping a weight.
    """
    length, scale = query.shape[2], query.shape[3] ** -0.5
    masked = None if hidden is None else hidden[:, None, None]
    size, outputs = chunk_size(4 * query.shape[:2].numel() * length, query.device), []

    def attend(query: Tensor, key: Tensor, value: Tensor, embeddings: Tensor, biases: Tensor) -> Tensor:
        q, rows = query * scale, query.shape[2]
        of_distance = by_key(q @ embeddings.mT + biases[:, None])[..., rows - 1 : rows - 1 + length]
        return attention_weights(q @ key.mT + of_distance, masked, dropout) @ value

    with torch.autocast(query.device.type, enabled=False):
        for begin in range(0, length, size):
            tile = query[:, :, begin : begin + size]
            kept = slice(length - begin - tile.shape[2], 2 * length - 1 - begin)
            piece = (tile, key, value, embeddings[:, kept], biases[:, kept])
            outputs.append(recompute_upcast(attend, piece, dropout))
    return torch.cat(outputs, dim=2)
