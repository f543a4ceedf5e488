"""What a sweep would run: its cells, what they cost, and the command of each."""

from __future__ import annotations

from collections.abc import Iterable

from cab.runner.cell import Cell
from cab.runner.report import Job, Report

COLUMNS = ("gpu_hours", "record", "command")


def plan(jobs: Iterable[Job], report: Report) -> list[list[str]]:
    """A row a cell: estimated GPU hours, the status of its record (empty: to be run), and its command; then the sum.

    Whether a cell is to be run is what a real run decides: ``force`` and ``retry`` count, a broken record does not.

    The hours of preset ``paper`` are Table 15's, those of the others were measured (configs/costs.csv); a cell
    without a figure has ``-``. Cells that are not run again cost nothing more and are not in the sum.
    """
    rows, total = [], 0.0
    for job in jobs:
        try:
            cell = Cell.from_config(job.config)
            record = cell.existing_record()
        except ValueError as error:
            report.add_error(error, job.command)
            continue
        hours = cell.gpu_hours()
        if record is None:
            total += hours or 0.0
        rows.append(["-" if hours is None else f"{hours:g}", "" if record is None else str(record.status), job.command])
    return [*rows, [f"{total:g}", "", f"in all, of {sum(not row[1] for row in rows)} cells to be run"]]
