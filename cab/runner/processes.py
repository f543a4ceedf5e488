"""The processes of one run, started together by torchrun or srun."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cab.errors import UserError


@dataclass(frozen=True)
class Processes:
    """The processes of this run. A process that nobody started together with others is alone."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this one evaluates, writes the record and holds the folder."""
        return self.rank == 0


def find_processes() -> Processes:
    """From the environment that torchrun, or srun with several tasks, sets."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    if any(name not in os.environ for name in names):
        return Processes()
    rank, count, local_rank = (int(os.environ[name]) for name in names)
    machines = int(os.environ.get("SLURM_NNODES", "1"))
    if count % machines:
        raise UserError(f"{count} tasks on {machines} machines: start as many on each (--ntasks-per-node)")
    return Processes(rank, count, local_rank)
