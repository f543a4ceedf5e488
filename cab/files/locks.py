"""Locks of files, which name the process that holds them, its machine and since when."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from cab.errors import UserError

log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds until a process that waits for a lock names the one that holds it."""


@contextlib.contextmanager
def locked(path: Path, purpose: str = "") -> Iterator[bool]:
    """Hold the lock ``path`` during a block; it ends with its process.

    Args:
        purpose: what another process may be doing, which is waited for and named; without it, yield False instead.

    Raises:
        UserError: the file system cannot lock files, and the lock names a process of another machine.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE if purpose else 0)
    except Timeout:
        owner = owner_of(path)
        if purpose:
            log.info("waiting for %s, %s", owner, purpose)
            lock.acquire()
    try:
        if lock.is_locked:
            _sign(path)
        yield lock.is_locked
    finally:
        lock.release(force=True)


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock."""
    if not path.exists():
        return False
    try:
        with FileLock(path, blocking=False):
            return False
    except OSError as error:  # a folder without permission to lock it may be that of a running process
        return isinstance(error, (Timeout, PermissionError))


def owner_of(path: Path) -> str:
    """Return the owner of a lock that is held, such as ``process 4711 on node17 since 2.0 hours``.

    UserError if it is on another machine and the file system cannot lock files: there, a lock outlives its process.
    """
    owner, hours = path.read_text(errors="replace").split(), (time.time() - path.stat().st_mtime) / 3600
    if owner and socket.gethostname() not in owner and not _can_lock(path):
        raise UserError(
            f"{path} was written {hours:.1f} hours ago by a process of another machine ({' '.join(owner)}). If that "
            "process has ended, delete the file and repeat the command"
        )
    return f"process {' on '.join(owner[:2])} since {hours:.1f} hours" if owner else "another process"


def _can_lock(path: Path) -> bool:
    """Return whether the file system can lock files; a lock that is free is taken for a moment."""
    try:
        import fcntl  # not on Windows

        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    return True


def _sign(path: Path) -> None:
    """Write the owner into a lock, as filelock itself does on file systems that cannot lock files."""
    with contextlib.suppress(OSError):  # such as on a full disk
        if path.read_text(errors="replace").split()[:1] != [str(os.getpid())]:
            path.write_text(f"{os.getpid()}\n{socket.gethostname()}\n")
        os.utime(path)
