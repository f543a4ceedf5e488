"""Cells of a sweep that have not started: listed in a file while the sweep runs, so that `cab status` shows them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.files.disk import remove_leftovers, replacing
from cab.runner.folder import CellStatus, cell_statuses

if TYPE_CHECKING:  # imports torch, without which statuses are read
    from cab.runner.report import Job

PENDING_FOLDER = ".pending"
"""Folder of the results with one file per sweep that has not ended."""


@contextlib.contextmanager
def listed_as_pending(jobs: Iterable[Job], *, ends: bool = True) -> Iterator[None]:
    """List the cells of a sweep in their results folders, until the block ends without an exception.

    Args:
        ends: whether the sweep ends with the block; submitted jobs do not.
    """
    from cab.runner.report import duration

    cells: dict[Path, list[dict[str, Any]]] = {}
    for job in jobs:
        with contextlib.suppress(Exception):  # the run reports it
            cell, (hours, hardware) = job.cell, job.cell.expected_hours() or (None, "")
            detail = "" if hours is None else f"expected {duration(3600 * hours)} ({hardware})"
            row = {"cell": cell.key, "config": job.config, "command": job.command, "hash": cell.hash, "detail": detail}
            cells.setdefault(cell.config.results_dir, []).append(row)
    paths = []
    for folder, rows in cells.items():
        text = json.dumps(rows)
        paths.append(folder / PENDING_FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(paths[-1].parent, is_locked=False)
        with replacing(paths[-1]) as partial:
            partial.write_text(text)
    yield
    for path in paths if ends else ():
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another sweep has a file in it
            path.parent.rmdir()


def statuses_of(results_dir: Path) -> list[CellStatus]:
    """Return the status of every cell with a record or a folder, and then of those that a sweep has not started."""
    statuses = cell_statuses(results_dir)
    started = {status.hash for status in statuses}
    pending = {}
    for path in sorted((results_dir / PENDING_FOLDER).glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a file that is being replaced, or damaged
            for row in json.loads(path.read_text()):
                if row["hash"] not in started:
                    known = CellStatus(
                        row["cell"], "pending", row["detail"], row["config"], row["command"], row["hash"]
                    )
                    pending[known.hash] = known
    return [*statuses, *pending.values()]
