"""Labels for calls of third-party kernels, which profilers and operation counters do not see as torch operators."""

from __future__ import annotations

from torch.profiler import record_function

PREFIX = "kernels of "


def profile_scope(package: str) -> record_function:
    """Return the context in which to call kernels of ``package``."""
    return record_function(PREFIX + package)
