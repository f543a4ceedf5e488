"""Precision, masked softmax, and recomputation in the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return ``dtype``, or float32 if that is wider."""
    return torch.promote_types(dtype, torch.float32)


def upcast(x: Tensor) -> Tensor:
    """Return ``x`` in float32 or wider."""
    return x.to(accumulation_dtype(x.dtype))


def as_factor(x: Tensor) -> Tensor:
    """Return ``x`` in float32 or wider, or in bfloat16 on a GPU, whose sums of products of bfloat16 are in float32."""
    return x if x.is_cuda and x.dtype is torch.bfloat16 else upcast(x)


def mask_value(dtype: torch.dtype = torch.float32) -> float:
    """Return the logit of a hidden key. It is finite, so that sums and differences of a few of them are not NaN."""
    return max(-1e30, torch.finfo(dtype).min / 4)


def softmax_gradient(weights: Tensor, grad: Tensor, dim: int = -1) -> Tensor:
    """Return weights (grad - sum of weights grad), the gradient of the logits from that of the weights.

    This uses a private operator of torch: the formula in public operators takes three passes and a temporary.
    """
    return torch.ops.aten._softmax_backward_data(grad, weights, dim, weights.dtype)


def masked_softmax(logits: Tensor, masked: Tensor | None) -> Tensor:
    """Return the softmax over the last dimension, zero where ``masked`` (bool, broadcast), even where that is all."""
    if masked is None:
        return logits.softmax(dim=-1)
    return logits.masked_fill(masked, mask_value(logits.dtype)).softmax(dim=-1).masked_fill(masked, 0.0)


def attention_weights(logits: Tensor, hidden: Tensor | None, dropout: float) -> Tensor:
    """Return the softmax over the last dimension, zero where ``hidden``, or equal weights where all keys are hidden."""
    if hidden is not None:
        logits = logits.masked_fill(hidden, mask_value(logits.dtype))
    return F.dropout(logits.softmax(dim=-1), dropout)


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Make a second derivative through ``backward`` an error, as it has no derivative of its own.

    The decorator of torch raises only where the incoming gradient requires a gradient, and does not connect its error
    with the inputs: a second derivative with respect to them is then zero, without an error.
    """

    @functools.wraps(backward)
    def refusing(ctx: Any, *output_gradients: Tensor) -> Any:
        if not torch.is_grad_enabled():
            return backward(ctx, *output_gradients)
        with torch.no_grad():
            results = backward(ctx, *output_gradients)
        origins = [x for x in (*output_gradients, *ctx.saved_tensors) if x is not None and x.requires_grad]
        return tuple(None if x is None else _Refusal.apply(x, *origins) for x in results)

    return refusing


class _Refusal(torch.autograd.Function):
    """The identity of its first input, whose derivative raises."""

    @staticmethod
    def forward(_ctx: Any, gradient: Tensor, *_origins: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(_ctx: Any, *_gradients: Tensor) -> Any:
        raise RuntimeError("this attention has no second derivative: its gradient is written by hand")


def recompute(function: Callable[..., Any], *arguments: Any, draws: bool = False) -> Any:
    """Return ``function(*arguments)`` and compute its activations again in the backward pass instead of storing them.

    Args:
        function: differentiable by autograd.
        arguments: its positional arguments.
        draws: whether the function draws random numbers, which the second computation has to repeat.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=draws)


def recompute_upcast(function: Callable[..., Tensor], chunk: Sequence[Tensor], dropout: float = 0.0) -> Tensor:
    """Recompute ``function(*chunk)`` in float32 or wider, and return it in the dtype of the first input."""

    def compute(*x: Tensor) -> Tensor:
        return function(*(upcast(part) if part.is_floating_point() else part for part in x)).to(chunk[0].dtype)

    output: Tensor = recompute(compute, *chunk, draws=dropout > 0.0)
    return output
