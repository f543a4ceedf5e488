"""Softmax over what is seen, and the gradient of softmax in one pass over its tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from attentions.kernels.precision import no_weight


def softmax_gradient(weights: Tensor, grad: Tensor, dim: int = -1) -> Tensor:
    """weights (grad - sum of weights grad): from the gradient of the weights to that of their logits.

    By torch's own operator, which is not public: the formula in public ones takes three passes and a temporary.
    """
    return torch.ops.aten._softmax_backward_data(grad, weights, dim, weights.dtype)


def softmax_of_seen(logits: Tensor, unseen: Tensor | None) -> Tensor:
    """Over the last dimension, zero where ``unseen`` (bool, broadcast; None for nothing), even where all is."""
    if unseen is None:
        return logits.softmax(dim=-1)
    return logits.masked_fill(unseen, no_weight(logits.dtype)).softmax(dim=-1).masked_fill(unseen, 0.0)
