"""Folder of a run: locked by one process at a time; files are written atomically."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from cab.errors import UserError
from cab.files.disk import disk_errors

LOCK = "lock"
ABOUT = "cell.json"
"""File with the cell, its configuration and its command, for runs without a record."""


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
        with disk_errors(folder.parent):
            (folder / ABOUT).write_text(json.dumps(about, indent=1))
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


def empty_folder(folder: Path) -> None:
    """Delete the files of an earlier run; links are deleted, not followed."""
    for child in folder.iterdir():
        if child.name not in (LOCK, ABOUT):
            shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()


def atomic_save(state: Mapping[str, Any], path: Path) -> None:
    """Save ``state`` with ``torch.save`` to a temporary file, then rename it."""
    import torch

    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)
