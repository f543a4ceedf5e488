"""Limits on the calls of a module, the status of a failed call, and the release of its memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from cab.errors import UserError, exits_as_errors
from cab.runner.failures import is_out_of_memory

RESERVE = 0.1
"""Share of the free memory reserved for other processes."""


class TimeLimitError(Exception):
    """The calls of a module took longer than ``--time-limit``."""


@contextlib.contextmanager
def guarded(device: str, seconds: float) -> Iterator[None]:
    """Raise an exception inside the block instead of ending or blocking the command.

    This applies to excessive allocations on a CPU, to calls of ``sys.exit``, and after ``seconds``.
    """
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


def release_memory(device: str) -> None:
    """Return the memory of dropped tensors to the system, so that the next module can allocate it."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
    else:
        with contextlib.suppress(OSError, AttributeError):  # not glibc
            ctypes.CDLL(None).malloc_trim(0)


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


@contextlib.contextmanager
def within_free_memory() -> Iterator[None]:
    """Limit the process to the free memory, so that excessive allocations raise instead of killing the process.

    Linux only; no limit on other systems.
    """
    free = free_bytes()
    if free is None:
        yield
        return
    import resource

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = used + int(free * (1 - RESERVE))
    bounds = [bound for bound in (limit, soft, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def free_bytes() -> int | None:
    """Return the free memory of the machine or of the control group (container, batch job), whichever is less."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    facts = dict(line.split(":", 1) for line in lines)
    if "MemAvailable" not in facts:
        return None
    free = int(facts["MemAvailable"].split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
        free = min(free, limit)
    return free
