"""Softmax attention over a window of keys and over slots, with optional relative positions, block by block.

A block of queries reads only the keys from the window of its first query to the window of its last one, so neither an
N x N mask nor a gathered window per query is formed. Logits by distance are one product of queries with embeddings of
distances, skewed to line up with the keys. Weights are recomputed in the backward pass: only the inputs are stored. On
CUDA, windows without relative positions run as FlexAttention where it compiles.

Shapes: B batch, H heads, G batch times heads, N queries, M keys, n queries of a block, E width of a head, S slots, W
distances in the window.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from attentions.kernels.numerics import accumulation_dtype, mask_value
from attentions.kernels.over_blocks import Block, Inputs, Plan, over_blocks
from cab.kernels import Backend, Operation

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
    :func:`mask_value` is hidden.
    """

    embeddings: Tensor
    """p, [H, W, E]."""
    biases: Tensor
    """s, [H, W]."""
    content: Tensor | None = None
    """u, [H, E]; zero if None."""


class Chunks(NamedTuple):
    """Chunks of ``size`` queries that see the slots of earlier chunks, and all earlier keys of their own chunk.

    Each chunk adds a slot to the ``before`` slots that precede query 0. A key at least ``window`` before its
    query is hidden unless it is in the same chunk.
    """

    window: int
    size: int
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


