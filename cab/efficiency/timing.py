"""Timing of calls: device events with a cold cache on CUDA, wall clock on a CPU."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor
from torch.cuda import Event

CLOCKS = perf_counter, Event
"""The clocks, bound when this file is imported, before any measured module runs."""


def check_clock() -> None:
    """Raise RuntimeError, and restore the clocks, if a module has replaced one of them."""
    if (time.perf_counter, torch.cuda.Event) != CLOCKS:
        time.perf_counter, torch.cuda.Event = CLOCKS  # type: ignore[misc]
        raise RuntimeError("the module replaces the clock (time.perf_counter or torch.cuda.Event)")


def seconds(call: Callable[[], object], calls: int, device: str) -> float:
    """Return the total time of ``calls`` consecutive calls in seconds."""
    if device == "cuda":
        return cuda_seconds(call, calls)
    begin = perf_counter()
    for _ in range(calls):
        call()
    return perf_counter() - begin


def cuda_seconds(call: Callable[[], object], calls: int) -> float:
    """Return the device time between two events around each call, summed, in seconds.

    The L2 cache is overwritten before each call, outside the measured interval. This also keeps the device busy while
    the call is prepared, so that launch overhead does not dominate short kernels.
    """
    events = [[Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
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
    """Return a buffer twice as large as the L2 cache; writing it evicts the cache."""
    size = torch.cuda.get_device_properties().L2_cache_size
    return torch.empty(2 * size, dtype=torch.int8, device="cuda")
