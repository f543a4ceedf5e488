"""Chunked delta rule over blocks of tokens: u_j = x_j + r_j S_j,  S_(j+1) = f_j S_j + l_j^T u_j.

On a GPU with Triton the recurrence over blocks is one kernel, otherwise one step per block. The gradient is the same
recurrence in reverse with r and l exchanged, so the kernel is also its own backward pass.

Shapes: B batch, H heads, J blocks, C rows of a block, K and V widths of a state.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from attentions.kernels.common.operator import differentiable_operator
from attentions.kernels.common.precision import accumulation_dtype
from attentions.kernels.recurrences import gated_linear_recurrence

WIDEST = 512
"""Largest number of rows K of a state for which the kernel has room."""


def delta_rule_chunked(
    first: Tensor, own: Tensor, read: Tensor, late: Tensor, factor: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return u of every block [B, H, J, C, V], the states before them [B, H, J, K, V], and the last state.

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
    """Return whether the Triton kernel computes the states that ``read`` [B, H, J, C, K] reads.

    It does not under a dispatch mode, such as an operation counter, which does not see the products in a kernel.
    """
    return gated_linear_recurrence.is_fused(read) and read.shape[-1] <= WIDEST and not is_in_torch_dispatch_mode(False)


def _states(
    first: Tensor, own: Tensor, read: Tensor, late: Tensor, factor: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    from attentions.kernels.recurrences.delta_rule_chunked_triton import walk

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
    """Return the gradients, from the reverse recurrence over the gradients of x and of the state after each block."""
    from attentions.kernels.recurrences.delta_rule_chunked_triton import walk

    d_own, d_after, d_first = walk(d_last, d_written, late, read, factor, added=d_before, backwards=True)
    gradients = [d_first.to(first.dtype), d_own.to(own.dtype), d_own @ before.mT, written @ d_after.mT]
    if factor is not None:
        kept = [dim for dim in (-2, -1) if factor.shape[dim] == 1]
        products = d_after.to(accumulation_dtype(d_after.dtype)) * before
        gradients.append(products.sum(dim=kept, keepdim=True).to(factor.dtype))
    return gradients


def _shapes(
    first: Tensor, own: Tensor, read: Tensor, _late: Tensor, _factor: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(own), first.new_empty(*read.shape[:3], *first.shape[2:]), torch.empty_like(first)


_fused = differentiable_operator(
    "delta_rule_chunked",
    _states,
    _states_backward,
    shapes=_shapes,
    gradients=("first", "own", "read", "late", "factor"),
    keeps=(0, 1),
)
