"""Means over all positions, weighted by a softmax of a linear map of the averaged vectors (the memory of ABC).

Shapes: B batch, H heads, M keys, E width of a head, r means.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attentions.kernels.common.precision import neg_inf


class WeightedMeans(torch.autograd.Function):
    """Compute softmax over positions of (x weight), transposed, times x: [B, H, M, E] to [B, H, r, E].

    The hand-written backward pass recomputes the weights and forms both gradients of x in one product
    (results/efficiency/kernel_gains.csv lists what that gains).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: Tensor | None) -> Tensor:
        logits = weight.T @ x.transpose(-2, -1)
        if padding is not None:
            logits.masked_fill_(padding[:, None, None], neg_inf())
        mass = logits.logsumexp(dim=-1, keepdim=True)
        mean = logits.sub_(mass).exp_() @ x
        if padding is not None:
            mean.masked_fill_(padding.all(dim=1)[:, None, None, None], 0.0)
        ctx.save_for_backward(x, weight, padding, mass, mean)
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, padding, mass, mean = ctx.saved_tensors
        if padding is not None:
            grad = grad.masked_fill(padding.all(dim=1)[:, None, None, None], 0.0)
        columns = weight.T.expand_as(grad)
        both = torch.cat([columns, grad], dim=-2) @ x.transpose(-2, -1)
        weights, logits_grad = both.chunk(2, dim=-2)
        if padding is not None:
            weights.masked_fill_(padding[:, None, None], neg_inf())
        weights.sub_(mass).exp_()
        logits_grad.sub_((grad * mean).sum(dim=-1, keepdim=True)).mul_(weights)
        x_grad = both.transpose(-2, -1) @ torch.cat([grad, columns], dim=-2)
        return x_grad, (logits_grad @ x).sum(dim=(0, 1)).T, None
