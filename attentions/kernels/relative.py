"""Softmax attention over a window of keys whose logits depend on the distance too, and over slots; block by block.

The logits by distance are one product of queries and embeddings of distances, skewed to stand by key: no tensor of
N x N, nor one of the width of the embeddings for each pair. A few heads at a time, formed anew in the backward pass.

Shapes: B rows, H heads, h heads of a piece, N queries, E width of a head, W distances, S slots, J blocks of n queries.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.pieces import at_once, formed_anew, in_pieces, weighted
from attentions.kernels.precision import no_weight

BLOCK = 64
"""Queries of a block, or a quarter of the window where that is more."""


class Distances(NamedTuple):
    """What keys from ``left`` before a query to ``right`` after it add to their logits: q_i p / sqrt(E) + s.

    The first is that furthest left. A distance whose s is :func:`no_weight` is not seen.
    """

    left: int
    right: int
    embeddings: Tensor
    """p, [H, W, E] with W = left + right + 1."""
    biases: Tensor
    """s, [H, W]."""


class Slots(NamedTuple):
    """Keys and values beside the window, [B, H, S, E], and what is added to their logits, [H, S]."""

    key: Tensor
    value: Tensor
    biases: Tensor


def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    distances: Distances,
    *,
    first: Tensor | None = None,
    slots: Slots | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax((q_i k_j + q_i p_(i-j)) / sqrt(E) + s_(i-j)) v_j over the window and the slots: [B, H, N, E].

    Args:
        query, key, value: [B, H, N, E].
        distances: the window, and what its distances add.
        first: the first key of each query [N], where the window reaches further.
        slots: what every query sees, with logits q_i k / sqrt(E) + s.
        dropout: probability of dropping a weight.
    """
    length, scale = query.shape[2], query.shape[3] ** -0.5
    left, right = min(distances.left, length - 1), min(distances.right, length - 1)
    kept = slice(distances.left - left, distances.left + right + 1)
    size = min(max(BLOCK, (left + right) // 4), length)
    count = -(-length // size)
    hidden = _hidden(length, size, count, left, right, first, query.device)
    heads, per_head = [query, key, value], [distances.embeddings[:, kept], distances.biases[:, kept]]
    if slots is not None:
        heads += [slots.key, slots.value]
        per_head.append(slots.biases)
        hidden = F.pad(hidden, (0, slots.key.shape[2]))

    def attend(query: Tensor, key: Tensor, value: Tensor, *rest: Tensor) -> Tensor:
        *slot_heads, embeddings, biases = rest[: len(heads) - 1]
        q = _in_blocks(query * scale, size, count)
        keys, values = (_windows(x, size, count, left, right) for x in (key, value))
        logits = q @ keys + _by_key(q @ embeddings[:, None].mT + biases[:, None, None])
        if slot_heads:
            of_slots = q @ slot_heads[0][:, None].mT + rest[-1][:, None, None]
            logits = torch.cat([logits, of_slots], dim=-1)
        weights = weighted(logits, hidden, dropout)
        output = weights[..., : values.shape[-1]] @ values.mT
        if slot_heads:
            output = output + weights[..., values.shape[-1] :] @ slot_heads[1][:, None]
        return output.flatten(1, 2)[:, :length]

    return in_pieces(attend, heads, per_head, cost=3 * count * size * hidden.shape[-1], dropout=dropout)


def _in_blocks(x: Tensor, size: int, count: int) -> Tensor:
    """[..., N, E] to [..., J, n, E], with zeros (False) after the last."""
    return F.pad(x, (0, 0, 0, size * count - x.shape[-2])).unflatten(-2, (count, size))


def _windows(x: Tensor, size: int, count: int, left: int, right: int) -> Tensor:
    """The keys that a block sees, [h, N, E] to a view [h, J, E, n + left + right]."""
    filled = F.pad(x, (0, 0, left, right + size * count - x.shape[1]))
    return filled.unfold(1, size + left + right, size)


def _by_key(logits: Tensor) -> Tensor:
    """[..., n, W] by distance to [..., n, n + W - 1] by key; what is at no distance is hidden."""
    size, num_distances = logits.shape[-2:]
    filled = F.pad(logits, (0, size), value=no_weight(logits.dtype)).flatten(-2)
    return filled[..., : size * (size + num_distances - 1)].unflatten(-1, (size, -1))


def _hidden(
    length: int, size: int, count: int, left: int, right: int, first: Tensor | None, device: torch.device
) -> Tensor:
    """What a query of a block does not see of the keys around it, [J, n, n + left + right]."""
    query = torch.arange(size * count, device=device).view(count, size, 1)
    key = query[:, :1] - left + torch.arange(size + left + right, device=device)
    hidden = (key < 0) | (key >= length) | (key < query - left) | (key > query + right)
    if first is None:
        return hidden
    return hidden | (key < _in_blocks(first[:, None], size, count))


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
    """The same in segments of L queries, over keys that are listed for each, in one order with the queries.

    The last L columns of a segment are its own tokens; a column's distance from a query is counted in columns.

    Args:
        query: [B, H, N, E].
        source: keys and values, [B, H, S, E] each.
        table: their numbers, [J, K]; -1 where there is none.
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
        by_key = _by_key(q @ embeddings[:, None].mT + biases[:, None, None])
        logits = q @ keys.mT + by_key[..., size - 1 :]
        return (weighted(logits, hidden, dropout) @ values).flatten(1, 2)[:, :length]

    cost = 3 * hidden.numel()
    return in_pieces(attend, (query, *source), (embeddings, biases), cost=cost, dropout=dropout)


def all_pairs_attention(
    query: Tensor, key: Tensor, value: Tensor, embeddings: Tensor, biases: Tensor, *, dropout: float = 0.0
) -> Tensor:
    """The same over all keys, [B, H, N, E] each; p [H, 2 N - 1, E] and s [H, 2 N - 1] of the distances N - 1 to 1 - N.

    Some queries at a time.
    """
    length, scale = query.shape[2], query.shape[3] ** -0.5
    size, outputs = at_once(4 * query.shape[:2].numel() * length, query.device), []

    def attend(query: Tensor, key: Tensor, value: Tensor, embeddings: Tensor, biases: Tensor) -> Tensor:
        q, rows = query * scale, query.shape[2]
        by_key = _by_key(q @ embeddings.mT + biases[:, None])[..., rows - 1 : rows - 1 + length]
        return weighted(q @ key.mT + by_key, None, dropout) @ value

    with torch.autocast(query.device.type, enabled=False):
        for begin in range(0, length, size):
            tile = query[:, :, begin : begin + size]
            kept = slice(length - begin - tile.shape[2], 2 * length - 1 - begin)
            piece = (tile, key, value, embeddings[:, kept], biases[:, kept])
            outputs.append(formed_anew(attend, piece, dropout))
    return torch.cat(outputs, dim=2)
