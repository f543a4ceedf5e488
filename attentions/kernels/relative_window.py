"""The kernel of LongShort's causal form: a sliding window with relative positions, and slots of finished chunks.

As in :mod:`attentions.kernels.windowed`, blocks of queries, weights formed anew in the backward pass, and two operators
opaque to ``torch.compile``; here a block lies in one chunk, so that its queries see the same slots. By hand it takes
0.57 of the time and 0.31 of the memory of plain autograd at 4,096 tokens (results/efficiency/kernel_gains.csv).

Shapes: B rows, H heads, G rows times heads, N queries, M keys, E width of a head, S slots, W distances in the window.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.blocks import BlockSum, dropout_factor, dropout_seed, of_block
from attentions.kernels.operator import differentiable_operator
from attentions.kernels.precision import no_weight, wide_dtype
from attentions.kernels.softmax import softmax_gradient

BLOCK, BLOCK_ELSEWHERE = 64, 256
"""Queries of one block, at most: on a CPU in one chunk, elsewhere, where launches cost more, of several."""


class Chunks(NamedTuple):
    """Where things stand: query i is in chunk i // size, at the place of key i + ``offset``.

    ``slots`` of the S slots were finished before query 0; each chunk adds ``rank`` of them.
    """

    window: int
    size: int
    rank: int
    offset: int = 0
    slots: int = 0


class _Block(NamedTuple):
    number: int
    queries: slice
    keys: slice
    first_column: int
    """Of the columns that the window's distances unfold to, the one of the first key."""
    slots: int
    mask: Tensor | None
    """[queries, keys], zero or hidden; None where the distances alone decide."""
    slot_mask: Tensor | None
    """[queries, slots], zero or hidden; None where all queries are in one chunk."""
    slot_columns: Tensor | None
    """[queries, slots], where among the slots' distances each stands; None as well."""


