"""Softmax attention over a window of keys and over slots, with optional relative positions, block by block.

A block of queries reads only the keys from the window of its first query to the window of its last one, so neither an
N x N mask nor a gathered window per query is formed. Logits by distance are one product of queries with embeddings of
distances, skewed to line up with the keys. The hand-written backward pass recomputes the weights: only the inputs are
stored (results/efficiency/kernel_gains.csv lists what that gains). On CUDA, windows without relative positions run as
FlexAttention where it works.

Shapes: B batch, H heads, G batch times heads, N queries, M keys, n queries of a block, E width of a head, S slots, W
distances in the window.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.chunks import BlockSum, dropout_factor, dropout_seed, of_block
from attentions.kernels.numerics import accumulation_dtype, neg_inf, softmax_gradient
from attentions.kernels.operator import differentiable_operator, of_flat_arguments

if TYPE_CHECKING:  # importing it loads the compiler, which takes longer than torch itself
    from torch.nn.attention.flex_attention import BlockMask

log = logging.getLogger(__name__)

CPU_BLOCK, DEVICE_BLOCK = 64, 512
"""Queries per block on a CPU and on other devices, where a launch costs more than keys computed in vain."""

LARGEST = 2**24
"""Logits of one block, unless it has 16 queries or fewer."""

FLEX_BLOCK = 128
"""Queries and keys per tile that FlexAttention computes or skips."""


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


def window_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Window,
    *,
    slots: Slots | None = None,
    distances: Distances | None = None,
    key_padding_mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return softmax(q [K_window; K_slots]^T / sqrt(E)) [V_window; V_slots], [B, H, N, E].

    Args:
        query: [B, H, N, E]. A query whose keys are all hidden gets a finite, meaningless mean.
        key, value: [B, H, M, E].
        window: the keys that a query sees, as far as they exist.
        slots: additional keys and values.
        distances: relative positions; the window must have ``segment`` 1.
        key_padding_mask: bool [B, M], True = hidden.
        dropout: probability of dropping a weight.
    """
    # FlexAttention runs another kernel for fewer queries than a tile, as in decoding, which flex_works does not try.
    if query.is_cuda and not dropout and query.shape[2] >= FLEX_BLOCK and distances is None:
        dtype, is_plain = query.dtype, slots is None or slots == Slots(slots.key, slots.value)
        if is_plain and flex_works(query.device, dtype, query.shape[-1]):
            if slots is not None:
                slots = Slots(slots.key.to(dtype), slots.value.to(dtype))
            return by_flex(query, key.to(dtype), value.to(dtype), window, slots, key_padding_mask)
    return by_blocks(query, key, value, window, slots, key_padding_mask, dropout, distances)


def by_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Window,
    slots: Slots | None = None,
    key_padding_mask: Tensor | None = None,
    dropout: float = 0.0,
    distances: Distances | None = None,
) -> Tensor:
    """Compute :func:`window_attention` on any device."""
    dtype, batch = query.dtype, len(query)

    def masked(mask: Tensor | None) -> Tensor | None:
        return None if mask is None else mask.to(accumulation_dtype(dtype)) * neg_inf(accumulation_dtype(dtype))

    def repeated(x: Tensor | None) -> Tensor | None:
        """Expand [H, ...] to [G, ...]."""
        return None if x is None else x.to(dtype).repeat(batch, *[1] * (x.dim() - 1))

    shared = [repeated(x) for x in distances or (None, None, None)]
    slot_key = slot_value = slot_biases = slot_embeddings = slot_mask = None
    chunks: list[int] = []
    if slots is not None:
        slot_key, slot_value = slots.key.to(dtype).flatten(0, 1), slots.value.to(dtype).flatten(0, 1)
        slot_biases, slot_embeddings = repeated(slots.biases), repeated(slots.embeddings)
        slot_mask, chunks = masked(slots.padding_mask), list(slots.chunks or ())
    of_slots = (slot_key, slot_value, slot_biases, slot_embeddings)
    key, value, masks = key.to(dtype), value.to(dtype), (masked(key_padding_mask), slot_mask)
    return _attend(query, key, value, *of_slots, *shared, *masks, list(window), chunks, dropout, dropout_seed(dropout))


