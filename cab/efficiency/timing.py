"""Seconds of calls: device events on CUDA, wall clock on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def seconds(call: Callable[[], object], calls: int, device: str) -> float:
    """Of ``calls`` calls in a row."""
    if device == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - begin
