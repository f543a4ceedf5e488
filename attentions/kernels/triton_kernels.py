"""Triton kernels of the recurrences over blocks, and of what precedes or follows one.

Elements (columns) of a state are independent: a program has some.
"""

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


@triton.jit
def gated_skip_kernel(
    x: tl.tensor,
    skip: tl.tensor,
    value: tl.tensor,
    gate: tl.tensor,
    weight: tl.tensor,
    first: tl.tensor,
    output: tl.tensor,
    row_skips: tl.tensor,
    token_skips: tl.tensor,
    length: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    HEAD: tl.constexpr,
    NORMS: tl.constexpr,
    SHIFT: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Of one token, whose x is ``SHIFT`` tokens before it.

    The factors of its heads are ``row_skips`` and ``token_skips`` numbers after each other.
    """
    row, token = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, TILE)
    inside, start = column < WIDTH, (row * length + token) * WIDTH
    factor = tl.load(skip + row * row_skips + token * token_skips + column // HEAD, mask=inside, other=0.0).to(
        tl.float32
    )
    v = tl.load(value + start + column, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gate + start + column, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(x + start - SHIFT * WIDTH + column, mask=inside & (token >= SHIFT), other=0.0).to(tl.float32)
    if SHIFT:
        y += tl.load(first + row * WIDTH + column, mask=inside & (token < SHIFT), other=0.0).to(tl.float32)
    y = (y + factor * v) * g / (1.0 + tl.exp(-g))
    if NORMS:
        y *= tl.rsqrt(tl.reduce(y * y, 0, tl.standard._sum_combine) / WIDTH + eps)
        y *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + start + column, y, mask=inside)


def gated_skip(
    x: Tensor, skip: Tensor, value: Tensor, gate: Tensor, weight: Tensor | None, first: Tensor | None, eps: float
) -> Tensor:
    """Compute (x + skip value) silu(gate), and with ``weight`` its RMS norm over a token, in float32.

    Args:
        x, value: [B, N, H, E].
        skip: [B or 1, N or 1, H, 1].
        gate: [B, N, H E].
        weight: [H E] or None.
        first: x [B, H, 1, E] of the first token, if that of each other one is at the token before it, or None.
        eps: added to the mean square.
    """
    rows, length, heads, head = x.shape
    steps = [heads * skip[0].shape[0] if len(skip) > 1 else 0, heads if skip.shape[1] > 1 else 0]
    output, width = torch.empty_like(x), heads * head
    with torch.cuda.device_of(x):
        gated_skip_kernel[(rows, length)](
            x,
            skip,
            value,
            gate,
            x if weight is None else weight,  # never loaded without NORMS
            x if first is None else first,  # never loaded without SHIFT
            output,
            *steps,
            length,
            eps,
            WIDTH=width,
            HEAD=head,
            NORMS=weight is not None,
            SHIFT=0 if first is None else 1,
            TILE=triton.next_power_of_2(width),
        )
    return output


TURNED_TOKENS = 16
"""Tokens that one program holds in registers."""


@triton.jit
def turned_kernel(
    query: tl.tensor,
    key: tl.tensor,
    query_norm: tl.tensor,
    key_norm: tl.tensor,
    query_bias: tl.tensor,
    key_bias: tl.tensor,
    turn: tl.tensor,
    step: tl.tensor,
    starts: tl.tensor,
    query_factor: tl.tensor,
    key_factor: tl.tensor,
    query_turned: tl.tensor,
    key_turned: tl.tensor,
    products: tl.tensor,
    row_stride: tl.tensor,
    token_stride: tl.tensor,
    length: tl.tensor,
    num_blocks: tl.tensor,
    eps: tl.tensor,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    PAIRS: tl.constexpr,
    PAIR_TILE: tl.constexpr,
    REST_TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    SCALES: tl.constexpr,
) -> None:
    """Of one row and head, a block of tokens: the features of pairs, 2 c and 2 c + 1, and those after them."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pair, rest = tl.arange(0, PAIR_TILE)[None, :], 2 * PAIRS + tl.arange(0, REST_TILE)[None, :]
    is_pair, is_rest, head = pair < PAIRS, rest < KEYS, (row % HEADS) * KEYS
    w_even = tl.load(query_norm + 2 * pair, mask=is_pair, other=0.0).to(tl.float32)
    w_odd = tl.load(query_norm + 2 * pair + 1, mask=is_pair, other=0.0).to(tl.float32)
    w_rest = tl.load(query_norm + rest, mask=is_rest, other=0.0).to(tl.float32)
    u_even = tl.load(key_norm + 2 * pair, mask=is_pair, other=0.0).to(tl.float32)
    u_odd = tl.load(key_norm + 2 * pair + 1, mask=is_pair, other=0.0).to(tl.float32)
    u_rest = tl.load(key_norm + rest, mask=is_rest, other=0.0).to(tl.float32)
    c_even = tl.load(query_bias + head + 2 * pair, mask=is_pair, other=0.0).to(tl.float32)
    c_odd = tl.load(query_bias + head + 2 * pair + 1, mask=is_pair, other=0.0).to(tl.float32)
    c_rest = tl.load(query_bias + head + rest, mask=is_rest, other=0.0).to(tl.float32)
    b_even = tl.load(key_bias + head + 2 * pair, mask=is_pair, other=0.0).to(tl.float32)
    b_odd = tl.load(key_bias + head + 2 * pair + 1, mask=is_pair, other=0.0).to(tl.float32)
    b_rest = tl.load(key_bias + head + rest, mask=is_rest, other=0.0).to(tl.float32)
    angle = tl.load(starts + (row * (num_blocks + 1) + block) * PAIRS + pair, mask=is_pair, other=0.0).to(tl.float32)
    for tile in tl.range(0, BLOCK // TILE):
        position = block * BLOCK + tile * TILE + tl.arange(0, TILE)
        token = position[:, None]
        seen = token < length
        in_pairs, in_rest = seen & is_pair, seen & is_rest
        source = (row // HEADS) * row_stride + token * token_stride
        q_even = tl.load(query + source + 2 * pair, mask=in_pairs, other=0.0).to(tl.float32)
        q_odd = tl.load(query + source + 2 * pair + 1, mask=in_pairs, other=0.0).to(tl.float32)
        q_rest = tl.load(query + source + rest, mask=in_rest, other=0.0).to(tl.float32)
        k_even = tl.load(key + source + 2 * pair, mask=in_pairs, other=0.0).to(tl.float32)
        k_odd = tl.load(key + source + 2 * pair + 1, mask=in_pairs, other=0.0).to(tl.float32)
        k_rest = tl.load(key + source + rest, mask=in_rest, other=0.0).to(tl.float32)
        square = tl.reduce(q_even * q_even + q_odd * q_odd, 1, tl.standard._sum_combine)
        square += tl.reduce(q_rest * q_rest, 1, tl.standard._sum_combine)
        q_scale = tl.rsqrt(square / KEYS + eps)[:, None]
        square = tl.reduce(k_even * k_even + k_odd * k_odd, 1, tl.standard._sum_combine)
        square += tl.reduce(k_rest * k_rest, 1, tl.standard._sum_combine)
        k_scale = tl.rsqrt(square / KEYS + eps)[:, None]
        q_even, q_odd, q_rest = (
            q_even * q_scale * w_even + c_even,
            q_odd * q_scale * w_odd + c_odd,
            q_rest * q_scale * w_rest + c_rest,
        )
        k_even, k_odd, k_rest = (
            k_even * k_scale * u_even + b_even,
            k_odd * k_scale * u_odd + b_odd,
            k_rest * k_scale * u_rest + b_rest,
        )
        product = tl.reduce(q_even * k_even + q_odd * k_odd, 1, tl.standard._sum_combine)
        product += tl.reduce(q_rest * k_rest, 1, tl.standard._sum_combine)
        tl.store(products + row * length + position, product, mask=position < length)
        move = tl.load(turn + ((row // HEADS) * length + token) * PAIRS + pair, mask=in_pairs, other=0.0).to(tl.float32)
        move *= tl.load(step + row * length + token, mask=seen, other=0.0).to(tl.float32)
        turns = angle + tl.associative_scan(move, 0, tl.standard._sum_combine)
        angle += tl.reduce(move, 0, tl.standard._sum_combine)[None, :]
        cos, sin = tl.cos(turns), tl.sin(turns)
        reader = token
        if SCALES:
            factor = tl.load(query_factor + row * length + token, mask=seen, other=0.0).to(tl.float32)
            q_even, q_odd, q_rest = q_even * factor, q_odd * factor, q_rest * factor
            factor = tl.load(key_factor + row * length + token, mask=seen, other=0.0).to(tl.float32)
            k_even, k_odd, k_rest = k_even * factor, k_odd * factor, k_rest * factor
            reader = tl.where(token > 0, token - 1, length - 1)
        target = query_turned + (((row // HEADS) * length + reader) * HEADS + row % HEADS) * KEYS
        tl.store(target + 2 * pair, q_even * cos - q_odd * sin, mask=in_pairs)
        tl.store(target + 2 * pair + 1, q_even * sin + q_odd * cos, mask=in_pairs)
        tl.store(target + rest, q_rest, mask=in_rest)
        target = key_turned + (((row // HEADS) * length + token) * HEADS + row % HEADS) * KEYS
        tl.store(target + 2 * pair, k_even * cos - k_odd * sin, mask=in_pairs)
        tl.store(target + 2 * pair + 1, k_even * sin + k_odd * cos, mask=in_pairs)
        tl.store(target + rest, k_rest, mask=in_rest)


def turned(
    query: Tensor,
    key: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    query_bias: Tensor,
    key_bias: Tensor,
    turn: Tensor,
    step: Tensor,
    starts: Tensor,
    query_factor: Tensor | None,
    key_factor: Tensor | None,
    *,
    eps: float,
    block: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize queries and keys, add biases of all heads, turn both, and multiply them, in float32.

    Args:
        query, key: [B, N, K], with equal strides.
        query_norm, key_norm: [K].
        query_bias, key_bias: [H, 1, K].
        turn: [B, N, R], of the first R pairs of features.
        step: [B, H, N].
        starts: angles [B, H, J + 1, R] before each of J blocks, and after the last one.
        query_factor, key_factor: [B, H, N], or None; with factors, queries move by one token, the first to the end.
        eps: added to the mean squares.
        block: tokens of a block, a multiple of TURNED_TOKENS.

    Returns:
        Queries and keys [B, N, H, K] in the dtype of ``query``, and the products without factors, float32 [B, H, N].
    """
    (rows, length, keys), heads, pairs = query.shape, len(query_bias), turn.shape[2]
    outputs = [query.new_empty(rows, length, heads, keys) for _ in range(2)]
    products = query.new_empty(rows, heads, length, dtype=torch.float32)
    num_blocks = starts.shape[2] - 1
    with torch.cuda.device_of(query):
        turned_kernel[(rows * heads, num_blocks)](
            query,
            key,
            query_norm,
            key_norm,
            query_bias.contiguous(),
            key_bias.contiguous(),
            turn,
            step,
            starts,
            step if query_factor is None else query_factor,  # never loaded without SCALES
            step if key_factor is None else key_factor,
            *outputs,
            products,
            *query.stride()[:2],
            length,
            num_blocks,
            eps,
            HEADS=heads,
            KEYS=keys,
            PAIRS=pairs,
            PAIR_TILE=triton.next_power_of_2(pairs),
            REST_TILE=triton.next_power_of_2(max(keys - 2 * pairs, 1)),
            BLOCK=block,
            TILE=TURNED_TOKENS,
            SCALES=query_factor is not None,
        )
    return outputs[0], outputs[1], products
