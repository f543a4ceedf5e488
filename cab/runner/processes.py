"""One cell on several processes, started by torchrun or srun: their ranks, strategies, and what they must agree on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from cab.backbone import Backbone
from cab.errors import UserError


@dataclass(frozen=True)
class Processes:
    """The processes of this run. A process that nobody started together with others is alone."""

    rank: int = 0
    count: int = 1
    on_this_machine: int = 1

    @property
    def machines(self) -> int:
        return self.count // self.on_this_machine

    @property
    def is_first(self) -> bool:
        """Whether this one evaluates, writes the record and holds the folder."""
        return self.rank == 0


def find_processes() -> Processes:
    """From the environment that torchrun, or srun with several tasks, sets."""
    if TorchElasticEnvironment.detect():
        names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        rank, count, here = (int(os.environ[name]) for name in names)
        return Processes(rank, count, here)
    count = int(os.environ.get("SLURM_NTASKS", "1"))
    if count > 1 and "SLURM_PROCID" in os.environ:
        machines = int(os.environ.get("SLURM_NNODES", "1"))
        if count % machines:
            raise UserError(f"{count} tasks on {machines} machines: start as many on each (--ntasks-per-node)")
        return Processes(int(os.environ["SLURM_PROCID"]), count, count // machines)
    return Processes()


def cluster_environment(processes: Processes) -> ClusterEnvironment:
    """Where ranks come from. Never Lightning's own requeueing on Slurm: the launcher does that."""
    if processes.count == 1:
        return LightningEnvironment()
    return TorchElasticEnvironment() if TorchElasticEnvironment.detect() else SLURMEnvironment(auto_requeue=False)


def make_strategy(name: str, processes: Processes) -> Any:
    """What Lightning's Trainer takes as ``strategy``."""
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

    if processes.count == 1:
        return "auto"
    if name == "fsdp":
        return ModelParallelStrategy(
            data_parallel_size=processes.count, tensor_parallel_size=1, save_distributed_checkpoint=False
        )
    return DDPStrategy(find_unused_parameters=True)  # PoinTr and Informer hold weights that a form does not use


def shard(backbone: Backbone, mesh: Any) -> None:
    """Shard weights, gradients and optimiser state over the processes, layer by layer (FSDP2)."""
    from torch.distributed.fsdp import fully_shard

    for layers in [module for module in backbone.modules() if isinstance(module, nn.ModuleList)]:
        for layer in layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(backbone, mesh=mesh)


def whole_weights(backbone: nn.Module) -> dict[str, Tensor]:
    """The state dict, unsharded; every process must ask."""
    if not dist.is_initialized():
        return backbone.state_dict()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return dict(get_model_state_dict(backbone, options=options))  # type: ignore[arg-type]


class SumOverProcesses(torch.autograd.Function):
    """The sum over processes; each process's loss depends on all terms, so the gradients are summed as well."""

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
    """Batch norm with the statistics of the batch of all processes, on any device.

    A step of several processes is then that of one process. (torch.nn.SyncBatchNorm is for GPUs only.)
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
            self._remember(mean, variance * count / (count - 1).clamp(min=1.0))
        shape = [1, -1] + [1] * (x.ndim - 2)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (wide * scale.view(shape) + (self.bias - mean * scale).view(shape)).to(x.dtype)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance, momentum)


def share_batch_norms(module: nn.Module) -> None:
    """Make every BatchNorm1d a :class:`GlobalBatchNorm1d`, in place: same parameters, same names."""
    for child in module.modules():
        if type(child) is nn.BatchNorm1d:
            child.__class__ = GlobalBatchNorm1d
