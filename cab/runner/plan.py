"""Plan of a sweep: its cells with their expected cost and command."""

from __future__ import annotations

from collections.abc import Iterable

from cab.runner.cell import Cell
from cab.runner.engine import check_without_data
from cab.runner.report import Job, Report

COLUMNS = ("expected_time", "record", "command")


def plan(jobs: Iterable[Job], report: Report) -> list[list[str]]:
    """Return one row per cell with expected time, status of its record (empty: to be run) and command; then a sum.

    As in a real run, ``force`` and ``retry`` are applied, and invalid records are ignored. The hours of preset
    ``paper`` are from Table 15, the others are measured (configs/costs.csv); ``-`` means unknown. The sum excludes
    cells that are not run.
    """
    rows = []
    totals: dict[str, float] = {}
    unknown = 0
    for job in jobs:
        try:
            cell = Cell.from_config(job.config)
            check_without_data(cell)
            record = cell.existing_record()
        except ValueError as error:
            report.add_error(error, job.command)
            continue
        expected = cell.expected_hours()
        if record is None and expected is None:
            unknown += 1
        elif record is None and expected is not None:
            totals[expected[1]] = totals.get(expected[1], 0.0) + expected[0]
        shown = "-" if expected is None else _time(*expected)
        rows.append([shown, "" if record is None else str(record.status), job.command])
    total = " + ".join(_time(hours, hardware) for hardware, hours in totals.items()) or "-"
    missing = f", without the {unknown} of unknown time" if unknown else ""
    return [*rows, [total, "", f"total of {sum(not row[1] for row in rows)} runs to be done{missing}"]]


def _time(hours: float, hardware: str) -> str:
    return f"{hours:.4g} h ({hardware})"
