"""Seconds of calls: device events on CUDA, with a cold cache before each call; wall clock on a CPU."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch
from torch import Tensor


def seconds(call: Callable[[], object], calls: int, device: str) -> float:
    """Of ``calls`` calls in a row."""
    if device == "cuda":
        return cuda_seconds(call, calls)
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - begin


def cuda_seconds(call: Callable[[], object], calls: int) -> float:
    """The device's own time between two events around each call, summed.

    What is written over the second-level cache before each call is not in it; it also keeps the device busy while the
    call is prepared, so that short kernels are not measured by how fast Python starts them.
    """
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    torch.cuda.synchronize()
    for start, end in events:
        second_level_cache().zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return sum(start.elapsed_time(end) for start, end in events) / 1e3


@functools.cache
def second_level_cache() -> Tensor:
    """Twice as large as the device's cache: who writes it has pushed out what was there."""
    size = torch.cuda.get_device_properties().L2_cache_size
    return torch.empty(2 * size, dtype=torch.int8, device="cuda")