def _extents(query: Tensor, window: Window, chunks: Chunks | None) -> tuple[int, int]:
    """Return the largest number of queries per block, and the length of the stretches that blocks must not cross."""
    is_cpu = query.device.type == "cpu"
    most = CPU_BLOCK if is_cpu else DEVICE_BLOCK
    while most > 16 and query.shape[:2].numel() * most * (most + window.left + window.right) > LARGEST:
        most //= 2
    size = window.segment * max(1, most // window.segment)
    return size, chunks.size if chunks and is_cpu else max(query.shape[2], 1)


def blocks(
    query: Tensor, num_keys: int, num_slots: int, window: Window, chunks: Chunks | None, is_relative: bool
) -> Iterator[Block]:
    """Cut the queries [B, H, N, E] into blocks; the skew of relative logits hides what is outside of the window."""
    (left, right, segment, offset), (size, stretch) = window, _extents(query, window, chunks)
    length, device = query.shape[2], query.device
    start = torch.arange(size, device=device).unsqueeze(1) // segment * segment - left
    position = torch.arange(-left, size + right, device=device)
    around = _hidden((position < start) | (position >= start + left + segment + right), accumulation_dtype(query.dtype))
    for begin in (i for start in range(0, length, stretch) for i in range(start, min(start + stretch, length), size)):
        first, end = begin + offset - left, min(begin + size, begin // stretch * stretch + stretch, length)
        low, high = max(0, first), min(num_keys, first + left + size + right)
        if chunks:
            high = min(num_keys, end + offset)
        keys, columns = slice(low, high), slice(low - first, high - first)
        mask = None if is_relative else around[: end - begin, columns]
        block = Block(slice(begin, end), keys, mask=mask, columns=columns, slots=slice(num_slots))
        yield _in_chunks(block, chunks, offset, num_slots, around) if chunks else block


def _in_chunks(block: Block, chunks: Chunks, offset: int, num_slots: int, like: Tensor) -> Block:
    """Restrict a block to the keys and slots that its chunks see."""
    (window, size, before), device, queries, keys = chunks, like.device, block.queries, block.keys
    assert isinstance(queries, slice)
    assert isinstance(keys, slice)
    i = torch.arange(queries.start, queries.stop, device=device).unsqueeze(1)
    seen = before + (queries.stop - 1) // size
    if size > window:
        j = torch.arange(keys.start, keys.stop, device=device) - offset
        mask = _hidden((i - j >= window) & (j < i // size * size), like.dtype)
        block = block._replace(mask=mask if block.mask is None else block.mask + mask)
    if queries.start // size == (queries.stop - 1) // size:
        return block._replace(slots=slice(seen))
    finished, slot = before + i // size, torch.arange(seen, device=device)
    slot_mask, slot_columns = _hidden(slot >= finished, like.dtype), (slot - finished) % num_slots
    return block._replace(slots=slice(seen), slot_mask=slot_mask, slot_columns=slot_columns)


def _hidden(where: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(where, dtype=dtype).masked_fill_(where, mask_value(dtype))


def by_blocks(
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
    batch, dtype = len(query), accumulation_dtype(query.dtype)
    slot_key = slot_value = slot_biases = slot_embeddings = chunks = slot_padding = None
    if slots is not None:
        slot_key, slot_value, slot_biases, chunks, slot_embeddings, slot_padding = slots
    per_head = slot_biases, slot_embeddings, *(distances or (None, None, None))
    per_group = (None if x is None else x.to(query.dtype).repeat(batch, *[1] * (x.dim() - 1)) for x in per_head)
    num_slots = 0 if slot_key is None else slot_key.shape[2]
    key_mask, slot_mask = (None if x is None else _hidden(x, dtype) for x in (key_padding_mask, slot_padding))
    of_blocks = functools.partial(blocks, query, key.shape[2], num_slots, window, chunks, distances is not None)
    plan = Plan(of_blocks, key_mask, slot_mask, dropout)
    return over_blocks(plan, Inputs(query, key, value, slot_key, slot_value, *per_group))


# --- FlexAttention on CUDA ------------------------------------------------------------


def by_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Window,
    *,
    slots: Slots | None = None,
    key_padding_mask: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """Compute window attention as FlexAttention, with the slots before the keys."""
    num_slots, key, value = 0, key.to(query.dtype), value.to(query.dtype)
    if slots is not None:
        num_slots = slots.key.shape[2]
        key, value = torch.cat([slots.key.to(key), key], dim=2), torch.cat([slots.value.to(value), value], dim=2)
    tiles = flex_tiles(window, query.shape[2], key.shape[2], num_slots, key_padding_mask, query.device)
    return compiled_flex()(query, key, value, block_mask=tiles)


def flex_tiles(
    window: Window, length: int, num_keys: int, num_slots: int, key_padding_mask: Tensor | None, device: torch.device
) -> BlockMask:
    """Find the tiles with a visible key by arithmetic, without a mask of ``length`` x ``num_keys``."""
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
    return block_mask(needed, visible, (length, num_keys))


def block_mask(needed: Tensor, visible: Callable[..., Tensor], lengths: tuple[int, int]) -> BlockMask:
    """Return FlexAttention's mask from the tiles with a visible key, bool [tiles of queries, tiles of keys]."""
    from torch.nn.attention.flex_attention import BlockMask

    order = needed.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    return BlockMask.from_kv_blocks(
        needed.sum(dim=1)[None, None].int(),
        order[None, None].int(),
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=visible,
        seq_lengths=lengths,
    )


def refuses_flex(
    query: Tensor,
    *_: Any,
    dropout: float = 0.0,
    slots: Slots | None = None,
    distances: Distances | None = None,
    form: str = "window",
    **__: Any,
) -> str | None:
    """Return why FlexAttention does not compute this attention, whose form is one of the ``TRIALS``."""
    if dropout:
        return "dropout"
    if distances is not None or (slots is not None and slots != Slots(slots.key, slots.value)):
        return "relative positions"
    if query.shape[2] < FLEX_BLOCK:  # another kernel runs then, as in decoding, which flex_works does not try
        return f"fewer than {FLEX_BLOCK} queries"
    return None if flex_works(form, query.device, query.dtype, query.shape[-1]) else "it does not compile"


window_attention = Operation("window", by_blocks, Backend("flex", by_flex, refuses=refuses_flex))


def compiled_flex() -> Any:
    """Return the compiled flex_attention."""
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention if torch.compiler.is_compiling() else _compile(flex_attention)


@functools.cache
def _compile(function: Any) -> Any:
    """Compile FlexAttention. Raise at the recompile limit, where it would fall back to all N x M logits in memory."""
    return torch.compile(function, fullgraph=True, recompile_limit=128)  # type: ignore[call-overload]


def _trial(x: Tensor, hidden: Tensor) -> Tensor:
    return by_flex(x, x, x, Window(20, 3), slots=Slots(x[:, :, :1], x[:, :, :1]), key_padding_mask=hidden)


TRIALS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"window": _trial}
"""Forms of attention with all of their options, computed by FlexAttention from heads [1, 2, N, E], padding [1, N]."""

_flex_works: dict[tuple[str, torch.device, torch.dtype, int], bool] = {}


def flex_works(form: str, device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Return whether FlexAttention compiles; False while a calling model is compiled, unless it is known by then."""
    case = (form, device, dtype, width)
    if case not in _flex_works:
        if torch.compiler.is_compiling():
            return False  # this trial would not run the compiled kernel
        try:
            with torch.enable_grad():
                x = torch.ones(1, 2, FLEX_BLOCK, width, device=device, dtype=dtype, requires_grad=True)
                TRIALS[form](x, torch.zeros(1, FLEX_BLOCK, dtype=torch.bool, device=device)).sum().backward()
            _flex_works[case] = True
        except Exception as reason:  # whatever fails in the compiler, the block form still works
            log.warning("FlexAttention is not used for %s in %s on %s: %s", form, dtype, device, reason)
            _flex_works[case] = False
    return _flex_works[case]


# As torch.compiler.assume_constant_result, without loading the compiler when this module is imported.
flex_works._dynamo_marked_constant = True  # type: ignore[attr-defined]
