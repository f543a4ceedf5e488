"""States that blocks of tokens read, and write corrections to: u_j = x_j + r_j S_j,  S_(j+1) = f_j S_j + l_j^T u_j.

On a GPU the walk over the blocks is one Triton kernel where Triton is installed, else a step a block. The gradient is
the same walk in the other direction, r and l in each other's place, so the kernel is its own backward pass.

Shapes: B batch, H heads, J blocks, C rows of a block, K and V widths of a state.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from attentions.kernels import decayed_sums
from attentions.kernels.operator import differentiable_operator
from attentions.kernels.precision import wide_dtype

WIDEST = 512
"""Rows K of a state of which the kernel has room for some columns."""


def corrected_states(
    first: Tensor, own: Tensor, read: Tensor, late: Tensor, factor: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """u of every block [B, H, J, C, V], the states before them [B, H, J, K, V], and the one after the last.

    Args:
        first: S before the first block, [B, H, K, V].
        own: x [B, H, J, C, V].
        read, late: r and l [B, H, J, C, K].
        factor: f of each row of a state [B or 1, H, J, K, 1], of the whole state [B or 1, H, J, 1, 1], or None for 1.
    """
    if is_fused(read):
        if factor is not None:
            factor = factor.expand(*own.shape[:3], -1, -1).contiguous()
        return _fused(*(x.contiguous() for x in (first, own, read, late)), factor)
    written, states = [], [first]
    factors = [None] * own.shape[2] if factor is None else factor.unbind(dim=2)
    for x, r, rows, decay in zip(own.unbind(2), read.unbind(2), late.unbind(2), factors, strict=True):
        before = states[-1]
        written.append(x + r @ before)
        states.append((before if decay is None else decay * before) + rows.mT @ written[-1])
    return torch.stack(written, dim=2), torch.stack(states[:-1], dim=2), states[-1]


def is_fused(read: Tensor) -> bool:
    """Whether states that ``read`` [B, H, J, C, K] reads are formed by the kernel.

    Not where operators are looked at one by one, as where they are counted: its products are none.
    """
    return decayed_sums.is_fused(read) and read.shape[-1] <= WIDEST and not is_in_torch_dispatch_mode(False)


def _states(
    first: Tensor, own: Tensor, read: Tensor, late: Tensor, factor: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    from attentions.kernels.corrected_states_triton import walk

    return walk(first, own, read, late, factor)


def _states_backward(
    d_written: Tensor,
    d_before: Tensor,
    d_last: Tensor,
    first: Tensor,
    own: Tensor,
    read: Tensor,
    late: Tensor,
    factor: Tensor | None,
    written: Tensor,
    before: Tensor,
) -> list[Tensor]:
    """Walked from the last block on, the gradients of x and of the state after each block; from these all others."""
    from attentions.kernels.corrected_states_triton import walk

    d_own, d_after, d_first = walk(d_last, d_written, late, read, factor, added=d_before, backwards=True)
    gradients = [d_first.to(first.dtype), d_own.to(own.dtype), d_own @ before.mT, written @ d_after.mT]
    if factor is not None:
        kept = [dim for dim in (-2, -1) if factor.shape[dim] == 1]
        products = d_after.to(wide_dtype(d_after.dtype)) * before
        gradients.append(products.sum(dim=kept, keepdim=True).to(factor.dtype))
    return gradients


def _shapes(
    first: Tensor, own: Tensor, read: Tensor, _late: Tensor, _factor: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(own), first.new_empty(*read.shape[:3], *first.shape[2:]), torch.empty_like(first)


_fused = differentiable_operator(
    "corrected_states",
    _states,
    _states_backward,
    shapes=_shapes,
    gradients=("first", "own", "read", "late", "factor"),
    keeps=(0, 1),
)
