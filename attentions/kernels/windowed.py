"""Softmax attention over a window of keys and, beside it, a few slots that every query sees; block by block.

A block of queries needs the keys from the first one's window to the last one's only, so neither an N x N mask
nor a window gathered for each query is ever formed. Weights are computed anew in the backward pass: what is kept
is query, key and value: at 4,096 tokens 0.14 of the time and 0.79 of the memory of plain autograd for local
attention's window (results/efficiency/kernel_gains.csv). On CUDA the same function runs as FlexAttention,
where that works.

Shapes: B rows, H heads, G rows times heads, N queries, M keys, E width of a head, r slots.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from attentions.kernels.blocks import BlockSum, dropout_factor, dropout_seed, of_block
from attentions.kernels.operator import differentiable_operator
from attentions.kernels.precision import no_weight, wide_dtype
from attentions.kernels.softmax import softmax_gradient

if TYPE_CHECKING:  # importing it loads the compiler, which takes longer than torch itself
    from torch.nn.attention.flex_attention import BlockMask

log = logging.getLogger(__name__)

BLOCK, ELSEWHERE = 64, 512
"""Queries of one block on a CPU; elsewhere a launch costs more than keys that are computed in vain."""


class Window(NamedTuple):
    """Which keys a query sees: those of its segment, and a number of them on either side of it.

    With ``segment`` 1 the window slides with the query; query i stands where key i + ``offset`` does.
    """

    left: int
    right: int
    segment: int = 1
    offset: int = 0


def windowed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Window,
    *,
    slots: tuple[Tensor, Tensor] | None = None,
    key_padding_mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(q [K_window; K_slots]^T / sqrt(E)) [V_window; V_slots], [B, H, N, E].

    Args:
        query, key, value: [B, H, N, E] and twice [B, H, M, E]; a query whose keys are all hidden gets a finite,
            meaningless mean.
        window: which keys a query sees, as far as they exist.
        slots: keys and values seen by every query, [B, H, r, E] each.
        key_padding_mask: bool [B, M], True = hidden.
        dropout: probability of dropping a weight.
    """
    dtype = query.dtype
    key, value = key.to(dtype), value.to(dtype)
    if slots is not None:
        slots = slots[0].to(dtype), slots[1].to(dtype)
    # Below a tile of queries, as in decoding, FlexAttention takes another kernel, which flex_works does not try.
    long = query.shape[2] >= FLEX_BLOCK
    if query.is_cuda and not dropout and long and flex_works(query.device, dtype, query.shape[-1]):
        return by_flex(query, key, value, window, slots, key_padding_mask)
    return by_blocks(query, key, value, window, slots, key_padding_mask, dropout)


def by_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Window,
    slots: tuple[Tensor, Tensor] | None = None,
    key_padding_mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """:func:`windowed_attention` on any device."""
    mask = None
    if key_padding_mask is not None:
        dtype = wide_dtype(query.dtype)
        mask = key_padding_mask.to(dtype) * no_weight(dtype)
    seed = dropout_seed(dropout)
    return _attend(query, key, value, *(slots or (None, None)), mask, list(window), dropout, seed)


class _Block(NamedTuple):
    number: int
    queries: slice
    keys: slice
    mask: Tensor
    """[queries, keys], zero or hidden."""


def _blocks(query: Tensor, key: Tensor, window: Window) -> Iterator[_Block]:
    left, right, segment, offset = window
    length, num_keys = query.shape[2], key.shape[2]
    size = segment * max(1, (BLOCK if query.device.type == "cpu" else ELSEWHERE) // segment)
    first = torch.arange(size, device=query.device).unsqueeze(1) // segment * segment - left
    position = torch.arange(-left, size + right, device=query.device)
    outside = (position < first) | (position >= first + left + segment + right)
    mask = torch.zeros(outside.shape, dtype=wide_dtype(query.dtype), device=query.device)
    mask.masked_fill_(outside, no_weight(mask.dtype))
    for number, begin in enumerate(range(0, length, size)):
        start = begin + offset - left
        low, high = max(0, start), min(num_keys, start + len(position))
        end = min(begin + size, length)
        yield _Block(number, slice(begin, end), slice(low, high), mask[: end - begin, low - start : high - start])


def _join(x: Tensor, block: slice, slots: Tensor | None) -> Tensor:
    window = of_block(x, block)
    return window if slots is None else torch.cat([window, slots.flatten(0, 1)], dim=1)


def _weights(query: Tensor, keys: Tensor, block: _Block, padding: Tensor | None) -> Tensor:
    """Softmax of one block of queries over its joined keys, [G, queries, keys + r], in float32 at least."""
    num_groups, width, wide = keys.shape[0], block.mask.shape[1], keys.shape[1]
    mask = torch.nn.functional.pad(block.mask, (0, wide - width)).expand(num_groups, -1, -1)
    query, keys = query.to(mask.dtype), keys.to(mask.dtype)
    logits = torch.baddbmm(mask, query, keys.transpose(1, 2), alpha=query.shape[-1] ** -0.5)
    if padding is not None:
        rows = logits.unflatten(0, (padding.shape[0], -1))
        rows[..., :width] += padding[:, None, None, block.keys]
    return logits.softmax(dim=-1)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slot_key: Tensor | None,
    slot_value: Tensor | None,
    padding: Tensor | None,
    window: list[int],
    dropout: float,
    seed: Tensor | None,
) -> Tensor:
    output = torch.empty_like(query)
    with torch.autocast(query.device.type, enabled=False):
        for block in _blocks(query, key, Window(*window)):
            keys, values = _join(key, block.keys, slot_key), _join(value, block.keys, slot_value)
            weights = _weights(of_block(query, block.queries), keys, block, padding)
            factor = dropout_factor(weights, dropout, seed, block.number)
            weights = weights if factor is None else weights * factor
            mean = torch.bmm(weights.to(values.dtype), values)
            output[:, :, block.queries] = mean.unflatten(0, output.shape[:2])
    return output


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slot_key: Tensor | None,
    slot_value: Tensor | None,
    padding: Tensor | None,
    window: list[int],
    dropout: float,
    seed: Tensor | None,
) -> list[Tensor]:
    """Gradients of query, key, value, and of the slots where there are any; summed in float32 where blocks meet."""
    scale = query.shape[-1] ** -0.5
    d_query, d_key, d_value = torch.empty_like(query), BlockSum(key), BlockSum(value)
    d_slots = [torch.zeros_like(x, dtype=wide_dtype(x.dtype)) for x in (slot_key, slot_value) if x is not None]
    for block in _blocks(query, key, Window(*window)):
        keys, values = _join(key, block.keys, slot_key), _join(value, block.keys, slot_value)
        q, g, width = of_block(query, block.queries), of_block(grad, block.queries), block.mask.shape[1]
        weights = _weights(q, keys, block, padding)
        d_weights = torch.bmm(g, values.transpose(1, 2)).to(weights.dtype)
        factor = dropout_factor(weights, dropout, seed, block.number)
        used = weights
        if factor is not None:
            used, d_weights = weights * factor, d_weights * factor
        d_logits = softmax_gradient(weights, d_weights)
        d_logits, used = d_logits.mul_(scale).to(q.dtype), used.to(g.dtype)
        d_query[:, :, block.queries] = torch.bmm(d_logits, keys).unflatten(0, query.shape[:2])
        d_key.add(block.keys, torch.bmm(d_logits[..., :width].transpose(1, 2), q))
        d_value.add(block.keys, torch.bmm(used[..., :width].transpose(1, 2), g))
        if d_slots:
            d_slots[0] += torch.bmm(d_logits[..., width:].transpose(1, 2), q).view_as(d_slots[0])
            d_slots[1] += torch.bmm(used[..., width:].transpose(1, 2), g).view_as(d_slots[1])
    dtype = query.dtype
    return [d_query, d_key.result(dtype), d_value.result(dtype), *(x.to(dtype) for x in d_slots)]


