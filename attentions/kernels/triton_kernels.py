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
    output: tl.tensor,
    row_skips: tl.tensor,
    token_skips: tl.tensor,
    length: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    HEAD: tl.constexpr,
    NORMS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Of one token; the factors of its heads are ``row_skips`` and ``token_skips`` numbers after each other."""
    row, token = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, TILE)
    inside, start = column < WIDTH, (row * length + token) * WIDTH
    factor = tl.load(skip + row * row_skips + token * token_skips + column // HEAD, mask=inside, other=0.0).to(
        tl.float32
    )
    v = tl.load(value + start + column, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gate + start + column, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(x + start + column, mask=inside, other=0.0).to(tl.float32)
    y = (y + factor * v) * g / (1.0 + tl.exp(-g))
    if NORMS:
        y *= tl.rsqrt(tl.reduce(y * y, 0, tl.standard._sum_combine) / WIDTH + eps)
        y *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + start + column, y, mask=inside)


def gated_skip(x: Tensor, skip: Tensor, value: Tensor, gate: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Compute (x + skip value) silu(gate), and with ``weight`` its RMS norm over a token, in float32.

    Args:
        x, value: [B, N, H, E].
        skip: [B or 1, N or 1, H, 1].
        gate: [B, N, H E].
        weight: [H E] or None.
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
            output,
            *steps,
            length,
            eps,
            WIDTH=width,
            HEAD=head,
            NORMS=weight is not None,
            TILE=triton.next_power_of_2(width),
        )
    return output


TURNED_TOKENS = 16
"""Tokens of one program."""


@triton.jit
def turned_kernel(
    query: tl.tensor,
    key: tl.tensor,
    query_bias: tl.tensor,
    key_bias: tl.tensor,
    angle: tl.tensor,
    query_turned: tl.tensor,
    key_turned: tl.tensor,
    products: tl.tensor,
    length: tl.tensor,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    PAIRS: tl.constexpr,
    PAIR_TILE: tl.constexpr,
    REST_TILE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Of one row and head, ``TILE`` tokens: the features of pairs, 2 c and 2 c + 1, and those after them."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)[:, None]
    pair, rest = tl.arange(0, PAIR_TILE)[None, :], 2 * PAIRS + tl.arange(0, REST_TILE)[None, :]
    seen = token < length
    in_pairs, in_rest = seen & (pair < PAIRS), seen & (rest < KEYS)
    source = ((row // HEADS) * length + token) * KEYS
    target = (((row // HEADS) * length + token) * HEADS + row % HEADS) * KEYS
    biases = (row % HEADS) * KEYS
    turn = tl.load(angle + (row * length + token) * PAIRS + pair, mask=in_pairs, other=0.0).to(tl.float32)
    cos, sin = tl.cos(turn), tl.sin(turn)
    q_even = tl.load(query + source + 2 * pair, mask=in_pairs, other=0.0).to(tl.float32)
    q_even += tl.load(query_bias + biases + 2 * pair, mask=pair < PAIRS, other=0.0).to(tl.float32)
    q_odd = tl.load(query + source + 2 * pair + 1, mask=in_pairs, other=0.0).to(tl.float32)
    q_odd += tl.load(query_bias + biases + 2 * pair + 1, mask=pair < PAIRS, other=0.0).to(tl.float32)
    q_rest = tl.load(query + source + rest, mask=in_rest, other=0.0).to(tl.float32)
    q_rest += tl.load(query_bias + biases + rest, mask=rest < KEYS, other=0.0).to(tl.float32)
    k_even = tl.load(key + source + 2 * pair, mask=in_pairs, other=0.0).to(tl.float32)
    k_even += tl.load(key_bias + biases + 2 * pair, mask=pair < PAIRS, other=0.0).to(tl.float32)
    k_odd = tl.load(key + source + 2 * pair + 1, mask=in_pairs, other=0.0).to(tl.float32)
    k_odd += tl.load(key_bias + biases + 2 * pair + 1, mask=pair < PAIRS, other=0.0).to(tl.float32)
    k_rest = tl.load(key + source + rest, mask=in_rest, other=0.0).to(tl.float32)
    k_rest += tl.load(key_bias + biases + rest, mask=rest < KEYS, other=0.0).to(tl.float32)
    tl.store(query_turned + target + 2 * pair, q_even * cos - q_odd * sin, mask=in_pairs)
    tl.store(query_turned + target + 2 * pair + 1, q_even * sin + q_odd * cos, mask=in_pairs)
    tl.store(query_turned + target + rest, q_rest, mask=in_rest)
    tl.store(key_turned + target + 2 * pair, k_even * cos - k_odd * sin, mask=in_pairs)
    tl.store(key_turned + target + 2 * pair + 1, k_even * sin + k_odd * cos, mask=in_pairs)
    tl.store(key_turned + target + rest, k_rest, mask=in_rest)
    product = tl.reduce(q_even * k_even + q_odd * k_odd, 1, tl.standard._sum_combine)
    product += tl.reduce(q_rest * k_rest, 1, tl.standard._sum_combine)
    position = tl.program_id(1) * TILE + tl.arange(0, TILE)
    tl.store(products + row * length + position, product, mask=position < length)


def turned(
    query: Tensor, key: Tensor, query_bias: Tensor, key_bias: Tensor, angle: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Add biases to queries and keys of all heads, turn both, and multiply them, in float32.

    Args:
        query, key: [B, N, K].
        query_bias, key_bias: [H, K].
        angle: of the first R pairs of features, [B, H, N, R].

    Returns:
        Queries and keys [B, N, H, K] in the dtype of ``query``, and their products, float32 [B, H, N].
    """
    (rows, length, keys), heads, pairs = query.shape, len(query_bias), angle.shape[3]
    outputs = [query.new_empty(rows, length, heads, keys) for _ in range(2)]
    products = query.new_empty(rows, heads, length, dtype=torch.float32)
    with torch.cuda.device_of(query):
        turned_kernel[(rows * heads, triton.cdiv(length, TURNED_TOKENS))](
            query,
            key,
            query_bias,
            key_bias,
            angle,
            *outputs,
            products,
            length,
            HEADS=heads,
            KEYS=keys,
            PAIRS=pairs,
            PAIR_TILE=triton.next_power_of_2(pairs),
            REST_TILE=triton.next_power_of_2(max(keys - 2 * pairs, 1)),
            TILE=TURNED_TOKENS,
        )
    return outputs[0], outputs[1], products
