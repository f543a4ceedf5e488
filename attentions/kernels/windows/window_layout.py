"""Window geometry: which keys, slots and distances a block of queries sees.

Shapes: G batch times heads, N queries, M keys, n queries of a block, S slots, W distances in the window.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.common.precision import accumulation_dtype, neg_inf

CPU_BLOCK, DEVICE_BLOCK = 64, 512
"""Queries per block on a CPU and on other devices, where a launch costs more than keys computed in vain."""

LARGEST = 2**24
"""Logits of one block, unless it has 16 queries or fewer."""


class Window(NamedTuple):
    """Keys that a query sees: its segment, and ``left`` keys before and ``right`` keys after it.

    With ``segment`` 1 the window slides with the query. Query i is at the position of key i + ``offset``.
    """

    left: int
    right: int
    segment: int = 1
    offset: int = 0


class Distances(NamedTuple):
    """Relative positions of a sliding window: q_i k_j / sqrt(E) becomes (q_i + u)(k_j + p_(i-j)) / sqrt(E) + s_(i-j).

    The first distance is ``left``, the last one -``right``; W = left + right + 1. A distance with the bias
    :func:`neg_inf` is hidden.
    """

    embeddings: Tensor
    """p, [H, W, E]."""
    biases: Tensor
    """s, [H, W]."""
    content: Tensor | None = None
    """u, [H, E]; zero if None."""


class Chunks(NamedTuple):
    """Chunks of ``size`` queries that see the slots of earlier chunks, and all earlier keys of their own chunk.

    Each chunk adds ``rank`` slots to the ``before`` slots that precede query 0. A key at least ``window`` before its
    query is hidden unless it is in the same chunk.
    """

    window: int
    size: int
    rank: int
    before: int


class Slots(NamedTuple):
    """Keys and values that are seen in addition to the window, [B, H, S, E], with logits q_i k / sqrt(E) + bias."""

    key: Tensor
    value: Tensor
    biases: Tensor | None = None
    """[H, S]."""
    chunks: Chunks | None = None
    """If given, slots become visible chunk by chunk, oldest first."""
    embeddings: Tensor | None = None
    """[H, S, E], added to the keys of slots by distance from the last visible slot, furthest first; with ``chunks``."""
    padding_mask: Tensor | None = None
    """bool [B, S], True = hidden."""


class Block(NamedTuple):
    """A block of queries and the keys that they see."""

    number: int
    queries: slice
    keys: slice
    columns: slice
    """Of the left + n + right columns around the block, those of ``keys``."""
    num_slots: int
    mask: Tensor
    """[queries, keys], zero or hidden."""
    slot_mask: Tensor | None = None
    """[queries, slots], zero or hidden; None if all queries of the block see the same slots."""
    slot_columns: Tensor | None = None
    """[queries, slots], the distance of each slot as an index of the embeddings; None with ``slot_mask``."""


def _extents(query: Tensor, window: Window, chunks: Chunks | None) -> tuple[int, int]:
    """Return the largest number of queries per block, and the length of the stretches that blocks must not cross."""
    is_cpu = query.device.type == "cpu"
    most = CPU_BLOCK if is_cpu else DEVICE_BLOCK
    while most > 16 and query.shape[:2].numel() * most * (most + window.left + window.right) > LARGEST:
        most //= 2
    size = window.segment * max(1, most // window.segment)
    return size, chunks.size if chunks and is_cpu else max(query.shape[2], 1)


def blocks(query: Tensor, num_keys: int, num_slots: int, window: Window, chunks: Chunks | None) -> Iterator[Block]:
    """Cut the queries [B, H, N, E] into blocks."""
    (left, right, segment, offset), (size, stretch) = window, _extents(query, window, chunks)
    length, device = query.shape[2], query.device
    first = torch.arange(size, device=device).unsqueeze(1) // segment * segment - left
    position = torch.arange(-left, size + right, device=device)
    around = _hidden((position < first) | (position >= first + left + segment + right), accumulation_dtype(query.dtype))
    begins = (i for start in range(0, length, stretch) for i in range(start, min(start + stretch, length), size))
    for number, begin in enumerate(begins):
        start, end = begin + offset - left, min(begin + size, begin // stretch * stretch + stretch, length)
        low, high = max(0, start), min(num_keys, start + left + size + right)
        if chunks:
            high = min(num_keys, end + offset)
        columns = slice(low - start, high - start)
        block = Block(number, slice(begin, end), slice(low, high), columns, num_slots, around[: end - begin, columns])
        yield _in_chunks(block, chunks, offset, num_slots) if chunks else block


def _in_chunks(block: Block, chunks: Chunks, offset: int, num_slots: int) -> Block:
    """Restrict a block to the keys and slots that its chunks see."""
    (window, size, rank, before), device = chunks, block.mask.device
    i = torch.arange(block.queries.start, block.queries.stop, device=device).unsqueeze(1)
    seen = before + (block.queries.stop - 1) // size * rank
    if size > window:
        j = torch.arange(block.keys.start, block.keys.stop, device=device) - offset
        mask = block.mask + _hidden((i - j >= window) & (j < i // size * size), block.mask.dtype)
        block = block._replace(mask=mask)
    if block.queries.start // size == (block.queries.stop - 1) // size:
        return block._replace(num_slots=seen)
    finished, slot = before + i // size * rank, torch.arange(seen, device=device)
    slot_mask, columns = _hidden(slot >= finished, block.mask.dtype), (slot - finished) % num_slots
    return block._replace(num_slots=seen, slot_mask=slot_mask, slot_columns=columns)


def _hidden(where: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(where, dtype=dtype).masked_fill_(where, neg_inf(dtype))


def by_key(logits: Tensor) -> Tensor:
    """Skew logits by distance [..., n, W] to logits by key [..., n, n + W - 1], hidden where no distance applies."""
    n, num_distances = logits.shape[-2:]
    padded = F.pad(logits, (0, n), value=neg_inf(logits.dtype)).flatten(-2)
    return padded[..., : n * (n + num_distances - 1)].unflatten(-1, (n, -1))


def by_distance(logits: Tensor, columns: slice, num_distances: int) -> Tensor:
    """Invert :func:`by_key`: from the ``columns`` of a block's keys [G, n, columns] to [G, n, W]."""
    num_groups, n, _ = logits.shape
    padded = logits.new_zeros(num_groups, n * (n + num_distances))
    skewed = padded[:, : n * (n + num_distances - 1)].unflatten(1, (n, -1))
    skewed[..., columns] = logits
    return padded.unflatten(1, (n, -1))[..., :num_distances]
