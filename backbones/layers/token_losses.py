"""Cross-entropy over a large vocabulary without materializing all logits, forward or backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

AT_ONCE = 2**25
"""Logits in memory at once, in up to three copies: 128 MiB each in float32."""


def token_losses(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return -log softmax(W x + b)[target] for each vector, at least in float32.

    Vectors are processed in chunks whose logits are recomputed in the backward pass. Under autocast, products use the
    autocast dtype, and the gradients of W and b accumulate in their own dtype.

    Args:
        x: [..., D].
        weight: W [V, D].
        bias: b [V] or None.
        targets: [...], below V.

    Returns:
        [...].
    """
    return _TokenLosses.apply(x.flatten(0, -2), weight, bias, targets.flatten()).view(targets.shape)


class _TokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        log_sum = x.new_empty(len(x), dtype=_wide(x.dtype))
        chosen = torch.empty_like(log_sum)
        with torch.autocast(device, enabled=False):
            maps = _in_type(dtype, weight, bias)
            for piece in _pieces(x, weight):
                logits = _logits(x[piece], *maps)
                log_sum[piece] = logits.logsumexp(dim=-1)
                chosen[piece] = logits.gather(-1, targets[piece].unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(x, weight, bias, targets, log_sum)
        ctx.dtype = dtype
        return log_sum - chosen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, targets, log_sum = ctx.saved_tensors
        d_x, d_weight = torch.empty_like(x), torch.zeros_like(weight)
        d_bias = None if bias is None else torch.zeros_like(bias)
        with torch.autocast(x.device.type, enabled=False):
            maps = _in_type(ctx.dtype, weight, bias)
            for piece in _pieces(x, weight):
                g = grad[piece].unsqueeze(-1)
                d_logits = _logits(x[piece], *maps).sub_(log_sum[piece].unsqueeze(-1)).exp_().mul_(g)
                d_logits.scatter_add_(-1, targets[piece].unsqueeze(-1), -g)
                if d_bias is not None:
                    d_bias += d_logits.sum(dim=0)
                low = d_logits.to(ctx.dtype)
                d_x[piece] = low @ maps[0]
                d_weight += low.T @ x[piece].to(ctx.dtype)
        return d_x, d_weight, d_bias, None


def _pieces(x: Tensor, weight: Tensor) -> Iterator[slice]:
    size = max(1, AT_ONCE // len(weight))
    return (slice(begin, begin + size) for begin in range(0, len(x), size))


def _in_type(dtype: torch.dtype, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return weight.to(dtype), None if bias is None else bias.to(dtype)


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x.to(weight.dtype), weight, bias).to(_wide(weight.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
