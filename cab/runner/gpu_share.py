"""A GPU that several workers share: each keeps to its part of the memory, so that none takes another's."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from cab.errors import UserError

SHARED_BY = "CAB_GPU_SHARED_BY"
"""In the environment of a worker: how many run on its GPU."""

CONTEXT = 2**29
"""Bytes that CUDA itself takes in each process, beside those of tensors."""


def num_gpu_sharers(environment: Mapping[str, str] = os.environ) -> int:
    """How many processes share this one's GPU, itself included."""
    return int(environment.get(SHARED_BY, "1"))


def limit_gpu_memory(device: torch.device) -> None:
    """From now on tensors here take an equal part of the GPU's memory at most; what does not fit is out of memory.

    Raises:
        ValueError: more workers than the memory has room for.
    """
    count = num_gpu_sharers()
    if device.type != "cuda" or count == 1:
        return
    whole = torch.cuda.get_device_properties(device).total_memory
    own = whole / count - CONTEXT
    if own <= 0:
        room = whole // (2 * CONTEXT)
        raise UserError(f"{count} workers are too many for a GPU of {whole / 2**30:.0f} GiB: {max(1, room)} at most")
    torch.cuda.set_per_process_memory_fraction(own / whole, device.index)  # it does not take a device without one
