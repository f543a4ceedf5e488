"""Whether a record that is already there was measured on the data that its cell would read today."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cab.errors import UserError
from cab.records.record import Record, Status, record_path
from cab.runner.cell import Cell


class DataCheck:
    """Reads the data once for each task and data set of a command: one cell of a sweep differs in its attention."""

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, Any] | None] = {}

    def check(self, cell: Cell, record: Record) -> None:
        """UserError when the record is of other data, or of another cell than its file name says.

        Where the data are not on this machine the record is taken at its word.
        """
        path = record_path(cell.config.results_dir, cell.hash)
        if record.hash != cell.hash:
            raise UserError(f"{path} is the record of cell {record.hash}: rename it, or run the cell with force=true")
        today = self._fingerprint(cell) if record.status is Status.FINISHED else None
        if today is None or today == record.data:
            return
        differing = [name for name in {**record.data, **today} if record.data.get(name) != today.get(name)]
        shown = ", ".join(f"{name} was {record.data.get(name)!s:.40}, is {today.get(name)!s:.40}" for name in differing)
        raise UserError(
            f"{path} was measured on other data ({shown}): "
            "force=true runs the cell on today's, and replaces that record"
        )

    def is_current(self, cell: Cell, record: Record) -> bool:
        """Whether the record was measured on the data that ``cell`` would read."""
        return self._fingerprint(cell) == record.data

    def _fingerprint(self, cell: Cell) -> Mapping[str, Any] | None:
        """Of the data as they are now; None where they cannot be read."""
        what = {name: cell.config.resolved[name] for name in ("task", "dataset", "data_root")}
        key = json.dumps(what, sort_keys=True)
        if key not in self._known:
            try:
                cell.task.setup(cell.config.data_root)
                self._known[key] = json.loads(json.dumps(cell.task.fingerprint()))
            except (UserError, ImportError, OSError):
                self._known[key] = None
        return self._known[key]
