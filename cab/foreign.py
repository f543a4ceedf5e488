"""Kernels of other packages, which are no operators of torch: who counts or profiles is told where they are called."""

from __future__ import annotations

from torch.profiler import record_function

PREFIX = "kernels of "


def kernels_of(package: str) -> record_function:
    """The context in which kernels of ``package`` are called."""
    return record_function(PREFIX + package)
