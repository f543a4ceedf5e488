"""Decide which cells need no run because they have a valid record; every way to run cells asks this module."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cab.errors import UserError
from cab.records.origin import Origin
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
        if record.hash != cell.hash:
            raise UserError(f"{path} contains the record of cell {record.hash}: rename it, or use force=true")
        check_names(cell, record, path)
        reads_data = self.reads_data and record.status is Status.FINISHED
        changes = Origin.of_record(record).changes(self._origin(cell, reads_data=reads_data))
        if "data" in changes:
            raise UserError(
                f"{path} was measured on {changes['data']}: use force=true to run the cell again and replace it"
            )
        for change in changes.values():
            log.warning("%s, cached: %s since; use force=true to rerun it", cell.title, change)
        return record

    def is_current(self, cell: Cell, record: Record) -> bool:
        """Return whether a record was measured with the code and on the data that ``cell`` uses."""
        is_known = bool(record.attention_code) and self._fingerprint(cell) is not None
        return is_known and not Origin.of_record(record).changes(self._origin(cell, reads_data=True))

    def _origin(self, cell: Cell, *, reads_data: bool) -> Origin:
        fingerprint = (self._fingerprint(cell) if reads_data else None) or {}
        return Origin.of(attention_code(cell), fingerprint, cell.config.resolved["trainer"])

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
    """Raise UserError if a record has other names than the code of ``cell`` gives."""
    for name, value in cell.key.items():
        if record.cell[name] != value:
            raise UserError(
                f"{path} has {name} {record.cell[name]!r:.60}, but its configuration is that of {value!r:.60}: "
                "use force=true to run the cell again and replace it"
            )
