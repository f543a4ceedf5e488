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
    initial: tl.tensor,
    added: tl.tensor,
    factor: tl.tensor,
    states: tl.tensor,
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
    index = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = index < size
    of_factor = index // (size // num_factors)
    total = tl.load(initial + row * size + index, mask=inside, other=0.0).to(TYPE)
    for step in tl.range(0, num_blocks, num_stages=4):
        block = row * num_blocks + (num_blocks - 1 - step if BACKWARDS else step)
        block_sum = tl.load(added + block * size + index, mask=inside, other=0.0).to(TYPE)
        tl.store(states + block * size + index, total, mask=inside)
        if FORGETS:
            total *= tl.load(factor + block * num_factors + of_factor, mask=inside, other=0.0).to(TYPE)
        total += block_sum
    tl.store(last + row * size + index, total, mask=inside)


def recurrence_sums(initial: Tensor, added: Tensor, factor: Tensor | None, *, backwards: bool) -> tuple[Tensor, Tensor]:
    """Compute the sums before each block and after the last, at least in float32; ``backwards`` from the last block.

    Args:
        initial: [B, H, K, V].
        added: [B, H, J, K, V].
        factor: [B, H, J, K, 1], [B, H, J, 1, 1] or None.
    """
    initial, added = initial.contiguous(), added.contiguous()
    states, last = torch.empty_like(added), torch.empty_like(initial)
    num_rows, num_blocks, size = added.shape[:2].numel(), added.shape[2], initial.shape[2:].numel()
    factors = added if factor is None else factor.contiguous()  # never loaded without FORGETS
    with torch.cuda.device_of(added):
        recurrence_kernel[(num_rows, triton.cdiv(size, RECURRENCE_TILE))](
            initial,
            added,
            factors,
            states,
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
    return states, last


DELTA_TILE, SMALLEST = 16, 16
"""Columns of a state that one program holds in registers; the smallest side of a product."""


@triton.jit
def delta_rule_kernel(
    initial: tl.tensor,
    x: tl.tensor,
    w: tl.tensor,
    k: tl.tensor,
    decay: tl.tensor,
    added: tl.tensor,
    u: tl.tensor,
    states: tl.tensor,
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
    c, key = tl.arange(0, ROW_TILE)[:, None], tl.arange(0, KEY_TILE)
    v = tl.program_id(1) * TILE + tl.arange(0, TILE)[None, :]
    of_x, in_x = c * VALUES + v, (c < ROWS) & (v < VALUES)
    of_keys, in_keys = c * KEYS + key[None, :], (c < ROWS) & (key < KEYS)[None, :]
    of_state, in_state = key[:, None] * VALUES + v, (key < KEYS)[:, None] & (v < VALUES)
    state = tl.load(initial + row * KEYS * VALUES + of_state, mask=in_state, other=0.0).to(TYPE)
    for step in tl.range(0, num_blocks, num_stages=STAGES):
        block = row * num_blocks + (num_blocks - 1 - step if BACKWARDS else step)
        u_j = tl.load(x + block * ROWS * VALUES + of_x, mask=in_x, other=0.0).to(TYPE)
        w_j = tl.load(w + block * ROWS * KEYS + of_keys, mask=in_keys, other=0.0).to(TYPE)
        k_j = tl.load(k + block * ROWS * KEYS + of_keys, mask=in_keys, other=0.0).to(TYPE)
        tl.store(states + block * KEYS * VALUES + of_state, state, mask=in_state)
        u_j = tl.dot(w_j, state, acc=u_j, input_precision="tf32x3", out_dtype=TYPE)
        tl.store(u + block * ROWS * VALUES + of_x, u_j, mask=in_x)
        if FACTORS == 1:
            state *= tl.load(decay + block).to(TYPE)
        if FACTORS > 1:
            state *= tl.load(decay + block * KEYS + key, mask=key < KEYS, other=0.0).to(TYPE)[:, None]
        if ADDS:
            state += tl.load(added + block * KEYS * VALUES + of_state, mask=in_state, other=0.0).to(TYPE)
        state = tl.dot(tl.trans(k_j), u_j, acc=state, input_precision="tf32x3", out_dtype=TYPE)
    tl.store(last + row * KEYS * VALUES + of_state, state, mask=in_state)


def delta_rule_states(
    initial: Tensor,
    x: Tensor,
    w: Tensor,
    k: Tensor,
    decay: Tensor | None,
    *,
    added: Tensor | None = None,
    backwards: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return u and the states before each block and after the last, summed in float32 or wider.

    Args:
        initial: [B, H, K, V].
        x: [B, H, J, C, V].
        w, k: [B, H, J, C, K].
        decay: [B, H, J, K, 1], [B, H, J, 1, 1] or None.
        added: to the state after each block, [B, H, J, K, V], or None.
        backwards: from the last block on.
    """
    initial, x, w, k = (x.contiguous() for x in (initial, x, w, k))
    (num_blocks, num_rows, num_keys), num_values = w.shape[2:], initial.shape[3]
    u, last = torch.empty_like(x), torch.empty_like(initial)
    states = initial.new_empty(*w.shape[:3], num_keys, num_values)
    with torch.cuda.device_of(x):
        delta_rule_kernel[(w.shape[:2].numel(), triton.cdiv(num_values, DELTA_TILE))](
            initial,
            x,
            w,
            k,
            x if decay is None else decay.contiguous(),  # never loaded if FACTORS is 0
            x if added is None else added.contiguous(),
            u,
            states,
            last,
            num_blocks,
            ROWS=num_rows,
            KEYS=num_keys,
            VALUES=num_values,
            FACTORS=0 if decay is None else decay.shape[3],
            ADDS=added is not None,
            BACKWARDS=backwards,
            TYPE=tl.float64 if accumulation_dtype(x.dtype) is torch.float64 else tl.float32,
            **tiles(num_rows, num_keys),
            num_warps=num_warps(num_keys),
        )
    return u, states, last


def tiles(num_rows: int, num_keys: int) -> dict[str, int]:
    """Powers of two around the sides of a product, and how many blocks are on their way; wide ones would not fit."""
    row_tile, key_tile = (max(SMALLEST, triton.next_power_of_2(size)) for size in (num_rows, num_keys))
    return {"ROW_TILE": row_tile, "KEY_TILE": key_tile, "TILE": DELTA_TILE, "STAGES": 2 if key_tile <= 128 else 1}


def num_warps(num_keys: int) -> int:
    """Return the number of warps: four hold 128 keys in their registers."""
    return 4 if num_keys <= 128 else 8
