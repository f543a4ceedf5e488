"""Folder of a run, locked and written by one process at a time; status of the runs of a results folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from cab.errors import UserError
from cab.files.disk import disk_errors, remove_leftovers, replacing
from cab.records.origin import Origin
from cab.records.record import CELL, Record, Status, record_path, weights_path

log = logging.getLogger(__name__)

LOCK = "lock"
ABOUT = "cell.json"
"""File with the cell, its configuration, command and origin, and the checksum of the record that the run replaces.

The old record is kept until the run has a new one.
"""
RETRIED = (*(status for status in Status if status is not Status.FINISHED), "interrupted")
"""Statuses that ``cab run --retry`` accepts."""


@contextlib.contextmanager
def lock_run_dir(folder: Path) -> Iterator[bool]:
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
        with disk_errors(folder.parent):
            lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    with lock:
        remove_leftovers(folder)
        remove_leftovers(folder.parent, folder.name)
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


def start_run(folder: Path, about: Mapping[str, Any], origin: Origin, *, afresh: bool) -> None:
    """Write what runs in ``folder``, and which record it replaces.

    An interrupted run of other code or data is not resumed: its files are deleted, with a warning.

    Args:
        folder: locked folder of the run.
        about: the cell, its configuration and its command.
        origin: program and data of the run.
        afresh: delete the files of the earlier run if it has a record, except its weights, which are replaced as the
            record is. Links are deleted, not followed. A run that an interrupted process started afresh is resumed.
    """
    replaced = _record_digest(folder)
    changes = _origin_in(folder).changes(origin)
    if changes and any(folder.glob("step-*.ckpt")):
        outcome = "starts again from step 0" if changes.other_run else "is resumed with a change"
        log.warning("the interrupted run in %s %s: %s", folder, outcome, "; ".join(changes.values()))
    if changes.other_run or (replaced and afresh and not is_replacing(folder)):
        for child in folder.iterdir():
            if child.name not in (LOCK, weights_path(folder.parent, folder.name).name) or child.is_symlink():
                shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
    with replacing(folder / ABOUT) as temporary:
        temporary.write_text(json.dumps({**about, "origin": vars(origin), "replaces": replaced}, indent=1))


def _origin_in(folder: Path) -> Origin:
    """Return the origin of the run that was started in ``folder``, or an unknown one."""
    try:
        return Origin(**json.loads((folder / ABOUT).read_text())["origin"])
    except (OSError, ValueError, KeyError, TypeError):
        return Origin()


def is_replacing(folder: Path) -> bool:
    """Return whether the run in ``folder`` has started to replace its record, and has not done so yet."""
    try:
        return bool(json.loads((folder / ABOUT).read_text()).get("replaces") == _record_digest(folder) != "")
    except (OSError, ValueError, AttributeError):
        return False


def _record_digest(folder: Path) -> str:
    path = record_path(folder.parent, folder.name)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def atomic_save(state: Mapping[str, Any], path: Path) -> None:
    """Save ``state`` with ``torch.save`` to a temporary file, then rename it."""
    import torch

    with replacing(path) as temporary:
        torch.save(state, temporary)


@dataclass(frozen=True)
class CellStatus:
    """Status of a cell.

    Attributes:
        cell: values of :data:`cab.records.record.CELL`; empty for an unreadable record.
        status: a :class:`cab.records.record.Status`, ``running``, ``interrupted``, or ``broken`` (unreadable record).
        detail: error, or last checkpoint.
        config: resolved configuration.
        command: command that runs the cell.
    """

    cell: Mapping[str, Any]
    status: str
    detail: str
    config: Mapping[str, Any]
    command: str


def cell_statuses(results_dir: Path) -> list[CellStatus]:
    """Return the status of every cell with a record or a folder in ``results_dir``, sorted by cell.

    Raises:
        UserError: the folder does not exist.
    """
    if not results_dir.is_dir():
        raise UserError(f"{results_dir} is not a folder: name the results_dir of a run")
    statuses = [*_recorded(results_dir), *_started(results_dir)]
    return sorted(statuses, key=lambda status: [str(status.cell.get(key, "")) for key in CELL])


def parse_retried(text: str) -> list[str]:
    """Return the statuses in a comma-separated list; UserError for one that is not in :data:`RETRIED`."""
    names = text.split(",")
    if not set(names) <= set(RETRIED):
        raise UserError(f"--retry requires a comma-separated list of {', '.join(RETRIED)}, got '{text}'")
    return names


def _recorded(results_dir: Path) -> Iterator[CellStatus]:
    for path in results_dir.glob("*.json"):
        if is_replacing(path.with_suffix("")):
            continue
        try:
            record = Record.read(path)
        except UserError as error:
            yield CellStatus({}, "broken", str(error), {}, "")
            continue
        yield CellStatus(record.cell, record.status, record.error, record.config, record.command)


def _started(results_dir: Path) -> Iterator[CellStatus]:
    for about in results_dir.glob(f"*/{ABOUT}"):
        folder = about.parent
        if record_path(results_dir, folder.name).exists() and not is_replacing(folder):
            continue
        try:
            content = json.loads(about.read_text())
            cell, config, command = dict(content["cell"]), dict(content["config"]), content["command"]
        except (OSError, ValueError, KeyError, TypeError):
            yield CellStatus({}, "broken", f"{about} cannot be read", {}, "")
            continue
        steps = [path.stem.removeprefix("step-").lstrip("0") for path in sorted(folder.glob("step-*.ckpt"))]
        detail = f"checkpoint at step {steps[-1]}" if steps else "no checkpoint yet"
        yield CellStatus(cell, "running" if is_held(folder) else "interrupted", detail, config, command)
