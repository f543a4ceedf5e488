"""Gated linear recurrence over the writes of blocks: s_(j+1) = f_j s_j + a_j.

On a GPU with Triton (CUDA builds of torch include it) this is one kernel, otherwise one step per block. The gradient is
the same recurrence in reverse, so the kernel is also its own backward pass.

Shapes: B batch, H heads, J blocks, K and V widths of a state.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from attentions.kernels.common.operator import differentiable_operator
from attentions.kernels.common.precision import accumulation_dtype

HAS_TRITON = find_spec("triton") is not None
FUSED_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def gated_linear_recurrence(first: Tensor, added: Tensor, factor: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the states before each block [B, H, J, K, V], and the state after the last block [B, H, K, V].

    Args:
        first: s before the first block, [B, H, K, V].
        added: a, [B, H, J, K, V].
        factor: f of each row of a state [B or 1, H, J, K, 1], of the whole state [B or 1, H, J, 1, 1], or None for 1.
    """
    if is_fused(added):
        return _apply(first, added, factor)
    sums = _one_by_one(first, added, factor)
    return torch.stack(sums[:-1], dim=2), sums[-1]


def recurrence_states(first: Tensor, added: Tensor, factor: Tensor) -> Tensor:
    """Return the states before each block and after the last one in one tensor, [B, H, J + 1, K, V]."""
    if is_fused(added):
        before, last = _apply(first, added, factor)
        return torch.cat([before, last.unsqueeze(2)], dim=2)
    return torch.stack(_one_by_one(first, added, factor), dim=2)


def _one_by_one(first: Tensor, added: Tensor, factor: Tensor | None) -> list[Tensor]:
    sums = [first]
    factors = [None] * added.shape[2] if factor is None else factor.unbind(dim=2)
    for one, decay in zip(added.unbind(dim=2), factors, strict=True):
        sums.append(one + sums[-1] if decay is None else torch.addcmul(one, decay, sums[-1]))
    return sums


def is_fused(x: Tensor) -> bool:
    """Return whether the Triton kernel computes the recurrence of ``x``."""
    return x.is_cuda and x.dtype in FUSED_TYPES and HAS_TRITON


def _apply(first: Tensor, added: Tensor, factor: Tensor | None) -> tuple[Tensor, Tensor]:
    if factor is not None:
        factor = factor.expand(*added.shape[:3], -1, -1).contiguous()
    return _fused(first.contiguous(), added.contiguous(), factor)  # as the compiler assumes of the gradients


def _sums(first: Tensor, added: Tensor, factor: Tensor | None) -> tuple[Tensor, Tensor]:
    from attentions.kernels.recurrences.gated_linear_recurrence_triton import scan

    return scan(first, added, factor, backwards=False)


def _sums_backward(
    d_before: Tensor, d_last: Tensor, first: Tensor, added: Tensor, factor: Tensor | None, before: Tensor
) -> list[Tensor]:
    """Return the gradients; that of a block's write is the gradient of the state after it."""
    from attentions.kernels.recurrences.gated_linear_recurrence_triton import scan

    d_added, d_first = scan(d_last, d_before, factor, backwards=True)
    gradients = [d_first.to(first.dtype), d_added.to(added.dtype)]
    if factor is not None:
        kept = [dim for dim in (-2, -1) if factor.shape[dim] == 1]
        products = d_added.to(accumulation_dtype(d_added.dtype)) * before
        gradients.append(products.sum(dim=kept, keepdim=True).to(factor.dtype))
    return gradients


def _shapes(first: Tensor, added: Tensor, _factor: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(added), torch.empty_like(first)


_fused = differentiable_operator(
    "gated_linear_recurrence", _sums, _sums_backward, shapes=_shapes, gradients=("first", "added", "factor"), keeps=(0,)
)
