"""Softmax attention over keys at a few fixed distances from the query, as products of shifted views.

Neither gathered keys nor an N x N mask is formed. A few heads are processed at a time. The hand-written backward pass
recomputes the weights and accumulates gradients in place, where autograd would allocate a tensor per distance
(results/efficiency/kernel_gains.csv).

Shapes: B rows, H heads, h heads of a chunk, N tokens, E width of a head, P distances.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attentions.kernels.common.blocks import dropout_factor, dropout_seed, groups_at_once
from attentions.kernels.common.operator import differentiable_operator
from attentions.kernels.common.precision import accumulation_dtype, neg_inf
from attentions.kernels.common.softmax import softmax_gradient


def relative_offset_attention(
    query: Tensor, key: Tensor, value: Tensor, offsets: Sequence[int], *, dropout: float = 0.0
) -> Tensor:
    """Return the softmax over p of q_i k_(i + p) / sqrt(E), times v_(i + p), [B, H, N, E].

    Distances that lead outside the sequence are left out. ``offsets`` must contain 0, so that every token sees a key.
    """
    inside = [p for p in offsets if abs(p) < query.shape[2]]
    return _attend(query, key.to(query.dtype), value.to(query.dtype), inside, dropout, dropout_seed(dropout))


def _chunks(x: Tensor) -> Iterator[tuple[int, int, slice]]:
    """Yield the number, sequence and heads of each chunk."""
    size, number = groups_at_once(x.shape[2], x.device), 0
    for row in range(len(x)):
        for begin in range(0, x.shape[1], size):
            yield number, row, slice(begin, begin + size)
            number += 1


def _places(length: int, offset: int) -> tuple[slice, slice]:
    """Return the queries that have a key at this distance, and these keys."""
    return slice(max(0, -offset), length - max(0, offset)), slice(max(0, offset), length - max(0, -offset))


def _weights(query: Tensor, key: Tensor, offsets: list[int]) -> Tensor:
    """Return the weights [h, N, P] in float32 or wider."""
    num_heads, length, width = query.shape
    dtype = accumulation_dtype(query.dtype)
    logits = query.new_full((num_heads, length, len(offsets)), neg_inf(dtype), dtype=dtype)
    for column, offset in enumerate(offsets):
        i, j = _places(length, offset)
        logits[:, i, column] = (query[:, i] * key[:, j]).sum(dim=-1, dtype=dtype) * width**-0.5
    return logits.softmax(dim=-1)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offsets: list[int],
    dropout: float,
    seed: Tensor | None,
) -> Tensor:
    output, length = torch.empty_like(query), query.shape[2]
    with torch.autocast(query.device.type, enabled=False):
        for number, row, heads in _chunks(query):
            weights = _weights(query[row, heads], key[row, heads], offsets)
            factor = dropout_factor(weights, dropout, seed, number)
            weights = weights if factor is None else weights * factor
            mean = torch.zeros_like(query[row, heads], dtype=weights.dtype)
            for column, offset in enumerate(offsets):
                i, j = _places(length, offset)
                mean[:, i].addcmul_(weights[:, i, column, None], value[row, heads, j])
            output[row, heads] = mean.to(output.dtype)
    return output


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offsets: list[int],
    dropout: float,
    seed: Tensor | None,
) -> list[Tensor]:
    length, scale = query.shape[2], query.shape[3] ** -0.5
    gradients = [torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)]
    for number, row, heads in _chunks(query):
        q, k, v, g = (x[row, heads] for x in (query, key, value, grad))
        weights = _weights(q, k, offsets)
        d_weights = torch.zeros_like(weights)
        sums = [torch.zeros_like(q, dtype=weights.dtype) for _ in range(3)]
        factor = dropout_factor(weights, dropout, seed, number)
        used = weights if factor is None else weights * factor
        for column, offset in enumerate(offsets):
            i, j = _places(length, offset)
            d_weights[:, i, column] = (g[:, i] * v[:, j]).sum(dim=-1, dtype=weights.dtype)
            sums[2][:, j].addcmul_(used[:, i, column, None], g[:, i])
        d_weights = d_weights if factor is None else d_weights * factor
        d_logits = softmax_gradient(weights, d_weights).mul_(scale)
        for column, offset in enumerate(offsets):
            i, j = _places(length, offset)
            slope = d_logits[:, i, column, None]
            sums[0][:, i].addcmul_(slope, k[:, j])
            sums[1][:, j].addcmul_(slope, q[:, i])
        for gradient, total in zip(gradients, sums, strict=True):
            gradient[row, heads] = total.to(gradient.dtype)
    return gradients


_attend = differentiable_operator("relative_offset_attention", _forward, _backward, gradients=("query", "key", "value"))
