"""Masked softmax, and the gradient of softmax in one pass over its tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from attentions.kernels.common.precision import neg_inf


def softmax_gradient(weights: Tensor, grad: Tensor, dim: int = -1) -> Tensor:
    """Return weights (grad - sum of weights grad), the gradient of the logits from that of the weights.

    This uses a private operator of torch: the formula in public operators takes three passes and a temporary.
    """
    return torch.ops.aten._softmax_backward_data(grad, weights, dim, weights.dtype)


def masked_softmax(logits: Tensor, unseen: Tensor | None) -> Tensor:
    """Return the softmax over the last dimension, zero where ``unseen`` (bool, broadcast), even where that is all."""
    if unseen is None:
        return logits.softmax(dim=-1)
    return logits.masked_fill(unseen, neg_inf(logits.dtype)).softmax(dim=-1).masked_fill(unseen, 0.0)
