"""Processes of a run: their ranks, their share of a GPU, signals that stop them, and failures that end them."""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from cab.errors import Preempted, UserError, is_out_of_memory as is_out_of_memory
from cab.records.record import Status

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

SHARED_BY = "CAB_GPU_SHARED_BY"
"""Environment variable of a worker: number of workers on its GPU."""
FIRST_SPECIAL_STEP = 0xFFFF_FFF0
"""Smallest number of a Slurm step that srun did not start: batch scripts, interactive shells."""
CONTEXT_BYTES = 2**29
"""Bytes of the CUDA context of each process."""
TIMEOUT = datetime.timedelta(minutes=30)
"""Time after which processes that wait for a lost one end; longer than what the first process computes alone."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class Processes:
    """Rank of this process in its run and on its machine, and the number of processes of the run."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this process writes the record and locks the folder."""
        return self.rank == 0

    def connect(self, device: torch.device) -> None:
        """Connect several processes with each other, which exchange tensors on ``device``."""
        import torch
        import torch.distributed as dist

        if self.count == 1 or dist.is_initialized():  # by an earlier cell; a destroyed group can deadlock
            return
        if "MASTER_ADDR" not in os.environ:
            _init_slurm_rendezvous()
        options: dict[str, Any] = {"rank": self.rank, "world_size": self.count, "timeout": TIMEOUT}
        if device.type == "cuda":
            torch.cuda.set_device(device)  # what names no device, such as pinned memory, would use GPU 0
            dist.init_process_group("nccl", device_id=device, **options)
        else:
            dist.init_process_group("gloo", **options)

    def agree(self, decision: bool, device: torch.device) -> bool:
        """Return the decision of the first process, in all of them."""
        import torch
        import torch.distributed as dist

        if self.count == 1:
            return decision
        self.connect(device)
        shared = torch.tensor(decision, device=device, dtype=torch.uint8)
        dist.broadcast(shared, 0)
        return bool(shared)


def _init_slurm_rendezvous() -> None:
    """Set the first node of the Slurm job as the rendezvous host, with a port of the job and its step."""
    hosts = subprocess.run(["scontrol", "show", "hostnames"], capture_output=True, text=True, check=True).stdout
    os.environ["MASTER_ADDR"] = hosts.split()[0]
    job, step = int(os.environ["SLURM_JOB_ID"]), int(os.environ.get("SLURM_STEP_ID", 0))
    os.environ["MASTER_PORT"] = str(15_000 + (job + 1009 * step) % 10_000)


RANKS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "PMIx": ("PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK"),
}
"""Variables with the rank, the number of processes and the rank on the machine, by launcher; the first is used."""


def without_launcher(*, of_slurm: bool = False) -> dict[str, str]:
    """Return the environment without ranks and addresses of a launcher, for a process that is started alone.

    Args:
        of_slurm: whether all variables of Slurm's commands are removed, too, which override the options of a job.
    """
    names = {"MASTER_ADDR", "MASTER_PORT", *(name for group in RANKS.values() for name in group)}
    prefixes = ("TORCHELASTIC_", *(("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_") if of_slurm else ()))
    return {
        name: value
        for name, value in os.environ.items()
        if name in ("SLURM_CONF", "SLURM_JWT") or (name not in names and not name.startswith(prefixes))
    }


def find_processes() -> Processes:
    """Return the processes of this run, from the variables of torchrun, Kubernetes (as torchrun) or srun.

    A pod of Kubernetes has no local rank: it runs one process. A batch script and the shell of salloc have srun's
    variables too, but are a single process. A warning names the
    variables of a launcher with several processes that are not used.
    """
    complete = {launcher for launcher, names in RANKS.items() if all(name in os.environ for name in names[:2])}
    starts_ours = {"torchrun"} if "MASTER_ADDR" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ else set()
    if int(os.environ.get("SLURM_STEP_ID", FIRST_SPECIAL_STEP)) < FIRST_SPECIAL_STEP:
        starts_ours.add("srun")
    for launcher in RANKS:
        if launcher in complete & starts_ours:
            rank, count, local_rank = (int(os.environ.get(name, 0)) for name in RANKS[launcher])
            return Processes(rank, count, local_rank)
    for launcher, (rank_name, count_name, _) in RANKS.items():
        if os.environ.get(count_name, "1") != "1":
            start = "srun cab run ..." if launcher == "srun" else "torchrun -m cab run ..."
            own, all_ranks = os.environ.get(rank_name), os.environ[count_name]
            _name_unused(f"{rank_name}={own} and {count_name}={all_ranks} of {launcher}", start)
            break
    return Processes()


@functools.cache
def _name_unused(variables: str, start: str) -> None:
    """Warn once of variables of a launcher."""
    log.warning(
        "running one process alone: %s are not used; for several processes, start it with `%s`", variables, start
    )


def num_gpu_sharers() -> int:
    """Return the number of processes that share the GPU, including this one."""
    return int(os.environ.get(SHARED_BY, "1"))


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


class DivergedError(Exception):
    """The training loss is NaN or infinite."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the training loss is NaN or infinite from step {step}")
        self.step = step


class LostProcessError(Exception):
    """The process of a run ended without a record."""


def status_of(error: Exception) -> Status:
    """Return the status of a run that ended with ``error``."""
    if isinstance(error, DivergedError):
        return Status.DIVERGED
    return Status.OOM if is_out_of_memory(error) else Status.FAILED


class StopSignals:
    """Handler of SIGTERM, SIGUSR1 and SIGUSR2.

    Training stops after the current step and a checkpoint; everything else stops at once.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._waits_for_step = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Handle the signals inside the block, if this is the main thread."""
        handlers: dict[signal.Signals, Any] = {}
        with contextlib.suppress(ValueError):  # only the main thread can
            for number in STOP_SIGNALS:
                handlers[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def waiting_for_step(self) -> Iterator[None]:
        """Only store signals inside the block; the training loop reads ``received`` between steps."""
        self._waits_for_step = True
        try:
            yield
        finally:
            self._waits_for_step = False

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.received = number
        if not self._waits_for_step:
            raise Preempted(number)
