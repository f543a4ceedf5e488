"""Folder of a run, locked and written by one process at a time: its files, and the status of all runs of a folder."""

from __future__ import annotations

import contextlib
import csv
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cab.errors import UserError
from cab.files.disk import disk_errors, remove_leftovers, replacing
from cab.files.locks import is_locked, locked
from cab.records.files import record_path, record_paths, weights_path
from cab.records.identity import Identity, configured, described, differences, why_not_resumed
from cab.records.record import CELL, Record, Status
from cab.weights import load_file as load_file, load_weights as load_weights

log = logging.getLogger(__name__)

LOCK = "lock"
CELL_FILE = "cell.json"
"""File with the cell, its configuration, command and identity, and the time at which the run was started.

A record of an earlier start is kept until the run has a new one.
"""
PROGRESS = ("step-*.ckpt", "step-*.shard", "best-*.pt", "average-*.pt", "scores-*.jsonl")
"""Files that only an unfinished run needs."""
RETRIED = (*(status for status in Status if status is not Status.FINISHED), "interrupted")
"""Statuses that ``cab run --retry`` accepts."""


@contextlib.contextmanager
def lock_run_dir(folder: Path) -> Iterator[bool]:
    """Create and lock the folder; yield False if another process holds the lock, which ends with its process.

    UserError for a symbolic link, through which the run would write or delete files elsewhere.
    """
    if folder.is_symlink():
        raise UserError(f"{folder} is a symbolic link; a run requires a real folder: remove the link")
    with contextlib.ExitStack() as lock:
        try:
            with disk_errors(folder.parent):
                folder.mkdir(parents=True, exist_ok=True)
                is_ours = lock.enter_context(locked(folder / LOCK))
        except (PermissionError, FileNotFoundError, FileExistsError, NotADirectoryError) as error:
            raise UserError(
                f"cannot create a folder in {folder.parent}: {error.strerror}; name another results_dir"
            ) from error
        if is_ours:
            remove_leftovers(folder)
            remove_leftovers(folder.parent, record_path(folder.parent, folder.name).name)
        yield is_ours


def start_run(folder: Path, about: Mapping[str, Any], identity: Identity, *, started: str, afresh: bool) -> str:
    """Write what runs in ``folder``, and return when that run was started: earlier if it resumes, else ``started``.

    An interrupted run of other code, data or configuration is not resumed: its files are deleted, with a warning. With
    ``afresh``, those of a recorded run are deleted as well, except its weights, which are replaced as the record is.
    Links are deleted, not followed. A run that an interrupted process started afresh is resumed.
    """
    earlier, record = _about(folder), _started_of_record(folder)
    found = Identity.from_plain(earlier.get("identity", {}))
    changes = differences(found, identity) if found else {}
    obstacle = why_not_resumed(found, identity) if earlier else ""
    if (changes or obstacle) and any(folder.glob("step-*.ckpt")):
        outcome = "starts again from step 0" if obstacle else "is resumed with a change"
        texts = [described(kind, text) for kind, text in changes.items()] or [obstacle]
        log.warning("the interrupted run in %s %s: %s", folder, outcome, "; ".join(texts))
    continues = bool(earlier) and not obstacle and (record == "" or is_replacing(folder))
    if obstacle or (record != "" and afresh and not continues):
        for child in folder.iterdir():
            if child.name not in (LOCK, weights_path(folder.parent, folder.name).name) or child.is_symlink():
                shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
    started = str(earlier.get("started", started)) if continues else started
    with replacing(folder / CELL_FILE) as temporary:
        temporary.write_text(json.dumps({**about, "identity": identity.to_plain(), "started": started}, indent=1))
    return started


def discard_progress(folder: Path) -> None:
    """Delete the files of :data:`PROGRESS` in the locked folder of a run that has a record."""
    for pattern in PROGRESS:
        for file in folder.glob(pattern):
            file.unlink()


def discard_leftovers(folder: Path) -> None:
    """Delete the progress of a finished run whose process was killed after it wrote the record, if this user may."""
    if any(any(folder.glob(pattern)) for pattern in PROGRESS) and not is_replacing(folder):
        with contextlib.suppress(OSError, UserError), lock_run_dir(folder) as is_ours:
            if is_ours and not is_replacing(folder):
                discard_progress(folder)


