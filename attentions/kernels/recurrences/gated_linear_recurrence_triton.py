"""Triton kernel of ``gated_linear_recurrence``. Elements of a state are independent, so each program handles some."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from attentions.kernels.common.precision import accumulation_dtype

TILE, WARPS = 256, 2
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
    given = added if factor is None else factor.contiguous()  # of no factor nothing is read
    with torch.cuda.device_of(added):
        recurrence_kernel[(num_rows, triton.cdiv(size, TILE))](
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
            TILE=TILE,
            num_warps=WARPS,
        )
    return before, last
