"""Masked softmax, and the gradient of softmax in one pass over its tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.common.precision import neg_inf


def softmax_gradient(weights: Tensor, grad: Tensor, dim: int = -1) -> Tensor:
    """Return weights (grad - sum of weights grad), the gradient of the logits from that of the weights.

    This uses a private operator of torch: the formula in public operators takes three passes and a temporary.
    """
    return torch.ops.aten._softmax_backward_data(grad, weights, dim, weights.dtype)


def masked_softmax(logits: Tensor, masked: Tensor | None) -> Tensor:
    """Return the softmax over the last dimension, zero where ``masked`` (bool, broadcast), even where that is all."""
    if masked is None:
        return logits.softmax(dim=-1)
    return logits.masked_fill(masked, neg_inf(logits.dtype)).softmax(dim=-1).masked_fill(masked, 0.0)


def attention_weights(logits: Tensor, hidden: Tensor | None, dropout: float) -> Tensor:
    """Return the softmax over the last dimension, zero where ``hidden``, or equal weights where all keys are hidden."""
    if hidden is not None:
        logits = logits.masked_fill(hidden, neg_inf(logits.dtype))
    return F.dropout(logits.softmax(dim=-1), dropout)