class _Inputs(NamedTuple):
    """The inputs as the kernel takes them: [G, ...] but for the first three and the masks [B, ...]."""

    query: Tensor
    key: Tensor
    value: Tensor
    slot_key: Tensor | None
    slot_value: Tensor | None
    slot_biases: Tensor | None
    slot_embeddings: Tensor | None
    embeddings: Tensor | None
    biases: Tensor | None
    content: Tensor | None
    # without a gradient:
    key_mask: Tensor | None
    slot_mask: Tensor | None
    window: list[int]
    chunks: list[int]
    dropout: float
    seed: Tensor | None

    def blocks(self) -> Iterator[Block]:
        num_slots = 0 if self.slot_key is None else self.slot_key.shape[1]
        chunks = Chunks(*self.chunks) if self.chunks else None
        return blocks(self.query, self.key.shape[2], num_slots, Window(*self.window), chunks)


class _Parts(NamedTuple):
    """Queries and keys of a block: q, q + u, the keys of the window, and the slots' with their positions."""

    query: Tensor
    content_query: Tensor
    key: Tensor
    slot_key: Tensor | None


def _parts(x: _Inputs, block: Block) -> _Parts:
    query, slot_key = of_block(x.query, block.queries), None
    if x.slot_key is not None:
        slot_key = x.slot_key[:, : block.num_slots]
        if x.slot_embeddings is not None and block.slot_columns is None:
            slot_key = slot_key + x.slot_embeddings[:, x.slot_embeddings.shape[1] - block.num_slots :]
    content = query if x.content is None else query + x.content.unsqueeze(1)
    return _Parts(query, content, of_block(x.key, block.keys), slot_key)


def _weights(x: _Inputs, block: Block, parts: _Parts) -> Tensor:
    """Return the softmax over [keys of the block | its slots], [G, n, keys + slots], in float32 or wider."""
    dtype, scale = block.mask.dtype, x.query.shape[-1] ** -0.5
    content = parts.content_query.to(dtype)
    if x.embeddings is None:
        logits = block.mask.expand(len(content), -1, -1)
    else:
        assert x.biases is not None
        biases = x.biases.to(dtype).unsqueeze(1)
        of_distance = torch.baddbmm(biases, content, x.embeddings.to(dtype).transpose(1, 2), alpha=scale)
        logits = by_key(of_distance)[..., block.columns]
        if x.chunks and x.chunks[1] > x.chunks[0]:
            logits = logits + block.mask
    # Out of place and joined afterwards: products into a part of a tensor run once per head.
    logits = torch.baddbmm(logits, content, parts.key.to(dtype).transpose(1, 2), alpha=scale)
    if x.key_mask is not None:
        logits.unflatten(0, (len(x.key_mask), -1)).add_(x.key_mask[:, None, None, block.keys])
    if parts.slot_key is not None and block.num_slots:
        logits = torch.cat([logits, _slot_logits(x, block, parts.query.to(dtype), parts.slot_key.to(dtype))], dim=-1)
    return logits.softmax(dim=-1)


def _slot_logits(x: _Inputs, block: Block, query: Tensor, slot_key: Tensor) -> Tensor:
    scale = x.query.shape[-1] ** -0.5
    logits = query @ slot_key.transpose(1, 2) * scale
    if block.slot_mask is not None:
        logits += block.slot_mask
    if x.slot_embeddings is not None and block.slot_columns is not None:
        of_distance = query @ x.slot_embeddings.to(query.dtype).transpose(1, 2) * scale
        logits += of_distance.gather(2, block.slot_columns.expand(len(query), -1, -1))
    if x.slot_biases is not None:
        logits += x.slot_biases[:, None, : block.num_slots]
    if x.slot_mask is not None:
        logits.unflatten(0, (len(x.slot_mask), -1)).add_(x.slot_mask[:, None, None, : block.num_slots])
    return logits


def _forward(x: _Inputs) -> Tensor:
    output = torch.empty_like(x.query)
    with torch.autocast(x.query.device.type, enabled=False):
        for block in x.blocks():
            weights = _weights(x, block, _parts(x, block))
            factor = dropout_factor(weights, x.dropout, x.seed, block.number)
            weights = weights if factor is None else weights * factor
            weights, num_keys = weights.to(x.value.dtype), block.mask.shape[1]
            mean = torch.bmm(weights[..., :num_keys], of_block(x.value, block.keys))
            if x.slot_value is not None:
                mean.baddbmm_(weights[..., num_keys:], x.slot_value[:, : block.num_slots])
            output[:, :, block.queries] = mean.unflatten(0, output.shape[:2])
    return output


