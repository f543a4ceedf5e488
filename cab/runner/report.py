"""Outcomes of the cells of one command."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cab.errors import UnsupportedError, UserError, first_line
from cab.files.disk import check_writable
from cab.records.record import Record, Status, now, record_path
from cab.runner.cell import Cell
from cab.runner.existing_records import ExistingRecords

log = logging.getLogger("cab")

BUSY = os.EX_TEMPFAIL
"""Exit status of a command whose only cell another process is running."""


@dataclass(frozen=True)
class Job:
    """Resolved configuration of a cell, and the command that runs it alone."""

    config: Mapping[str, Any]
    command: str


@dataclass(frozen=True)
class Outcome:
    """Outcome of a cell.

    Attributes:
        title: description of the cell.
        kind: ``completed``; ``cached`` (its record existed); ``reused`` (another cell trained the same network);
            ``locked`` (another process runs it); ``non_main_rank`` (another process of the run writes the record).
        record: its record, if there is one.
    """

    title: str
    kind: Literal["completed", "cached", "reused", "locked", "non_main_rank"]
    record: Record | None

    @property
    def description(self) -> str:
        """Description for the log."""
        if self.record is None:
            return self.kind
        status = self.record.status
        if self.kind == "cached":
            again = "" if status is Status.FINISHED else f" ({status}; rerun with --retry {status})"
            return f"cached{again}"
        if self.kind == "reused":
            return f"reused from {self.record.weights_reused_from}, which trained the same network"
        return str(status) if status is Status.FINISHED else f"{status} ({self.record.error})"


@dataclass
class Report:
    """Report of a command, filled cell by cell.

    Attributes:
        raises: raise the error of a cell, and count a run without score as a failure; for commands with a single cell.
        expected: total number of cells, to estimate the remaining time.
        outcomes: outcomes so far.
        left_out: reasons why combinations are skipped.
        failures: one message per failure.
        started: start time, in seconds of the monotonic clock.
        began: start time in UTC (ISO 8601).
        existing: records of earlier runs.
    """

    raises: bool = False
    expected: int = 1
    outcomes: list[Outcome] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    began: str = field(default_factory=now)
    existing: ExistingRecords = field(default_factory=ExistingRecords)

    @property
    def exit_status(self) -> int:
        """1 if there are failures; :data:`BUSY` if another process runs the only cell; else 0."""
        is_busy = self.raises and any(outcome.kind == "locked" for outcome in self.outcomes)
        return 1 if self.failures else BUSY if is_busy else 0

    def add(self, outcome: Outcome) -> None:
        """Add and log an outcome."""
        status = outcome.record.status if outcome.record is not None else Status.FINISHED
        if status is Status.FAILED or (self.raises and status is not Status.FINISHED):
            self.failures.append(f"{outcome.title}: {outcome.description}")
        self.outcomes.append(outcome)
        log.info("%s: %s%s", outcome.description, outcome.title, self.progress())

    def progress(self) -> str:
        """Return the number of completed cells, and the remaining time estimated from the trained ones."""
        done, trained = len(self.outcomes), sum(outcome.kind == "completed" for outcome in self.outcomes)
        if self.expected == 1:
            return ""
        left = ""
        if trained and done < self.expected:
            pace = (time.monotonic() - self.started) / trained
            left = f", about {_duration(pace * (self.expected - done))} left"
        return f" ({done} of {self.expected}{left})"

    def add_error(self, error: Exception, about: str) -> None:
        """Add a cell without a record: skipped if the combination is unsupported, else a failure."""
        if self.raises:
            raise error
        self.expected -= 1
        if isinstance(error, UnsupportedError):
            self.left_out.append(str(error))
            return
        log.error("%s", error if isinstance(error, UserError) else "".join(traceback.format_exception(error)))
        self.failures.append(f"{about}: {first_line(error)}")

    def add_recorded(self, cell: Cell, *, otherwise: str) -> None:
        """Add a cell that another process ran, from its record on disk; without one, fail with reason ``otherwise``.

        The record that ``force`` or ``retry`` was to replace does not count.
        """
        record = None
        with contextlib.suppress(UserError):
            record = Record.read(record_path(cell.config.results_dir, cell.hash))
        if record is None or ((cell.config.force or cell.config.retry) and record.ended < self.began):
            self.failures.append(f"{cell.title}: {otherwise}")
        else:
            self.add(Outcome(cell.title, "completed", record))

    def log_end(self) -> None:
        """Repeat the skipped combinations and failures at the end of the log."""
        for reason in dict.fromkeys(self.left_out):
            log.warning("skipped: %s", reason)
        for failure in self.failures:
            log.error("failed: %s", failure)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def cells_to_run(jobs: Iterable[Job], report: Report) -> Iterator[tuple[Cell, Job]]:
    """Yield the cells without a valid record; errors are reported before a cell is passed to another process."""
    for job in jobs:
        try:
            cell = Cell.from_config(job.config)
            record = report.existing.find(cell)
            if record is None:
                check_writable(cell.config.results_dir, "results_dir")
        except Exception as error:
            report.add_error(error, job.command)
            continue
        if record is None:
            yield cell, job
        else:
            report.add(Outcome(cell.title, "cached", record))
