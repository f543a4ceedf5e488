"""What became of the cells of one command."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cab.errors import UnsupportedError, UserError, first_line
from cab.files.folders import check_writable
from cab.records.record import Record, Status, record_path
from cab.runner.cell import Cell
from cab.runner.data_check import DataCheck

log = logging.getLogger("cab")


@dataclass(frozen=True)
class Job:
    """The resolved configuration of a cell, and the command that runs it alone."""

    config: Mapping[str, Any]
    command: str


@dataclass(frozen=True)
class Outcome:
    """What came of a cell: ``completed``, ``cached`` (its record was there), ``reused`` (another cell's run was of
    it), ``locked`` (another run has it), or ``non_main_rank`` (this process is not the first of its run, which writes
    the
    record).
    """

    title: str
    kind: Literal["completed", "cached", "reused", "locked", "non_main_rank"]
    record: Record | None

    @property
    def description(self) -> str:
        """In words."""
        if self.record is None:
            return self.kind
        status = self.record.status
        if self.kind == "cached":
            again = "" if status is Status.FINISHED else f" ({status}; --retry {status} runs it again)"
            return f"already there{again}"
        if self.kind == "reused":
            return f"the network of {self.record.weights_reused_from}, trained once"
        return str(status) if status is Status.FINISHED else f"{status} ({self.record.error})"


@dataclass
class Report:
    """Filled cell by cell.

    Attributes:
        raises: the error of a cell is raised instead of noted, and no score is a failure: of a command that has but
            one cell.
        expected: cells in all, for the time that is left.
        left_out: why named combinations are no cells.
        failures: a line each.
        data: what checks the records that are already there.
    """

    raises: bool = False
    expected: int = 1
    outcomes: list[Outcome] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    data: DataCheck = field(default_factory=DataCheck)

    @property
    def exit_status(self) -> int:
        return 1 if self.failures else 0

    def add(self, outcome: Outcome) -> None:
        status = outcome.record.status if outcome.record is not None else Status.FINISHED
        if status is Status.FAILED or (self.raises and status is not Status.FINISHED):
            self.failures.append(f"{outcome.title}: {outcome.description}")
        self.outcomes.append(outcome)
        log.info("%s: %s%s", outcome.description, outcome.title, self.progress())

    def progress(self) -> str:
        """Which cell of how many that was, and the time the rest will take at the pace of those that were trained."""
        done, trained = len(self.outcomes), sum(outcome.kind == "completed" for outcome in self.outcomes)
        if self.expected == 1:
            return ""
        left = ""
        if trained and done < self.expected:
            pace = (time.monotonic() - self.started) / trained
            left = f", about {_duration(pace * (self.expected - done))} left"
        return f" ({done} of {self.expected}{left})"

    def add_error(self, error: Exception, about: str) -> None:
        """A cell that wrote no record: left out when it cannot run, else a failure."""
        if self.raises:
            raise error
        self.expected -= 1
        if isinstance(error, UnsupportedError):
            self.left_out.append(str(error))
            return
        log.error("%s", error if isinstance(error, UserError) else "".join(traceback.format_exception(error)))
        self.failures.append(f"{about}: {first_line(error)}")

    def add_recorded(self, cell: Cell, *, otherwise: str) -> None:
        """What another process has made of the cell: the record on disk is the truth, ``otherwise`` says why none."""
        try:
            record = Record.read(record_path(cell.config.results_dir, cell.hash))
        except UserError:
            self.failures.append(f"{cell.title}: {otherwise}")
        else:
            self.add(Outcome(cell.title, "completed", record))

    def log_end(self) -> None:
        """Once more, at the end, what is easily overlooked above."""
        for reason in dict.fromkeys(self.left_out):
            log.warning("left out: %s", reason)
        for failure in self.failures:
            log.error("failed: %s", failure)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def cells_without_record(jobs: Iterable[Job], report: Report) -> Iterator[tuple[Cell, Job]]:
    """The cells to be run; what is wrong with one is known before it is given to another process."""
    for job in jobs:
        try:
            cell = Cell.from_config(job.config)
            record = cell.existing_record()
            if record is not None:
                report.data.check(cell, record)
            else:
                check_writable(cell.config.results_dir, "results_dir")
        except Exception as error:
            report.add_error(error, job.command)
            continue
        if record is None:
            yield cell, job
        else:
            report.add(Outcome(cell.title, "cached", record))