def _backward(grad: Tensor, x: _Inputs) -> list[Tensor]:
    """Return the gradients of the inputs that are given, summed in float32 or wider where blocks meet."""
    shared = (x.slot_key, x.slot_value, x.slot_biases, x.slot_embeddings, x.embeddings, x.biases, x.content)
    sums = [None if y is None else torch.zeros_like(y, dtype=accumulation_dtype(y.dtype)) for y in shared]
    d_query, d_key, d_value = torch.empty_like(x.query), BlockSum(x.key), BlockSum(x.value)
    with torch.autocast(x.query.device.type, enabled=False):
        for block in x.blocks():
            parts, num_keys = _parts(x, block), block.mask.shape[1]
            g, weights = of_block(grad, block.queries), _weights(x, block, parts)
            d_weights = torch.bmm(g, of_block(x.value, block.keys).transpose(1, 2))
            if x.slot_value is not None:
                d_slots = torch.bmm(g, x.slot_value[:, : block.num_slots].transpose(1, 2))
                d_weights = torch.cat([d_weights, d_slots], dim=-1)
            d_weights = d_weights.to(weights.dtype)
            factor = dropout_factor(weights, x.dropout, x.seed, block.number)
            used = weights
            if factor is not None:
                used, d_weights = weights * factor, d_weights * factor
            d_logits = softmax_gradient(weights, d_weights).mul_(x.query.shape[-1] ** -0.5).to(g.dtype)
            used = used.to(g.dtype)
            d_value.add(block.keys, torch.bmm(used[..., :num_keys].transpose(1, 2), g))
            if sums[1] is not None:
                sums[1][:, : block.num_slots] += torch.bmm(used[..., num_keys:].transpose(1, 2), g)
            d_block = _window_gradient(x, block, parts, d_logits[..., :num_keys], d_key, sums[4:])
            if x.slot_key is not None:
                d_block += _slot_gradient(x, block, parts, d_logits[..., num_keys:], sums)
            d_query[:, :, block.queries] = d_block.unflatten(0, x.query.shape[:2])
    dtype = x.query.dtype
    return [d_query, d_key.result(dtype), d_value.result(dtype), *(y.to(dtype) for y in sums if y is not None)]


def _window_gradient(
    x: _Inputs, block: Block, parts: _Parts, d_logits: Tensor, d_key: BlockSum, sums: list[Tensor | None]
) -> Tensor:
    """Add to the gradients of keys, embeddings, biases and content bias, and return that of the queries.

    ``d_logits`` is the gradient of the logits divided by sqrt(E).
    """
    d_query = torch.bmm(d_logits, parts.key)
    d_key.add(block.keys, torch.bmm(d_logits.transpose(1, 2), parts.content_query))
    d_embeddings, d_biases, d_content = sums
    if x.embeddings is not None:
        assert d_embeddings is not None
        assert d_biases is not None
        of_distance = by_distance(d_logits, block.columns, x.embeddings.shape[1])
        d_biases.add_(of_distance.sum(dim=1), alpha=x.query.shape[-1] ** 0.5)
        d_embeddings += torch.bmm(of_distance.transpose(1, 2), parts.content_query)
        d_query.baddbmm_(of_distance, x.embeddings)
    if d_content is not None:
        d_content += d_query.sum(dim=1)
    return d_query


def _slot_gradient(x: _Inputs, block: Block, parts: _Parts, d_logits: Tensor, sums: list[Tensor | None]) -> Tensor:
    """Add to the gradients of the slots' keys, biases and embeddings, and return that of the queries."""
    d_slot_key, _, d_biases, d_embeddings, *_ = sums
    assert parts.slot_key is not None
    assert d_slot_key is not None
    d_query, d_slot = torch.bmm(d_logits, parts.slot_key), torch.bmm(d_logits.transpose(1, 2), parts.query)
    d_slot_key[:, : block.num_slots] += d_slot
    if d_biases is not None:
        d_biases[:, : block.num_slots].add_(d_logits.sum(dim=1), alpha=x.query.shape[-1] ** 0.5)
    if d_embeddings is not None and block.slot_columns is None:
        d_embeddings[:, d_embeddings.shape[1] - block.num_slots :] += d_slot
    elif d_embeddings is not None:
        assert x.slot_embeddings is not None
        assert block.slot_columns is not None
        of_distance = d_logits.new_zeros(*d_logits.shape[:2], d_embeddings.shape[1])
        of_distance.scatter_(2, block.slot_columns.expand_as(d_logits), d_logits)
        d_query.baddbmm_(of_distance, x.slot_embeddings)
        d_embeddings += torch.bmm(of_distance.transpose(1, 2), parts.query)
    return d_query


