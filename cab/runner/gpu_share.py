"""Divide the memory of a GPU among the workers that share it."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from cab.errors import UserError

SHARED_BY = "CAB_GPU_SHARED_BY"
"""Environment variable of a worker: number of workers on its GPU."""

CONTEXT = 2**29
"""Bytes of the CUDA context of each process."""


def num_gpu_sharers(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes that share the GPU, including this one."""
    return int(environment.get(SHARED_BY, "1"))


def limit_gpu_memory(device: torch.device) -> None:
    """Limit the tensors of this process to an equal share of the GPU's memory; larger ones raise out of memory.

    Raises:
        UserError: the memory is too small for the number of workers.
    """
    count = num_gpu_sharers()
    if device.type != "cuda" or count == 1:
        return
    whole = torch.cuda.get_device_properties(device).total_memory
    own = whole / count - CONTEXT
    if own <= 0:
        room = whole // (2 * CONTEXT)
        raise UserError(
            f"{count} workers are too many for a GPU with {whole / 2**30:.0f} GiB: use at most {max(1, room)}"
        )
    torch.cuda.set_per_process_memory_fraction(own / whole, device.index)  # a device without an index is not accepted