_attend = differentiable_operator(
    "windowed_attention", _forward, _backward, gradients=("query", "key", "value", "slot_key", "slot_value")
)


# --- on CUDA --------------------------------------------------------------------------------------------

FLEX_BLOCK = 128
"""Queries and keys of the tiles that FlexAttention computes or leaves out."""


def by_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Window,
    slots: tuple[Tensor, Tensor] | None = None,
    key_padding_mask: Tensor | None = None,
) -> Tensor:
    """:func:`windowed_attention` without dropout as FlexAttention: the slots stand before the keys."""
    num_slots = 0
    if slots is not None:
        num_slots = slots[0].shape[2]
        key, value = torch.cat([slots[0], key], dim=2), torch.cat([slots[1], value], dim=2)
    tiles = flex_tiles(window, query.shape[2], key.shape[2], num_slots, key_padding_mask, query.device)
    return compiled_flex()(query, key, value, block_mask=tiles)


def flex_tiles(
    window: Window, length: int, num_keys: int, num_slots: int, key_padding_mask: Tensor | None, device: torch.device
) -> BlockMask:
    """The tiles that hold a visible key, found by arithmetic: no ``length`` x ``num_keys`` mask."""
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
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention if torch.compiler.is_compiling() else _compile(flex_attention)


@functools.cache
def _compile(function: Any) -> Any:
    """Beyond the limit of variants it raises, where otherwise it would go on with all N x M logits in memory."""
    return torch.compile(function, fullgraph=True, recompile_limit=128)  # type: ignore[call-overload]


_answers: dict[tuple[torch.device, torch.dtype, int], bool] = {}


def flex_works(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether FlexAttention compiles here and agrees with the block form; no, while a model that asks is compiled."""
    case = (device, dtype, width)
    if case not in _answers:
        if torch.compiler.is_compiling():
            return False  # what would be tried now is not the compiled kernel
        _answers[case] = _flex_agrees(device, dtype, width)
    return _answers[case]


# What torch.compiler.assume_constant_result does, without loading the compiler when this module is imported.
flex_works._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _flex_agrees(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """The answer, from outputs and gradients of one small case with slots and padding."""
    generator = torch.Generator(device).manual_seed(0)
    lengths, padding = (200, 200, 200, 5, 5), torch.zeros(2, 200, dtype=torch.bool, device=device)
    padding[1, 150:] = True
    shapes = [(2, 1, length, width) for length in lengths]
    inputs = [torch.randn(shape, generator=generator, device=device, dtype=dtype) for shape in shapes]
    real = ~padding[:, None, :, None]
    try:
        with torch.enable_grad():
            query, key, value, *slots = (x.requires_grad_() for x in inputs)
            results = []
            for form in (by_flex, by_blocks):
                output = form(query, key, value, Window(20, 3), (slots[0], slots[1]), padding).where(real, 0.0)
                gradients = torch.autograd.grad(output.square().sum(), [query, key, value, *slots])
                results.append(torch.cat([x.detach().float().flatten() for x in (output, *gradients)]))
        error = float((results[0] - results[1]).norm() / results[1].norm())
    except Exception as reason:  # a compiler that fails here, in whatever way, is no reason to fail
        log.warning("FlexAttention is not used for %s on %s: %s", dtype, device, reason)
        return False
    limit = 1e-3 if dtype in (torch.float32, torch.float64) else 0.05
    if error > limit:
        log.warning("FlexAttention is not used for %s on %s: it is wrong by %.2g", dtype, device, error)
    return error <= limit
