"""Processes of one run (torchrun or srun), and workers of the local pool that share a GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cab.errors import UserError

if TYPE_CHECKING:
    import torch

SHARED_BY = "CAB_GPU_SHARED_BY"
"""Environment variable of a worker: number of workers on its GPU."""
CONTEXT_BYTES = 2**29
"""Bytes of the CUDA context of each process."""


@dataclass(frozen=True)
class Processes:
    """Rank of this process in its run and on its machine, and the number of processes of the run."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this process evaluates, writes the record and locks the folder."""
        return self.rank == 0


def find_processes() -> Processes:
    """Return the processes of this run, from the environment variables of torchrun or srun."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    if any(name not in os.environ for name in names):
        return Processes()
    rank, count, local_rank = (int(os.environ[name]) for name in names)
    machines = int(os.environ.get("SLURM_NNODES", "1"))
    if count % machines:
        raise UserError(f"{count} tasks cannot be divided evenly among {machines} machines: set --ntasks-per-node")
    return Processes(rank, count, local_rank)


def num_gpu_sharers(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes that share the GPU, including this one."""
    return int(environment.get(SHARED_BY, "1"))


def limit_gpu_memory(device: torch.device) -> None:
    """Limit the tensors of this process to an equal share of the GPU's memory; larger ones raise out of memory."""
    count = num_gpu_sharers()
    if device.type != "cuda" or count == 1:
        return
    import torch

    memory = torch.cuda.get_device_properties(device).total_memory
    share = memory / count - CONTEXT_BYTES
    if share <= 0:
        raise UserError(
            f"{count} workers are too many for a GPU with {memory / 2**30:.0f} GiB: use at most "
            f"{max(1, memory // (2 * CONTEXT_BYTES))}"
        )
    torch.cuda.set_per_process_memory_fraction(share / memory, device.index)  # a device without an index is refused
