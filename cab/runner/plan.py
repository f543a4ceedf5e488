"""Plan of a sweep: its cells with their expected cost and command."""

from __future__ import annotations

from collections.abc import Iterable

from cab.runner.cell import Cell
from cab.runner.engine import check_without_data
from cab.runner.report import Job, Report

COLUMNS = ("gpu_hours", "record", "command")


def plan(jobs: Iterable[Job], report: Report) -> list[list[str]]:
    """Return one row per cell with expected GPU hours, status of its record (empty: to be run) and command; then a sum.

    As in a real run, ``force`` and ``retry`` are applied, and invalid records are ignored. The hours of preset
    ``paper`` are from Table 15, the others are measured (configs/costs.csv); ``-`` means unknown. The sum excludes
    cells that are not run.
    """
    rows, total = [], 0.0
    for job in jobs:
        try:
            cell = Cell.from_config(job.config)
            check_without_data(cell)
            record = cell.existing_record()
        except ValueError as error:
            report.add_error(error, job.command)
            continue
        hours = cell.gpu_hours()
        if record is None:
            total += hours or 0.0
        rows.append(["-" if hours is None else f"{hours:g}", "" if record is None else str(record.status), job.command])
    return [*rows, [f"{total:g} GPU hours", "", f"total of {sum(not row[1] for row in rows)} cells to be run"]]
