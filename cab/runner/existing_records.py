"""Decide which cells need no run because they have a valid record; every way to run cells asks this module."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cab.errors import UserError
from cab.records.record import Record, Status, record_path
from cab.runner.cell import Cell
from cab.runner.provenance import attention_code

log = logging.getLogger("cab")


class ExistingRecords:
    """Records of earlier runs, compared with the cells of one command.

    The data on disk are read once per task and data set.

    Args:
        reads_data: compare the fingerprints of the data; false for a dry run.
    """

    def __init__(self, *, reads_data: bool = True) -> None:
        self.reads_data = reads_data
        self._fingerprints: dict[str, Mapping[str, Any] | None] = {}

    def find(self, cell: Cell) -> Record | None:
        """Return the valid record of a cell; None if the cell must run.

        A cell runs without a readable record, or if ``force`` or ``retry`` requests it. Without the data, a record is
        accepted.

        Raises:
            UserError: the record is of another cell, or was measured on different data.
        """
        path = record_path(cell.config.results_dir, cell.hash)
        if cell.config.force or not os.path.exists(path):  # noqa: PTH110  # also False for an invalid path
            return None
        try:
            record = Record.read(path)
        except UserError as error:
            log.warning("%s", error)
            return None
        if record.status in cell.config.retry:
            return None
        check_names(cell, record, path)
        if self.reads_data and record.status is Status.FINISHED:
            self._check_data(cell, record, path)
        if record.attention_code and record.attention_code != attention_code(cell):
            name = cell.config.attention.name
            log.warning("the code of %s has changed since its record was written; use force=true to rerun it", name)
        return record

    def is_current(self, cell: Cell, record: Record) -> bool:
        """Return whether a record was measured with the code and on the data that ``cell`` uses."""
        return record.attention_code == attention_code(cell) and self._fingerprint(cell) == record.data

    def _check_data(self, cell: Cell, record: Record, path: Path) -> None:
        fingerprint = self._fingerprint(cell)
        if fingerprint is None or fingerprint == record.data:
            return
        differing = [name for name in {**record.data, **fingerprint} if record.data.get(name) != fingerprint.get(name)]
        shown = ", ".join(
            f"{name} was {record.data.get(name)!s:.40}, is {fingerprint.get(name)!s:.40}" for name in differing
        )
        raise UserError(
            f"{path} was measured on different data ({shown}): use force=true to run the cell again and replace it"
        )

    def _fingerprint(self, cell: Cell) -> Mapping[str, Any] | None:
        """Return the fingerprint of the data on disk; None if they cannot be read."""
        settings = {name: cell.config.resolved[name] for name in ("task", "dataset", "data_root")}
        key = json.dumps(settings, sort_keys=True)
        if key not in self._fingerprints:
            try:
                cell.task.setup(cell.config.data_root)
                self._fingerprints[key] = json.loads(json.dumps(cell.task.fingerprint()))
            except (UserError, ImportError, OSError):
                self._fingerprints[key] = None
        return self._fingerprints[key]


def check_names(cell: Cell, record: Record, path: Path) -> None:
    """Raise UserError if a record is not of ``cell``, or has other names than its code gives."""
    if record.hash != cell.hash:
        raise UserError(f"{path} contains the record of cell {record.hash}: rename it, or use force=true")
    for name, value in cell.key.items():
        if record.cell[name] != value:
            raise UserError(
                f"{path} has {name} {record.cell[name]!r:.60}, but its configuration is that of {value!r:.60}: "
                "use force=true to run the cell again and replace it"
            )
