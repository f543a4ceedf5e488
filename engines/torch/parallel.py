"""Communication between the processes that share a training step: a single process, or several with DDP or FSDP."""

from __future__ import annotations

import contextlib
import os
import subprocess
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from cab.backbone import Backbone
from cab.runner.processes import Processes
from engines.torch.optimizer import whole


class SingleProcess:
    """A run in one process, without communication."""

    def prepare_network(self, backbone: Backbone) -> Backbone:
        """Return the network to train: the backbone itself, or a copy that can be sharded."""
        return backbone

    def prepare_objective(self, objective: nn.Module) -> nn.Module:
        """Return the objective as each process calls it; its weights are on their device and have initial values."""
        return objective

    def micro_batch(self, objective: nn.Module, *, is_last: bool) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Enclose forward and backward of one micro-batch; gradients are exchanged after the last one of a step."""
        return contextlib.nullcontext()

    def mean(self, value: float) -> float:
        """Return the mean over processes."""
        return value

    def max(self, value: float) -> float:
        """Return the maximum over processes."""
        return value

    def broadcast(self, value: float) -> float:
        """Return the value of the first process."""
        return value

    def state_dict(self, network: nn.Module) -> dict[str, Tensor]:
        """Return the state dict with shards gathered; every process must call this."""
        return network.state_dict()

    def close(self) -> None:
        """End the communication."""


class Distributed(SingleProcess):
    """A run started by torchrun or srun: each process holds the whole network (DDP) or shards of it (FSDP).

    Args:
        strategy: ``ddp`` or ``fsdp``, which also shards gradients and optimizer.
    """

    def __init__(self, processes: Processes, strategy: str, device: torch.device) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._processes = processes
        self._device = device
        self._is_sharded = strategy == "fsdp"
        if "MASTER_ADDR" not in os.environ:
            _init_slurm_rendezvous()
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, rank=processes.rank, world_size=processes.count)

    def prepare_network(self, backbone: Backbone) -> Backbone:
        from copy import deepcopy

        from engines.torch.batch_norm import convert_batch_norms

        network = deepcopy(backbone) if self._is_sharded else backbone
        convert_batch_norms(network)
        return network

    def prepare_objective(self, objective: nn.Module) -> nn.Module:
        if self._is_sharded:
            self._shard(objective.network)  # type: ignore[arg-type]
            return objective
        devices = [self._device] if self._device.type == "cuda" else None
        # PoinTr and Informer have weights that some of their configurations do not use.
        return nn.parallel.DistributedDataParallel(objective, device_ids=devices, find_unused_parameters=True)

    def _shard(self, network: nn.Module) -> None:
        """Shard weights, and with them gradients and optimizer, layer by layer (FSDP2)."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self._device.type, (self._processes.count,))
        for layers in [module for module in network.modules() if isinstance(module, nn.ModuleList)]:
            for layer in layers:
                fully_shard(layer, mesh=mesh)
        fully_shard(network, mesh=mesh)

    def micro_batch(self, objective: nn.Module, *, is_last: bool) -> AbstractContextManager[Any]:
        if is_last or self._is_sharded:
            return contextlib.nullcontext()
        return objective.no_sync()  # type: ignore[operator]

    def mean(self, value: float) -> float:
        return self._reduce(value, self._dist.ReduceOp.SUM) / self._processes.count

    def max(self, value: float) -> float:
        return self._reduce(value, self._dist.ReduceOp.MAX)

    def broadcast(self, value: float) -> float:
        return self._reduce(value if self._processes.is_first else 0.0, self._dist.ReduceOp.SUM)

    def _reduce(self, value: float, operation: Any) -> float:
        shared = torch.tensor(value, dtype=torch.float64, device=self._device)
        self._dist.all_reduce(shared, operation)
        return float(shared)

    def state_dict(self, network: nn.Module) -> dict[str, Tensor]:
        return {name: whole(value) for name, value in network.state_dict().items()}

    def close(self) -> None:
        self._dist.destroy_process_group()


def _init_slurm_rendezvous() -> None:
    """Set the first node of the Slurm job as the rendezvous host, with a port derived from the job's ID."""
    hosts = subprocess.run(["scontrol", "show", "hostnames"], capture_output=True, text=True, check=True).stdout
    os.environ["MASTER_ADDR"] = hosts.split()[0]
    os.environ["MASTER_PORT"] = str(15_000 + int(os.environ["SLURM_JOB_ID"]) % 10_000)
