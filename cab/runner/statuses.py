"""Status of every cell that was started in a results folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cab.errors import UserError
from cab.records.record import CELL, Record, Status, record_path
from cab.runner.folder import ABOUT, is_held, is_replacing

RETRIED = (*(status for status in Status if status is not Status.FINISHED), "interrupted")
"""Statuses that ``cab run --retry`` accepts."""


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
    found = [*_recorded(results_dir), *_started(results_dir)]
    return sorted(found, key=lambda status: [str(status.cell.get(key, "")) for key in CELL])


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
