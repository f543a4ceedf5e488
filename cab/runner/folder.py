"""The folder of a run: held by one process at a time, its files whole or not there."""

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
"""The cell, its configuration and its command: what `cab status` shows of a run without a record."""


@contextlib.contextmanager
def held_folder(folder: Path, about: Mapping[str, Any]) -> Iterator[bool]:
    """Hold the folder, made if need be; False when another process holds it. A process that is killed lets go.

    Raises:
        ValueError: a link, which would have the run write, and ``force`` delete, somewhere else.
    """
    if folder.is_symlink():
        raise UserError(f"{folder} is a link; a run has a folder of its own: remove the link")
    with disk_errors(folder.parent):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (PermissionError, FileNotFoundError, FileExistsError, NotADirectoryError) as error:
            raise UserError(f"no folder can be made in {folder.parent}: {error.strerror}; name another") from error
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
    """Whether a process holds the folder."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, blocking=False):
            return False
    except OSError:  # a Timeout is one; so is a folder that is not ours to lock
        return True


def empty_folder(folder: Path) -> None:
    """Delete what an earlier run has left; of a link, the link."""
    for child in folder.iterdir():
        if child.name not in (LOCK, ABOUT):
            shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()


def save_whole(state: Mapping[str, Any], path: Path) -> None:
    """``torch.save``, to a temporary name that is then renamed."""
    import torch

    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)
