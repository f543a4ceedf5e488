"""Processes of one run, started by torchrun or srun."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cab.errors import UserError


@dataclass(frozen=True)
class Processes:
    """This process and its run.

    Attributes:
        rank: rank of this process in the run.
        count: number of processes in the run; 1 if it was not started by torchrun or srun.
        local_rank: rank of this process on its machine.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this process evaluates, writes the record and locks the folder."""
        return self.rank == 0


def find_processes() -> Processes:
    """Return the processes of this run, from the environment variables of torchrun or srun.

    Raises:
        UserError: the machines have different numbers of processes.
    """
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