def causal_longshort(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    chunks: Chunks,
    *,
    slot_key: Tensor,
    slot_value: Tensor,
    key_position: Tensor,
    slot_position: Tensor,
    content_bias: Tensor,
    position_bias: Tensor,
    key_padding_mask: Tensor | None = None,
    slot_padding_mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Softmax over the window's keys and the earlier chunks' slots, times their values: [B, H, N, E].

    Key j has the logit (q_i + u) k_j + (q_i + w) p_(i-j) when it is among the last ``window`` ones or in the
    chunk of query i, and no later than i; slot s the logit q_i (k_s + p'_d), d counting slots back from the last
    finished one.

    Args:
        query: [B, H, N, E], scaled.
        key, value: [B, H, M, E].
        slot_key, slot_value: [B, H, S, E], oldest first.
        key_position, slot_position: p [H, W, E], W = max(window, size), and p' [H, S, E], furthest first.
        content_bias, position_bias: u and w, [H, E].
        key_padding_mask, slot_padding_mask: bool [B, M] and [B, S], True = hidden.
        dropout: probability of dropping a weight.
    """
    dtype, batch = query.dtype, len(query)
    rows = [x.to(dtype) for x in (query, key, value)]
    slots = [x.to(dtype).flatten(0, 1) for x in (slot_key, slot_value)]
    shared = [x.to(dtype).repeat(batch, *[1] * (x.dim() - 1)) for x in (key_position, slot_position)]
    biases = [x.to(dtype).unsqueeze(1).repeat(batch, 1, 1) for x in (content_bias, position_bias)]
    masks = [None if x is None else x.to(dtype) * no_weight(dtype) for x in (key_padding_mask, slot_padding_mask)]
    seed = dropout_seed(dropout)
    return _attend(*rows, *slots, *shared, *biases, *masks, list(chunks), dropout, seed)


def _extents(query: Tensor, size: int) -> tuple[int, int]:
    """Queries of one block at most, and of the stretch in which each lies: on a CPU a chunk, elsewhere all queries."""
    return (BLOCK, size) if query.device.type == "cpu" else (BLOCK_ELSEWHERE, query.shape[2])


def _blocks(query: Tensor, num_distances: int, num_slots: int, chunks: Chunks) -> Iterator[_Block]:
    window, size, rank, offset, slots = chunks
    length, (most, stretch) = query.shape[2], _extents(query, size)
    begins = (i for start in range(0, length, stretch) for i in range(start, min(start + stretch, length), most))
    for number, begin in enumerate(begins):
        end = min(begin + most, begin // stretch * stretch + stretch, length)
        first_chunk, last_chunk = begin // size, (end - 1) // size
        low = max(0, min(begin + offset - window + 1, first_chunk * size + offset))
        seen = slots + last_chunk * rank
        i = torch.arange(begin, end, device=query.device).unsqueeze(1)
        mask = slot_mask = slot_columns = None
        if size > window:
            j = torch.arange(low - offset, end, device=query.device)
            mask = _hidden((i - j >= window) & (j < i // size * size), query.dtype)
        if first_chunk < last_chunk:
            finished, slot = slots + i // size * rank, torch.arange(seen, device=query.device)
            slot_mask, slot_columns = _hidden(slot >= finished, query.dtype), (slot - finished) % num_slots
        first_column = low - (begin + offset - num_distances + 1)
        places = slice(begin, end), slice(low, end + offset)
        yield _Block(number, *places, first_column, seen, mask, slot_mask, slot_columns)


def _hidden(where: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(where, dtype=dtype).masked_fill_(where, no_weight(dtype))


def _by_key(logits: Tensor) -> Tensor:
    """[G, n, W] by distance, W - 1 to 0, to [G, n, n + W - 1] by key; hidden where there is no such distance."""
    n, num_distances = logits.shape[1:]
    padded = F.pad(logits, (0, n), value=no_weight(logits.dtype)).flatten(1)
    return padded[:, : n * (n + num_distances - 1)].unflatten(1, (n, -1))


def _by_distance(logits: Tensor, block: _Block, num_distances: int) -> Tensor:
    """The way back of :func:`_by_key`, from the columns of the block's keys."""
    num_groups, n, width = logits.shape
    padded = logits.new_zeros(num_groups, n * (n + num_distances))
    by_key = padded[:, : n * (n + num_distances - 1)].unflatten(1, (n, -1))
    by_key[..., block.first_column : block.first_column + width] = logits
    return padded.unflatten(1, (n, -1))[..., :num_distances]


class _Parts(NamedTuple):
    """What a block's logits are made of."""

    content_query: Tensor
    position_query: Tensor
    query: Tensor
    key: Tensor
    key_position: Tensor
    slot_key: Tensor
    slot_position: Tensor


def _parts(
    block: _Block, query: Tensor, key: Tensor, slot_key: Tensor, positions: tuple[Tensor, Tensor], biases: list[Tensor]
) -> _Parts:
    q, (key_position, slot_position) = of_block(query, block.queries), positions
    slots = slot_key[:, : block.slots]
    if block.slot_columns is None:
        slots = slots + slot_position[:, slot_position.shape[1] - block.slots :]
    return _Parts(q + biases[0], q + biases[1], q, of_block(key, block.keys), key_position, slots, slot_position)


def _weights(parts: _Parts, block: _Block, key_mask: Tensor | None, slot_mask: Tensor | None) -> Tensor:
    """Softmax over [keys of the block | slots before it]."""
    num_groups, n, _ = parts.query.shape
    width = parts.key.shape[1]
    logits = parts.query.new_empty(num_groups, n, width + block.slots)
    window, slots = logits[..., :width], logits[..., width:]
    by_key = _by_key(torch.bmm(parts.position_query, parts.key_position.transpose(1, 2)))
    window.copy_(by_key[..., block.first_column : block.first_column + width])
    window.baddbmm_(parts.content_query, parts.key.transpose(1, 2))
    slots.copy_(torch.bmm(parts.query, parts.slot_key.transpose(1, 2)))
    if block.mask is not None:
        window += block.mask
    if block.slot_columns is not None:
        by_distance = torch.bmm(parts.query, parts.slot_position.transpose(1, 2))
        slots += by_distance.gather(2, block.slot_columns.expand(num_groups, -1, -1))
    if block.slot_mask is not None:
        slots += block.slot_mask
    if key_mask is not None:
        window.unflatten(0, (key_mask.shape[0], -1)).add_(key_mask[:, None, None, block.keys])
    if slot_mask is not None:
        slots.unflatten(0, (slot_mask.shape[0], -1)).add_(slot_mask[:, None, None, : block.slots])
    return logits.softmax(dim=-1)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slot_key: Tensor,
    slot_value: Tensor,
    key_position: Tensor,
    slot_position: Tensor,
    content_bias: Tensor,
    position_bias: Tensor,
    key_mask: Tensor | None,
    slot_mask: Tensor | None,
    chunks: list[int],
    dropout: float,
    seed: Tensor | None,
) -> Tensor:
    output = torch.empty_like(query)
    biases, positions = [content_bias, position_bias], (key_position, slot_position)
    with torch.autocast(query.device.type, enabled=False):
        for block in _blocks(query, key_position.shape[1], slot_key.shape[1], Chunks(*chunks)):
            parts = _parts(block, query, key, slot_key, positions, biases)
            weights = _weights(parts, block, key_mask, slot_mask)
            factor = dropout_factor(weights, dropout, seed, block.number)
            weights = weights if factor is None else weights * factor
            width = parts.key.shape[1]
            mean = torch.bmm(weights[..., :width], of_block(value, block.keys))
            mean.baddbmm_(weights[..., width:], slot_value[:, : block.slots])
            output[:, :, block.queries] = mean.unflatten(0, output.shape[:2])
    return output


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slot_key: Tensor,
    slot_value: Tensor,
    key_position: Tensor,
    slot_position: Tensor,
    content_bias: Tensor,
    position_bias: Tensor,
    key_mask: Tensor | None,
    slot_mask: Tensor | None,
    chunks: list[int],
    dropout: float,
    seed: Tensor | None,
) -> list[Tensor]:
    """Gradients of the nine inputs that have one, summed in float32 where blocks meet."""
    biases, positions = [content_bias, position_bias], (key_position, slot_position)
    d_query, d_key, d_value = torch.empty_like(query), BlockSum(key), BlockSum(value)
    shared = (slot_key, slot_value, key_position, slot_position, content_bias, position_bias)
    sums = [torch.zeros_like(x, dtype=wide_dtype(x.dtype)) for x in shared]
    d_slot_key, d_slot_value, d_key_position, d_slot_position, d_content_bias, d_position_bias = sums
    num_distances = key_position.shape[1]
    for block in _blocks(query, num_distances, slot_key.shape[1], Chunks(*chunks)):
        parts = _parts(block, query, key, slot_key, positions, biases)
        weights = _weights(parts, block, key_mask, slot_mask)
        g, width, slots = of_block(grad, block.queries), parts.key.shape[1], slice(0, block.slots)
        d_weights = torch.empty_like(weights)
        d_weights[..., :width] = torch.bmm(g, of_block(value, block.keys).transpose(1, 2))
        d_weights[..., width:] = torch.bmm(g, slot_value[:, slots].transpose(1, 2))
        factor = dropout_factor(weights, dropout, seed, block.number)
        used = weights
        if factor is not None:
            used, d_weights = weights * factor, d_weights * factor
        d_value.add(block.keys, torch.bmm(used[..., :width].transpose(1, 2), g))
        d_slot_value[:, slots] += torch.bmm(used[..., width:].transpose(1, 2), g)
        d_logits = softmax_gradient(weights, d_weights)
        d_window, d_slots = d_logits[..., :width], d_logits[..., width:]
        d_distance = _by_distance(d_window, block, num_distances)
        d_content = torch.bmm(d_window, parts.key)
        d_position = torch.bmm(d_distance, key_position)
        d_block = (d_content + d_position).baddbmm_(d_slots, parts.slot_key)
        d_content_bias += d_content.sum(dim=1, keepdim=True)
        d_position_bias += d_position.sum(dim=1, keepdim=True)
        d_key.add(block.keys, torch.bmm(d_window.transpose(1, 2), parts.content_query))
        d_key_position += torch.bmm(d_distance.transpose(1, 2), parts.position_query)
        d_slot = torch.bmm(d_slots.transpose(1, 2), parts.query)
        d_slot_key[:, slots] += d_slot
        if block.slot_columns is None:
            d_slot_position[:, slot_position.shape[1] - block.slots :] += d_slot
        else:
            d_by_distance = d_slots.new_zeros(*d_slots.shape[:2], slot_position.shape[1])
            d_by_distance.scatter_(2, block.slot_columns.expand_as(d_slots), d_slots)
            d_block.baddbmm_(d_by_distance, slot_position)
            d_slot_position += torch.bmm(d_by_distance.transpose(1, 2), parts.query)
        d_query[:, :, block.queries] = d_block.unflatten(0, query.shape[:2])
    dtype = query.dtype
    return [d_query, d_key.result(dtype), d_value.result(dtype), *(x.to(dtype) for x in sums)]


_attend = differentiable_operator(
    "causal_longshort",
    _forward,
    _backward,
    gradients=(
        "query",
        "key",
        "value",
        "slot_key",
        "slot_value",
        "key_position",
        "slot_position",
        "content_bias",
        "position_bias",
    ),
)
