"""The plan of a sweep: which runs are left to do, and how long they take, without data and without training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cab.config.run_config import SlurmConfig
from cab.runner.cell import GPU, Cell
from cab.runner.engine import check_without_data
from cab.runner.report import ExistingRecords, Job, Report, duration
from cab.runner.run import same_network
from cab.runner.slurm_request import time_warnings

PLAN_COLUMNS = ("expected_time", "record", "command")
SUMMARY_COLUMNS = ("pattern", "task", "backbone", "dataset", "runs", "to_do", "hours_per_run", "hours")
REUSED = "reused"
"""Status of a run that trains the same network as an earlier one of the plan."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of a plan.

    Attributes:
        status: that of its record, :data:`REUSED`, or empty if it is to be done.
        hours: expected hours; None if unknown.
        hardware: what the hours are of, such as ``GPU``.
    """

    cell: Cell
    command: str
    status: str
    hours: float | None
    hardware: str

    @property
    def hours_to_do(self) -> float:
        """Expected hours of a run that is to be done; 0 for others."""
        return 0.0 if self.status else self.hours or 0.0


def planned_runs(jobs: Iterable[Job], report: Report) -> list[PlannedRun]:
    """Return the runs of composed cells; a cell with an error is added to the report.

    As in a real run, ``force`` and ``retry`` are applied, and invalid records are ignored. The times of preset
    ``paper`` are from Table 15, the others are measured (configs/costs.csv).
    """
    existing, runs, trained, jobs = ExistingRecords(reads_data=False), [], set[str](), list(jobs)
    if not report.raises:
        existing.check_code(jobs)
    for job in jobs:
        try:
            cell = Cell.from_config(job.config)
            check_without_data(cell)
            record = existing.find(cell)
        except ValueError as error:
            report.add_error(error, job.command)
            continue
        hours, hardware = cell.expected_hours() or (None, "")
        if hardware != GPU and job.config["cluster"]["name"] == "slurm" and cell.config.device != "cpu":
            hours, hardware = None, ""  # measured on other hardware
        status = "" if record is None else str(record.status)
        if not status and not cell.config.force and any(twin.hash in trained for twin in same_network(cell)):
            status = REUSED
        trained.add(cell.hash)
        runs.append(PlannedRun(cell, job.command, status, hours, hardware))
    return runs


def plan_rows(runs: Sequence[PlannedRun]) -> list[list[str]]:
    """Return one row per run with expected time (``-``: unknown), status (empty: to be done) and command; then a sum.

    The sum is of the runs to be done.
    """
    rows = []
    for run in runs:
        shown = "-" if run.hours is None else f"{duration(3600 * run.hours)} ({run.hardware})"
        rows.append([shown, run.status, run.command])
    left = [run for run in runs if not run.status]
    totals: defaultdict[str, float] = defaultdict(float)
    for run in left:
        totals[run.hardware] += 3600 * run.hours_to_do
    total = " + ".join(f"{duration(seconds)} ({name})" for name, seconds in totals.items() if name) or "-"
    unknown = sum(run.hours is None for run in left)
    missing = f", without the {unknown} of unknown time" if unknown else ""
    return [*rows, [total, "", f"total of {len(left)} runs to be done{missing}"]]


def summary_rows(runs: Sequence[PlannedRun]) -> list[list[str]]:
    """Return one row per pattern, task, backbone and data set, with the columns :data:`SUMMARY_COLUMNS`; then a sum."""
    places: dict[tuple[str, ...], list[PlannedRun]] = {}
    for run in runs:
        key = run.cell.key
        places.setdefault(tuple(str(key[name]) for name in SUMMARY_COLUMNS[:4]), []).append(run)
    rows = []
    for place, of_place in places.items():
        each = sorted({run.hours for run in of_place if run.hours is not None})
        rows.append([*place, *_counts(of_place), " to ".join(map(_digits, dict.fromkeys((*each[:1], *each[-1:]))))])
    rows = [[*row, _digits(sum(run.hours_to_do for run in of))] for row, of in zip(rows, places.values(), strict=True)]
    return [*rows, ["total", "", "", "", *_counts(runs), "", _digits(sum(run.hours_to_do for run in runs))]]


def _counts(runs: Sequence[PlannedRun]) -> list[str]:
    return [str(len(runs)), str(sum(not run.status for run in runs))]


def _digits(hours: float) -> str:
    """Format hours in plain digits."""
    return f"{hours:,.0f}" if hours >= 100 or hours == int(hours) else f"{hours:.3g}"


def plan_notes(runs: Sequence[PlannedRun], cluster: SlurmConfig, *, gpus: int = 8) -> Iterator[str]:
    """Yield the total in days, what is left out of it, and a warning for runs beyond the limits of a Slurm cluster."""
    left = [run for run in runs if not run.status]
    on_gpu = sum(run.hours_to_do for run in left if run.hardware == GPU)
    if on_gpu:
        days, fewer = on_gpu / 24, on_gpu / 24 / gpus
        yield f"{on_gpu:,.0f} GPU hours: {days:,.0f} days on 1 GPU, {fewer:,.0f} days on {gpus} GPUs"
    reused = [run for run in runs if run.status == REUSED]
    if reused:
        hours = sum(run.hours or 0 for run in reused)
        total = hours + sum(run.hours_to_do for run in left)
        yield (
            f"{len(reused)} runs train the same network as another one: {_digits(hours)} of {_digits(total)} hours are "
            "not counted again"
        )
    if unknown := sum(run.hours is None for run in left):
        yield f"{unknown} runs of unknown time are not counted"
    yield from time_warnings([run.cell for run in left if run.hardware == GPU], cluster)
