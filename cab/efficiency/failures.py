"""Status of failed calls, and a memory limit that turns out-of-memory on a CPU into an exception."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cab.errors import UserError
from cab.runner.failures import is_out_of_memory

RESERVE = 0.1
"""Share of the free memory reserved for other processes."""


def status_of(error: BaseException) -> tuple[str, str]:
    """Return the status of a cost and a one-line detail."""
    line = (str(error).strip().splitlines() or [""])[0]
    if is_out_of_memory(error):
        return "oom", ""
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
