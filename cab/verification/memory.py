"""Exact peak memory of a call, from the events of torch's allocators."""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise torch's profiler writes to stderr

import torch


def peak_bytes(call: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Return the peak number of bytes allocated for tensors during ``call``, above the amount before it.

    Includes outputs, saved activations and temporaries. Excludes inputs and weights allocated before the call, and
    scratch space inside BLAS and FFT libraries.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        kept = call()  # keep the result alive until the last event is recorded
    del kept
    assert profile.profiler is not None
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
