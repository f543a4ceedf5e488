"""Check whether an existing record was measured on the current data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cab.errors import UserError
from cab.records.record import Record, Status, record_path
from cab.runner.cell import Cell


class DataCheck:
    """Compare records with the data on disk, which is read once per task and data set of a command."""

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, Any] | None] = {}

    def check(self, cell: Cell, record: Record) -> None:
        """Check that a record belongs to the cell and the data on disk; without the data, the record is accepted.

        Raises:
            UserError: the record was measured on different data, or its file name is wrong.
        """
        path = record_path(cell.config.results_dir, cell.hash)
        if record.hash != cell.hash:
            raise UserError(f"{path} contains the record of cell {record.hash}: rename it, or use force=true")
        check_names(cell, record, path)
        today = self._fingerprint(cell) if record.status is Status.FINISHED else None
        if today is None or today == record.data:
            return
        differing = [name for name in {**record.data, **today} if record.data.get(name) != today.get(name)]
        shown = ", ".join(f"{name} was {record.data.get(name)!s:.40}, is {today.get(name)!s:.40}" for name in differing)
        raise UserError(
            f"{path} was measured on different data ({shown}): use force=true to run the cell again and replace it"
        )

    def is_current(self, cell: Cell, record: Record) -> bool:
        """Return whether the record was measured on the data that ``cell`` reads."""
        return self._fingerprint(cell) == record.data

    def _fingerprint(self, cell: Cell) -> Mapping[str, Any] | None:
        """Return the fingerprint of the data on disk; None if they cannot be read."""
        settings = {name: cell.config.resolved[name] for name in ("task", "dataset", "data_root")}
        key = json.dumps(settings, sort_keys=True)
        if key not in self._known:
            try:
                cell.task.setup(cell.config.data_root)
                self._known[key] = json.loads(json.dumps(cell.task.fingerprint()))
            except (UserError, ImportError, OSError):
                self._known[key] = None
        return self._known[key]


def check_names(cell: Cell, record: Record, path: Path) -> None:
    """Check the names in a record that follow from the code: the variant of the data set, and the attention's options.

    Raises:
        UserError: the record has other names than ``cell``.
    """
    for name, value in cell.key.items():
        if record.cell[name] != value:
            raise UserError(
                f"{path} has {name} {record.cell[name]!r:.60}, but its configuration is that of {value!r:.60}: "
                "use force=true to run the cell again and replace it"
            )
