"""Softmax attention of tiles of queries over listed keys, gathered once for all queries of a tile.

The hand-written backward pass recomputes the weights and accumulates gradients of gathered keys in place, where
autograd would allocate a tensor of the whole sequence per tile (results/efficiency/kernel_gains.csv).

Shapes: B rows, H heads, N queries, M keys, E width of a head, Q queries and K keys of a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attentions.kernels.chunks import dropout_factor, dropout_seed
from attentions.kernels.numerics import accumulation_dtype, neg_inf, softmax_gradient, upcast


class Tile(NamedTuple):
    """Queries that are in no other tile, and the keys that they see."""

    queries: slice | Tensor
    """A slice of the sequence, or [Q]."""
    keys: slice | Tensor
    """A slice of the sequence, [K], or [H, K] where heads see different ones."""
    hidden: Tensor | None = None
    """True = hidden, [Q or 1, K] or [H, Q or 1, K]."""


def tiled_attention(
    query: Tensor, key: Tensor, value: Tensor, tiles: Sequence[Tile], *, dropout: float = 0.0
) -> Tensor:
    """Return softmax(q K^T / sqrt(E)) V of each tile, [B, H, N, E]; zero for queries without a key or a tile."""
    dtype = query.dtype
    return _Tiled.apply(query, key.to(dtype), value.to(dtype), tiles, dropout, dropout_seed(dropout))


def _take(x: Tensor, where: slice | Tensor) -> Tensor:
    """Return the listed tokens of ``x`` [B, H, N, E]."""
    if isinstance(where, slice):
        return x[:, :, where]
    if where.dim() == 1:
        return x.index_select(2, where)
    return x.gather(2, where[:, :, None].expand(len(x), -1, -1, x.shape[3]))


def _add(total: Tensor, where: slice | Tensor, part: Tensor) -> None:
    """Add ``part`` to the listed tokens of ``total``."""
    if isinstance(where, slice):
        total[:, :, where] += part
    elif where.dim() == 1:
        total.index_add_(2, where, part.to(total.dtype))
    else:
        total.scatter_add_(2, where[:, :, None].expand_as(part), part.to(total.dtype))


def _weights(query: Tensor, key: Tensor, hidden: Tensor | None) -> Tensor:
    """Return the weights [B, H, Q, K] in float32 or wider, zero where hidden."""
    logits = upcast(query * query.shape[-1] ** -0.5) @ upcast(key).mT
    if hidden is None:
        return logits.softmax(dim=-1)
    weights = logits.masked_fill_(hidden, neg_inf(logits.dtype)).softmax(dim=-1)
    return weights.masked_fill_(hidden.all(dim=-1, keepdim=True), 0.0)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        tiles: Sequence[Tile],
        dropout: float,
        seed: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, seed)
        ctx.tiles, ctx.dropout = tiles, dropout
        output = torch.zeros_like(query)
        with torch.autocast(query.device.type, enabled=False):
            for number, tile in enumerate(tiles):
                weights = _weights(_take(query, tile.queries), _take(key, tile.keys), tile.hidden)
                factor = dropout_factor(weights, dropout, seed, number)
                weights = weights if factor is None else weights * factor
                output[:, :, tile.queries] = weights.to(value.dtype) @ _take(value, tile.keys)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, seed = ctx.saved_tensors
        d_query = torch.zeros_like(query)
        d_key, d_value = (torch.zeros_like(x, dtype=accumulation_dtype(x.dtype)) for x in (key, value))
        with torch.autocast(query.device.type, enabled=False):
            for number, tile in enumerate(ctx.tiles):
                q, k, v, g = (
                    _take(x, where)
                    for x, where in ((query, tile.queries), (key, tile.keys), (value, tile.keys), (grad, tile.queries))
                )
                weights = _weights(q, k, tile.hidden)
                d_weights = upcast(g @ v.mT)
                factor = dropout_factor(weights, ctx.dropout, seed, number)
                used = weights
                if factor is not None:
                    used, d_weights = weights * factor, d_weights * factor
                d_logits = softmax_gradient(weights, d_weights).mul_(q.shape[-1] ** -0.5).to(q.dtype)
                d_query[:, :, tile.queries] = d_logits @ k
                _add(d_key, tile.keys, d_logits.mT @ q)
                _add(d_value, tile.keys, used.to(g.dtype).mT @ g)
        return d_query, d_key.to(key.dtype), d_value.to(value.dtype), None, None, None
