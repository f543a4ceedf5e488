"""Batch normalization over the batch of all processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class SumOverProcesses(torch.autograd.Function):
    """Sum over processes. The loss of each process depends on all terms, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class GlobalBatchNorm1d(nn.BatchNorm1d):
    """Batch normalization with the statistics of the batch of all processes, on any device.

    A step in several processes then equals a step in one. (``torch.nn.SyncBatchNorm`` supports GPUs only.)
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not dist.is_initialized():
            return super().forward(x)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        wide = x.float()
        count = torch.full_like(wide[0, :, ...].flatten()[:1], x.numel() / x.shape[1])
        sums = torch.cat([count, wide.sum(dim=axes), wide.square().sum(dim=axes)])
        count, total, squares = SumOverProcesses.apply(sums).split([1, x.shape[1], x.shape[1]])
        mean = total / count
        variance = (squares / count - mean.square()).clamp(min=0.0)
        with torch.no_grad():
            self._update_running_statistics(mean, variance * count / (count - 1).clamp(min=1.0))
        shape = [1, -1] + [1] * (x.ndim - 2)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (wide * scale.view(shape) + (self.bias - mean * scale).view(shape)).to(x.dtype)

    def _update_running_statistics(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance, momentum)


def convert_batch_norms(module: nn.Module) -> None:
    """Convert every BatchNorm1d to :class:`GlobalBatchNorm1d` in place, with the same parameters and names."""
    for child in module.modules():
        if type(child) is nn.BatchNorm1d:
            child.__class__ = GlobalBatchNorm1d
