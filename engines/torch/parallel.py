"""What one training step asks of the processes that share it: one alone, or several with ddp or fsdp."""

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
from engines.torch.adam import whole


class SingleProcess:
    """Nobody to agree with."""

    def network_to_train(self, backbone: Backbone) -> Backbone:
        """The network whose weights are trained; the backbone itself, or a copy that can be cut."""
        return backbone

    def spread(self, objective: nn.Module) -> nn.Module:
        """The objective, its weights on their device and as they are at the start, as it is called in each process."""
        return objective

    def step_part(self, objective: nn.Module, *, is_last: bool) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Around forward and backward of one micro-batch; gradients are exchanged after the last of a step."""
        return contextlib.nullcontext()

    def mean(self, value: float) -> float:
        return value

    def largest(self, value: float) -> float:
        return value

    def broadcast(self, value: float) -> float:
        return value

    def weights(self, network: nn.Module) -> dict[str, Tensor]:
        """The state dict, put together; every process must ask."""
        return network.state_dict()

    def end(self) -> None:
        """Nothing is asked of the others any more."""


class Distributed(SingleProcess):
    """Started by torchrun or srun; each holds the whole network (ddp), or a share of it and its optimiser (fsdp)."""

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

    def network_to_train(self, backbone: Backbone) -> Backbone:
        from copy import deepcopy

        from engines.torch.batch_norm import share_batch_norms

        network = deepcopy(backbone) if self._is_sharded else backbone
        share_batch_norms(network)
        return network

    def spread(self, objective: nn.Module) -> nn.Module:
        if self._is_sharded:
            self._shard(objective.network)  # type: ignore[arg-type]
            return objective
        devices = [self._device] if self._device.type == "cuda" else None
        # PoinTr and Informer hold weights that a form of theirs does not use.
        return nn.parallel.DistributedDataParallel(objective, device_ids=devices, find_unused_parameters=True)

    def _shard(self, network: nn.Module) -> None:
        """Cut weights, and with them gradients and optimiser, layer by layer (FSDP2)."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self._device.type, (self._processes.count,))
        for layers in [module for module in network.modules() if isinstance(module, nn.ModuleList)]:
            for layer in layers:
                fully_shard(layer, mesh=mesh)
        fully_shard(network, mesh=mesh)

    def step_part(self, objective: nn.Module, *, is_last: bool) -> AbstractContextManager[Any]:
        if is_last or self._is_sharded:
            return contextlib.nullcontext()
        return objective.no_sync()  # type: ignore[operator]

    def mean(self, value: float) -> float:
        return self._reduced(value, self._dist.ReduceOp.SUM) / self._processes.count

    def largest(self, value: float) -> float:
        return self._reduced(value, self._dist.ReduceOp.MAX)

    def broadcast(self, value: float) -> float:
        return self._reduced(value if self._processes.is_first else 0.0, self._dist.ReduceOp.SUM)

    def _reduced(self, value: float, operation: Any) -> float:
        shared = torch.tensor(value, dtype=torch.float64, device=self._device)
        self._dist.all_reduce(shared, operation)
        return float(shared)

    def weights(self, network: nn.Module) -> dict[str, Tensor]:
        return {name: whole(value) for name, value in network.state_dict().items()}

    def end(self) -> None:
        self._dist.destroy_process_group()


def _init_slurm_rendezvous() -> None:
    """Let the processes of srun meet on the first machine of the job, at a port of the job's own."""
    hosts = subprocess.run(["scontrol", "show", "hostnames"], capture_output=True, text=True, check=True).stdout
    os.environ["MASTER_ADDR"] = hosts.split()[0]
    os.environ["MASTER_PORT"] = str(15_000 + int(os.environ["SLURM_JOB_ID"]) % 10_000)
