"""Triton kernels of the recurrences over blocks. Elements (columns) of a state are independent: a program has some."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from attentions.kernels.numerics import accumulation_dtype

RECURRENCE_TILE, RECURRENCE_WARPS = 256, 2
"""Numbers of a state that one program holds in registers."""


@triton.jit
def recurrence_kernel(
    first: tl.tensor,
    added: tl.tensor,
    factor: tl.tensor,
    before: tl.tensor,
    last: tl.tensor,
    num_blocks: tl.tensor,
    size: tl.tensor,
    num_factors: tl.tensor,
    BACKWARDS: tl.constexpr,
    FORGETS: tl.constexpr,
    TYPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Of one row and head, some of the ``size`` numbers of a state; ``num_factors`` divides ``size``."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = place < size
    which = place // (size // num_factors)
    total = tl.load(first + row * size + place, mask=inside, other=0.0).to(TYPE)
    for step in tl.range(0, num_blocks, num_stages=4):
        block = row * num_blocks + (num_blocks - 1 - step if BACKWARDS else step)
        one = tl.load(added + block * size + place, mask=inside, other=0.0).to(TYPE)
        tl.store(before + block * size + place, total, mask=inside)
        if FORGETS:
            total *= tl.load(factor + block * num_factors + which, mask=inside, other=0.0).to(TYPE)
        total += one
    tl.store(last + row * size + place, total, mask=inside)


def scan(first: Tensor, added: Tensor, factor: Tensor | None, *, backwards: bool) -> tuple[Tensor, Tensor]:
    """Compute the sums before each block and after the last, at least in float32; ``backwards`` from the last block.

    Args:
        first: [B, H, K, V].
        added: [B, H, J, K, V].
        factor: [B, H, J, K, 1], [B, H, J, 1, 1] or None.
    """
    first, added = first.contiguous(), added.contiguous()
    before, last = torch.empty_like(added), torch.empty_like(first)
    num_rows, num_blocks, size = added.shape[:2].numel(), added.shape[2], first.shape[2:].numel()
    given = added if factor is None else factor.contiguous()  # never loaded without FORGETS
    with torch.cuda.device_of(added):
        recurrence_kernel[(num_rows, triton.cdiv(size, RECURRENCE_TILE))](
            first,
            added,
            given,
            before,
            last,
            num_blocks,
            size,
            1 if factor is None else factor.shape[3],
            BACKWARDS=backwards,
            FORGETS=factor is not None,
            TYPE=tl.float64 if accumulation_dtype(added.dtype) is torch.float64 else tl.float32,
            TILE=RECURRENCE_TILE,
            num_warps=RECURRENCE_WARPS,
        )
    return before, last


DELTA_TILE, SMALLEST = 16, 16
"""Columns of a state that one program holds in registers; the smallest side of a product."""


@triton.jit
def delta_rule_kernel(
    first: tl.tensor,
    own: tl.tensor,
    read: tl.tensor,
    late: tl.tensor,
    factor: tl.tensor,
    added: tl.tensor,
    written: tl.tensor,
    before: tl.tensor,
    last: tl.tensor,
    num_blocks: tl.tensor,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    FACTORS: tl.constexpr,
    ADDS: tl.constexpr,
    BACKWARDS: tl.constexpr,
    TYPE: tl.constexpr,
    ROW_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Of one batch row and head, ``TILE`` columns of the state; FACTORS is 0 for none, 1 or KEYS."""
    row = tl.program_id(0).to(tl.int64)
    c, k = tl.arange(0, ROW_TILE)[:, None], tl.arange(0, KEY_TILE)
    v = tl.program_id(1) * TILE + tl.arange(0, TILE)[None, :]
    of_own, in_own = c * VALUES + v, (c < ROWS) & (v < VALUES)
    of_keys, in_keys = c * KEYS + k[None, :], (c < ROWS) & (k < KEYS)[None, :]
    of_state, in_state = k[:, None] * VALUES + v, (k < KEYS)[:, None] & (v < VALUES)
    state = tl.load(first + row * KEYS * VALUES + of_state, mask=in_state, other=0.0).to(TYPE)
    for step in tl.range(0, num_blocks, num_stages=STAGES):
        block = row * num_blocks + (num_blocks - 1 - step if BACKWARDS else step)
        u = tl.load(own + block * ROWS * VALUES + of_own, mask=in_own, other=0.0).to(TYPE)
        r = tl.load(read + block * ROWS * KEYS + of_keys, mask=in_keys, other=0.0).to(TYPE)
        rows = tl.load(late + block * ROWS * KEYS + of_keys, mask=in_keys, other=0.0).to(TYPE)
        tl.store(before + block * KEYS * VALUES + of_state, state, mask=in_state)
        u = tl.dot(r, state, acc=u, input_precision="tf32x3", out_dtype=TYPE)
        tl.store(written + block * ROWS * VALUES + of_own, u, mask=in_own)
        if FACTORS == 1:
            state *= tl.load(factor + block).to(TYPE)
        if FACTORS > 1:
            state *= tl.load(factor + block * KEYS + k, mask=k < KEYS, other=0.0).to(TYPE)[:, None]
        if ADDS:
            state += tl.load(added + block * KEYS * VALUES + of_state, mask=in_state, other=0.0).to(TYPE)
        state = tl.dot(tl.trans(rows), u, acc=state, input_precision="tf32x3", out_dtype=TYPE)
    tl.store(last + row * KEYS * VALUES + of_state, state, mask=in_state)


