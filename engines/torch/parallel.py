"""One process, or several that share a training step with DDP or FSDP and have one batch normalization."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from cab.backbone import Backbone
from cab.errors import UserError
from cab.runner.processes import Processes


class SingleProcess:
    """The work of a step in one process; :class:`Distributed` shares it among several.

    ``run.processes`` only has their ranks and number.
    """

    is_sharded = False
    """Whether each process has a part of the weights."""

    def prepare_network(self, backbone: Backbone, device: torch.device) -> Backbone:
        """Return the network to train, on its device: the backbone itself, or a sharded copy."""
        return backbone.to(device)

    def prepare_objective(self, objective: nn.Module, leaves_unused: Callable[[], bool]) -> nn.Module:  # noqa: ARG002
        """Return the objective as each process calls it.

        Args:
            leaves_unused: returns whether its first step gives no gradient to a parameter.
        """
        return objective

    def micro_batch(self, objective: nn.Module, *, is_last: bool) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Enclose forward and backward of one micro-batch; gradients are exchanged after the last one of a step."""
        return contextlib.nullcontext()

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over processes."""
        return values

    def mean(self, value: float) -> float:
        """Return the mean over processes."""
        return value

    def max(self, value: float) -> float:
        """Return the maximum over processes."""
        return value

    def broadcast(self, value: float) -> float:
        """Return the value of the first process."""
        return value

    def broadcast_weights(self, network: nn.Module) -> None:
        """Replace the weights of all processes with those of the first."""


class Distributed(SingleProcess):
    """A run started by torchrun or srun: each process holds the whole network (DDP) or shards of it (FSDP)."""

    def __init__(self, processes: Processes, strategy: str, device: torch.device) -> None:
        self._processes = processes
        self._device = device
        self.is_sharded = strategy == "fsdp"
        processes.connect(device)

    def prepare_network(self, backbone: Backbone, device: torch.device) -> Backbone:
        network = (copy.deepcopy(backbone) if self.is_sharded else backbone).to(device)
        convert_batch_norms(network)
        if self.is_sharded:
            shard(network, init_device_mesh(device.type, (self._processes.count,)))
        return network

    def prepare_objective(self, objective: nn.Module, leaves_unused: Callable[[], bool]) -> nn.Module:
        if self.is_sharded:
            return objective
        devices = [self._device] if self._device.type == "cuda" else None
        declared = any(getattr(module, "unused_parameters", ()) for module in objective.modules())
        # The search costs time in every step; PoinTr and Informer have weights that some configurations do not use.
        searches = bool(self.max(declared or leaves_unused()))
        return nn.parallel.DistributedDataParallel(
            objective, device_ids=devices, find_unused_parameters=searches, gradient_as_bucket_view=True
        )

    @contextlib.contextmanager
    def micro_batch(self, objective: nn.Module, *, is_last: bool) -> Iterator[None]:
        shares_gradients = is_last or self.is_sharded
        try:
            with contextlib.nullcontext() if shares_gradients else objective.no_sync():  # type: ignore[operator]
                yield
        except RuntimeError as error:
            if "find_unused_parameters" not in str(error):
                raise
            raise UserError(
                "in some steps, a parameter has no gradient; name those parameters in the class, as in "
                "unused_parameters = ('gate.',)"
            ) from error

    def sum(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    def mean(self, value: float) -> float:
        return self._reduce(value, dist.ReduceOp.SUM) / self._processes.count

    def max(self, value: float) -> float:
        return self._reduce(value, dist.ReduceOp.MAX)

    def broadcast(self, value: float) -> float:
        return self._reduce(value if self._processes.is_first else 0.0, dist.ReduceOp.SUM)

    def broadcast_weights(self, network: nn.Module) -> None:
        for weights in network.state_dict().values():
            contiguous = weights.contiguous()
            dist.broadcast(contiguous, 0)
            weights.copy_(contiguous)

    def _reduce(self, value: float, operation: Any) -> float:
        shared = torch.tensor(value, dtype=torch.float64, device=self._device)
        dist.all_reduce(shared, operation)
        return float(shared)


def shard(network: nn.Module, mesh: Any) -> None:
    """Shard weights, and with them gradients and optimizer, layer by layer (FSDP2)."""
    from torch.distributed.fsdp import fully_shard  # imports torch's compiler: three seconds

    for layers in [module for module in network.modules() if isinstance(module, nn.ModuleList)]:
        for layer in layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)


class SumOverProcesses(torch.autograd.Function):
    """Sum of a tensor over all processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Any:
        return SumOverProcesses.apply(gradient)


class GlobalBatchNorm1d(nn.BatchNorm1d):
    """Batch normalization with the statistics of the batch of all processes, on any device.

    A step in several processes then equals a step in one. (``torch.nn.SyncBatchNorm`` supports GPUs only.)
    """

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Normalize [B, C] or [B, C, N]; the statistics exclude the padding [B, N]."""
        if not self.training or not dist.is_initialized():
            return super().forward(x)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        wide = x.double()  # the variance is a difference of large numbers away from 0
        count = wide.new_tensor([x.numel() / x.shape[1]])
        if padding_mask is not None:
            wide, count = wide.masked_fill(padding_mask.unsqueeze(1), 0.0), (~padding_mask).sum().double().view(1)
        sums = torch.cat([count, wide.sum(dim=axes), wide.square().sum(dim=axes)])
        count, total, squares = SumOverProcesses.apply(sums).split([1, x.shape[1], x.shape[1]])
        mean = total / count
        variance = (squares / count - mean.square()).clamp(min=0.0)
        with torch.no_grad():
            unbiased = variance * count / (count - 1).clamp(min=1.0)
            self.num_batches_tracked += 1  # type: ignore[operator, assignment]
            self.running_mean.lerp_(mean.float(), self.momentum)  # type: ignore[union-attr, arg-type]
            self.running_var.lerp_(unbiased.float(), self.momentum)  # type: ignore[union-attr, arg-type]
        shape = [1, -1] + [1] * (x.ndim - 2)
        mean, variance, wide = mean.float(), variance.float(), x.float()
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (wide * scale.view(shape) + (self.bias - mean * scale).view(shape)).to(x.dtype)


def convert_batch_norms(module: nn.Module) -> None:
    """Convert every BatchNorm1d to :class:`GlobalBatchNorm1d` in place, with the same parameters and names."""
    for child in module.modules():
        if isinstance(child, nn.BatchNorm1d):
            child.__class__ = GlobalBatchNorm1d
