"""Limits on the calls of a module, the status of a failed call, and the release of its memory."""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import psutil
import torch

from cab.errors import UserError, exits_as_errors
from cab.runner.failures import is_out_of_memory

USABLE = 0.9
"""Share of the free memory that a call may use."""


class TimeLimitError(Exception):
    """The calls of a module took longer than ``--time-limit``."""


@contextlib.contextmanager
def guarded(device: str, seconds: float) -> Iterator[None]:
    """Raise an exception inside the block for excessive allocations on a CPU, ``sys.exit``, or after ``seconds``."""
    memory = within_free_memory() if device == "cpu" else contextlib.nullcontext()
    with exits_as_errors(), memory, time_limit(seconds):
        yield


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimitError inside the block after ``seconds``, once the running operator returns.

    Without effect outside the main thread, which receives the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise TimeLimitError("more than --time-limit")

    if seconds <= 0:
        raise TimeLimitError("more than --time-limit")
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def within_free_memory() -> Iterator[None]:
    """Limit the process to the free memory, so that an excessive allocation raises an exception."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = psutil.Process().memory_info().vms + int(USABLE * psutil.virtual_memory().available)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def release_memory(device: str) -> None:
    """Free the memory of dropped tensors, so that the next module can allocate it."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def status_of(error: BaseException) -> tuple[str, str]:
    """Return the status of a cost and a one-line detail."""
    line = (str(error).strip().splitlines() or [""])[0]
    if is_out_of_memory(error):
        return "oom", ""
    if isinstance(error, TimeLimitError):
        return "timeout", line
    if isinstance(error, UserError):
        return "unsupported", line
    return "failed", f"{type(error).__name__}: {line}"