_attend = differentiable_operator(
    "window_attention",
    of_flat_arguments(_forward, _Inputs),
    of_flat_arguments(_backward, _Inputs, "grad"),
    gradients=_Inputs._fields[:10],
)


# --- FlexAttention on CUDA ------------------------------------------------------------


def by_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Window,
    slots: Slots | None = None,
    key_padding_mask: Tensor | None = None,
) -> Tensor:
    """Compute window attention without dropout as FlexAttention, with the slots before the keys."""
    num_slots = 0
    if slots is not None:
        num_slots = slots.key.shape[2]
        key, value = torch.cat([slots.key, key], dim=2), torch.cat([slots.value, value], dim=2)
    tiles = flex_tiles(window, query.shape[2], key.shape[2], num_slots, key_padding_mask, query.device)
    return compiled_flex()(query, key, value, block_mask=tiles)


def flex_tiles(
    window: Window, length: int, num_keys: int, num_slots: int, key_padding_mask: Tensor | None, device: torch.device
) -> BlockMask:
    """Find the tiles with a visible key by arithmetic, without a mask of ``length`` x ``num_keys``."""
    from torch.nn.attention.flex_attention import BlockMask

    left, right, segment, offset = window

    def visible(row: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        start = i // segment * segment + offset - left
        position = j - num_slots
        seen = (position >= start) & (position < start + left + segment + right)
        if key_padding_mask is not None:
            seen = seen & ~key_padding_mask[row, position.clamp(min=0)]
        return seen | (j < num_slots)

    first = torch.arange(0, length, FLEX_BLOCK, device=device).unsqueeze(1)
    last = (first + FLEX_BLOCK - 1).clamp(max=length - 1)
    low = first // segment * segment + offset - left + num_slots
    high = last // segment * segment + offset + segment + right + num_slots
    tile = torch.arange(0, num_keys, FLEX_BLOCK, device=device)
    needed = (tile + FLEX_BLOCK > low) & (tile < high) | (tile < num_slots)
    order = needed.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    return BlockMask.from_kv_blocks(
        needed.sum(dim=1)[None, None].int(),
        order[None, None].int(),
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=visible,
        seq_lengths=(length, num_keys),
    )


def compiled_flex() -> Any:
    """Return the compiled flex_attention."""
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention if torch.compiler.is_compiling() else _compile(flex_attention)


@functools.cache
def _compile(function: Any) -> Any:
    """Compile FlexAttention. Raise at the recompile limit, where it would fall back to all N x M logits in memory."""
    return torch.compile(function, fullgraph=True, recompile_limit=128)  # type: ignore[call-overload]


_flex_works: dict[tuple[torch.device, torch.dtype, int], bool] = {}


def flex_works(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Return whether FlexAttention compiles; False while a calling model is compiled, unless it is known by then."""
    case = (device, dtype, width)
    if case not in _flex_works:
        if torch.compiler.is_compiling():
            return False  # this trial would not run the compiled kernel
        try:
            with torch.enable_grad():
                x = torch.ones(1, 1, FLEX_BLOCK, width, device=device, dtype=dtype, requires_grad=True)
                by_flex(x, x, x, Window(20, 3)).sum().backward()  # type: ignore[no-untyped-call]
            _flex_works[case] = True
        except Exception as reason:  # whatever fails in the compiler, the block form still works
            log.warning("FlexAttention is not used for %s on %s: %s", dtype, device, reason)
            _flex_works[case] = False
    return _flex_works[case]


# As torch.compiler.assume_constant_result, without loading the compiler when this module is imported.
flex_works._dynamo_marked_constant = True  # type: ignore[attr-defined]