def walk(
    first: Tensor,
    own: Tensor,
    read: Tensor,
    late: Tensor,
    factor: Tensor | None,
    *,
    added: Tensor | None = None,
    backwards: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return written rows and the states before each block and after the last, summed in float32 or wider.

    Args:
        first: [B, H, K, V].
        own: [B, H, J, C, V].
        read, late: [B, H, J, C, K].
        factor: [B, H, J, K, 1], [B, H, J, 1, 1] or None.
        added: to the state after each block, [B, H, J, K, V], or None.
        backwards: from the last block on.
    """
    first, own, read, late = (x.contiguous() for x in (first, own, read, late))
    (num_blocks, num_rows, num_keys), num_values = read.shape[2:], first.shape[3]
    written, last = torch.empty_like(own), torch.empty_like(first)
    before = first.new_empty(*read.shape[:3], num_keys, num_values)
    with torch.cuda.device_of(own):
        delta_rule_kernel[(read.shape[:2].numel(), triton.cdiv(num_values, DELTA_TILE))](
            first,
            own,
            read,
            late,
            own if factor is None else factor.contiguous(),  # never loaded if FACTORS is 0
            own if added is None else added.contiguous(),
            written,
            before,
            last,
            num_blocks,
            ROWS=num_rows,
            KEYS=num_keys,
            VALUES=num_values,
            FACTORS=0 if factor is None else factor.shape[3],
            ADDS=added is not None,
            BACKWARDS=backwards,
            TYPE=tl.float64 if accumulation_dtype(own.dtype) is torch.float64 else tl.float32,
            **tiles(num_rows, num_keys),
            num_warps=num_warps(num_keys),
        )
    return written, before, last


def tiles(num_rows: int, num_keys: int) -> dict[str, int]:
    """Powers of two around the sides of a product, and how many blocks are on their way; wide ones would not fit."""
    row_tile, key_tile = (max(SMALLEST, triton.next_power_of_2(size)) for size in (num_rows, num_keys))
    return {"ROW_TILE": row_tile, "KEY_TILE": key_tile, "TILE": DELTA_TILE, "STAGES": 2 if key_tile <= 128 else 1}


def num_warps(num_keys: int) -> int:
    """Return the number of warps: four hold 128 keys in their registers."""
    return 4 if num_keys <= 128 else 8
