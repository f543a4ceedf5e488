"""Window attention on CUDA as FlexAttention, where it compiles and agrees with the block form.

Shapes: B batch, H heads, N queries, M keys, E width of a head, r slots.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attentions.kernels.windows.window_layout import Slots, Window

if TYPE_CHECKING:  # importing it loads the compiler, which takes longer than torch itself
    from torch.nn.attention.flex_attention import BlockMask

log = logging.getLogger(__name__)

FLEX_BLOCK = 128
"""Queries and keys per tile that FlexAttention computes or skips."""


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


_answers: dict[tuple[torch.device, torch.dtype, int], bool] = {}


def flex_works(device: torch.device, dtype: torch.dtype, width: int, by_blocks: Callable[..., Tensor]) -> bool:
    """Return whether FlexAttention compiles and agrees with ``by_blocks``; False while a calling model is compiled."""
    case = (device, dtype, width)
    if case not in _answers:
        if torch.compiler.is_compiling():
            return False  # this trial would not run the compiled kernel
        _answers[case] = _flex_agrees(device, dtype, width, by_blocks)
    return _answers[case]


# As torch.compiler.assume_constant_result, without loading the compiler when this module is imported.
flex_works._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _flex_agrees(device: torch.device, dtype: torch.dtype, width: int, by_blocks: Callable[..., Tensor]) -> bool:
    """Compare outputs and gradients of one small case with slots and padding."""
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
                output = form(query, key, value, Window(20, 3), Slots(slots[0], slots[1]), padding).where(real, 0.0)
                gradients = torch.autograd.grad(output.square().sum(), [query, key, value, *slots])
                results.append(torch.cat([x.detach().float().flatten() for x in (output, *gradients)]))
        error = float((results[0] - results[1]).norm() / results[1].norm())
    except Exception as reason:  # whatever fails in the compiler, the block form still works
        log.warning("FlexAttention is not used for %s on %s: %s", dtype, device, reason)
        return False
    limit = 1e-3 if dtype in (torch.float32, torch.float64) else 0.05
    if error > limit:
        log.warning("FlexAttention is not used for %s on %s: it is wrong by %.2g", dtype, device, error)
    return error <= limit
