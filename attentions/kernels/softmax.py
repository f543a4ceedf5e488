"""The gradient of softmax, in one pass over its tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax_gradient(weights: Tensor, grad: Tensor, dim: int = -1) -> Tensor:
    """weights (grad - sum of weights grad): from the gradient of the weights to that of their logits.

    By torch's own operator, which is not public: the formula in public ones takes three passes and a temporary.
    """
    return torch.ops.aten._softmax_backward_data(grad, weights, dim, weights.dtype)
