"""Folder of a run: locked by one process at a time; files are written atomically."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from cab.errors import UserError
from cab.files.disk import disk_errors, remove_leftovers, replacing
from cab.records.record import record_path, weights_path

LOCK = "lock"
ABOUT = "cell.json"
"""File with the cell, its configuration and its command, for runs without a record."""
REPLACED = "replaced.sha256"
"""File with the checksum of the record that a run replaces. The old record is kept until the run has a new one."""


@contextlib.contextmanager
def lock_run_dir(folder: Path, about: Mapping[str, Any]) -> Iterator[bool]:
    """Create and lock the folder; yield False if another process holds the lock, which ends with its process.

    Raises:
        UserError: the folder is a symbolic link, through which the run would write or delete files elsewhere, or it
            cannot be created.
    """
    if folder.is_symlink():
        raise UserError(f"{folder} is a symbolic link; a run requires a real folder: remove the link")
    with disk_errors(folder.parent):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (PermissionError, FileNotFoundError, FileExistsError, NotADirectoryError) as error:
            raise UserError(
                f"cannot create a folder in {folder.parent}: {error.strerror}; name another results_dir"
            ) from error
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    with lock:
        remove_leftovers(folder)
        remove_leftovers(folder.parent, folder.name)
        with disk_errors(folder.parent), replacing(folder / ABOUT) as temporary:
            temporary.write_text(json.dumps(about, indent=1))
        yield True


def is_held(folder: Path) -> bool:
    """Return whether a process has locked the folder."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, blocking=False):
            return False
    except OSError:  # a Timeout, or a folder without permission to lock it
        return True


def start_replacing(folder: Path, *, afresh: bool) -> None:
    """Mark that the run in ``folder`` replaces its record, unless an interrupted run has already done so.

    Args:
        folder: folder of the run.
        afresh: delete the files of the earlier run, except its weights, which are replaced as the record is. Links are
            deleted, not followed.
    """
    if is_replacing(folder):
        return
    for child in folder.iterdir() if afresh else ():
        if child.name not in (LOCK, ABOUT, weights_path(folder.parent, folder.name).name) or child.is_symlink():
            shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
    (folder / REPLACED).write_text(_record_digest(folder))


def is_replacing(folder: Path) -> bool:
    """Return whether the run in ``folder`` has started to replace its record, and has not done so yet."""
    try:
        return (folder / REPLACED).read_text() == _record_digest(folder)
    except (OSError, UnicodeDecodeError):
        return False


def _record_digest(folder: Path) -> str:
    return hashlib.sha256(record_path(folder.parent, folder.name).read_bytes()).hexdigest()


def atomic_save(state: Mapping[str, Any], path: Path) -> None:
    """Save ``state`` with ``torch.save`` to a temporary file, then rename it."""
    import torch

    with replacing(path) as temporary:
        torch.save(state, temporary)
