"""What a call that fails means for the table, and a limit that makes a CPU out of memory fail in time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cab.errors import UserError
from cab.runner.failures import is_out_of_memory

RESERVE = 0.1
"""Part of the free memory that is left to everybody else."""


def status_of(error: BaseException) -> tuple[str, str]:
    """The status of a cost, and one line of detail."""
    line = (str(error).strip().splitlines() or [""])[0]
    if is_out_of_memory(error):
        return "oom", ""
    if isinstance(error, UserError):
        return "unsupported", line
    return "failed", f"{type(error).__name__}: {line}"


@contextlib.contextmanager
def within_free_memory() -> Iterator[None]:
    """Limits the process to the memory that is free now, so that asking for more raises and does not kill.

    Linux only; elsewhere nothing is limited.
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
    """Free memory of the machine, or of the control group (a container, a batch job) where that is less."""
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