def _about(folder: Path) -> dict[str, Any]:
    """Return what was started in ``folder``; empty if nothing was, or the file is damaged."""
    try:
        content = json.loads((folder / CELL_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def is_replacing(folder: Path) -> bool:
    """Return whether the run in ``folder`` has started to replace its record, and has not done so yet."""
    started = _about(folder).get("started")
    return started is not None and _started_of_record(folder) not in ("", str(started))


def _started_of_record(folder: Path) -> str:
    """Return when the recorded run was started; empty without a readable record."""
    try:
        return str(json.loads(record_path(folder.parent, folder.name).read_text())["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def atomic_save(state: Mapping[str, Any], path: Path) -> None:
    """Save ``state`` with ``torch.save`` to a temporary file, then rename it."""
    import torch

    with replacing(path) as temporary:
        torch.save(state, temporary)


@dataclass(frozen=True)
class CellStatus:
    """Status of a cell: that of its record, ``running``, ``interrupted``, or ``broken`` (unreadable record).

    ``detail`` is the error or the last checkpoint. ``speed`` has ``tokens_per_second`` and ``mfu``, if they are known:
    of a finished run, or in the last row of ``metrics.csv``. Cell and hash of an unreadable record are empty.
    """

    cell: Mapping[str, Any]
    status: str
    detail: str
    config: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    hash: str = ""
    speed: Mapping[str, float | str] = field(default_factory=dict)


def cell_statuses(results_dir: Path) -> list[CellStatus]:
    """Return the status of every cell with a record or a folder in ``results_dir``, sorted by cell."""
    if not results_dir.is_dir():
        raise UserError(f"{results_dir} is not a folder: name the results_dir of a run")
    recorded = [path for path in record_paths(results_dir) if not is_replacing(path.with_suffix(""))]
    started = [path.parent for path in results_dir.glob(f"*/{CELL_FILE}")]
    statuses: dict[str, CellStatus] = {}
    for path in recorded:
        status = _status_of_record(path)
        name = path.stem if path.stem.partition("-")[0] == status.hash else status.hash or path.stem
        if path.stem == name or name not in statuses:  # a copy of a record does not count
            statuses[name] = status
    for folder in started:
        if record_path(results_dir, folder.name) not in recorded:
            statuses[folder.name] = _status_of_folder(folder)
    return sorted(statuses.values(), key=lambda status: [str(status.cell.get(key, "")) for key in CELL])


def parse_retried(text: str) -> list[str]:
    """Return the statuses in a comma-separated list; UserError for one that is not in :data:`RETRIED`."""
    names = text.split(",")
    if not set(names) <= set(RETRIED):
        raise UserError(f"--retry requires a comma-separated list of {', '.join(RETRIED)}, got '{text}'")
    return names


def _status_of_record(path: Path) -> CellStatus:
    try:
        record = Record.read(path)
    except UserError as error:
        return CellStatus({}, "broken", str(error))
    config = configured(record.config, record.changed)
    about = record.command, record.hash, record.engine_facts
    return CellStatus(record.cell, record.status, record.error, config, *about)


def _status_of_folder(folder: Path) -> CellStatus:
    content = _about(folder)
    try:
        cell, config, command = dict(content["cell"]), dict(content["config"]), content["command"]
    except (KeyError, TypeError, ValueError):
        return CellStatus({}, "broken", f"{folder / CELL_FILE} cannot be read")
    steps = [path.stem.removeprefix("step-").lstrip("0") for path in sorted(folder.glob("step-*.ckpt"))]
    detail = f"checkpoint at step {steps[-1]}" if steps else "no checkpoint yet"
    status = "running" if is_locked(folder / LOCK) else "interrupted"
    return CellStatus(cell, status, detail, config, command, folder.name, _last_row(folder / "metrics.csv"))


def _last_row(path: Path) -> dict[str, str]:
    """Return the last row of a CSV file that a process may be writing, or an empty dict without a row."""
    try:
        with path.open(newline="") as file:
            return max(csv.DictReader(file), key=lambda row: int(row["step"]), default={})
    except (OSError, ValueError, TypeError, KeyError):
        return {}
