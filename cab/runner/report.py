"""Which cells need no run because they have a record, and the outcomes of the cells of one command."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cab.errors import UnsupportedError, UserError, first_line
from cab.files.disk import check_writable
from cab.records.files import paths_of_hash, record_path
from cab.records.identity import DECISIVE, Identity, described, differences
from cab.records.record import Record, RunCost, Status
from cab.registry.program import UNKNOWN
from cab.runner.cell import Cell
from cab.runner.folder import discard_leftovers, is_replacing
from cab.runner.processes import status_of
from cab.runner.provenance import about_run, identity_of

log = logging.getLogger("cab")

EXIT_BUSY = os.EX_TEMPFAIL
"""Exit status of a command whose only cell another process is running."""


class OtherCodeError(UserError):
    """Records were measured with other code of the project than is installed, and the user has not said what follows.

    Args:
        texts: the modules that differ, as text per record.
        total: number of records that the command has found.
    """

    def __init__(self, texts: Sequence[str], total: int = 1) -> None:
        self.texts = texts
        modules = "; ".join(dict.fromkeys(texts))
        records, them, cells = (
            ("record was", "it", "its cell") if total == 1 else ("records were", "them", "their cells")
        )
        super().__init__(
            f"{len(texts)} of {total} {records} measured with {described('project', modules)}: add accept_code=true to "
            f"use {them}, or accept_code=false to run {cells} again"
        )


class ExistingRecords:
    """Records of earlier runs, compared with the cells of one command; a dry run does not read the data.

    The data on disk are read once per task and data set, and a message is logged once.
    """

    def __init__(self, *, reads_data: bool = True) -> None:
        self.reads_data = reads_data
        self._fingerprints: dict[str, Mapping[str, Any] | None] = {}
        self._logged: set[str] = set()

    def find(self, cell: Cell) -> Record | None:
        """Return the valid record of a cell; None if the cell must run.

        A cell runs without a readable record, or if ``force`` or ``retry`` requests it. A record of other code of the
        attention is another result, and is left alone. Without the data, a record is accepted.

        Raises:
            OtherCodeError: a record has other code of the project, and ``accept_code`` is not set: if it is true, the
                record is used; if it is false, the cell runs.
            UserError: a record has another configuration or other data.
        """
        if cell.config.force:
            return None
        accepts = cell.config.accept_code
        path, record = self._record_of(cell)
        if record is None or record.status in cell.config.retry:
            return None
        check_names(cell, record, path)
        reads_data = self.reads_data and record.status is Status.FINISHED
        changes = differences(record.identity(cell.renamed), self._identity(cell, reads_data=reads_data))
        if "attention" in changes and not accepts and UNKNOWN in record.program.attention.values():
            self._log(logging.WARNING, f"{cell.title} runs again: the code of the attention is in no file")
            return None
        refused = [kind for kind in DECISIVE if kind in changes and not (accepts and kind in ("attention", "project"))]
        if refused == ["project"]:
            if accepts is None:
                raise OtherCodeError([changes["project"]])
            self._log(logging.INFO, f"{cell.title} runs again: {described('project', changes['project'])}")
            return None
        if refused:
            words = "; ".join(described(kind, changes[kind]) for kind in refused)
            raise UserError(f"{path} was measured with {words}: use force=true to run the cell again and replace it")
        for kind, text in changes.items():
            words = f"{described(kind, text)} since; use force=true to rerun it"
            self._log(logging.WARNING, f"{cell.title}, cached: {words}")
        return record

    def check_code(self, jobs: Iterable[Job]) -> None:
        """Raise one OtherCodeError for all cells of a command; any other error is raised when the cell runs."""
        texts: list[str] = []
        total = 0
        for job in jobs:
            try:
                total += self.find(job.cell) is not None
            except OtherCodeError as error:
                texts += error.texts
            except Exception:
                continue
        if texts:
            raise OtherCodeError(texts, total + len(texts))

    def _record_of(self, cell: Cell) -> tuple[Path, Record | None]:
        """Return the record of a cell with its path; with ``accept_code``, also the newest of other code."""
        folder = cell.config.results_dir
        path = record_path(folder, cell.name)
        if (record := self._read(cell, path)) is not None:
            return path, record
        others = [other for other in paths_of_hash(folder, cell.hash) if other != path]
        records = [(other, record) for other in others if (record := self._read(cell, other)) is not None]
        records.sort(key=lambda pair: (pair[1].attention_code == cell.attention_code, pair[1].started), reverse=True)
        for other, record in records:
            if record.attention_code == cell.attention_code or cell.config.accept_code:
                return other, record
        if others:
            text = f"{cell.title}: {others[-1]} has other code of the attention; this is a new result"
            self._log(logging.INFO, text)
        return path, None

    def _log(self, level: int, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            log.log(level, "%s", text)

    def _read(self, cell: Cell, path: Path) -> Record | None:
        """Return the record at ``path``; None if there is none, or none that can be used."""
        if path not in paths_of_hash(path.parent, cell.hash):
            return None
        try:
            record = Record.read(path)
        except UserError as error:
            if isinstance(error.__cause__, OSError):  # perhaps a result of another user
                raise
            self._log(logging.WARNING, str(error))
            return None
        if record.hash != cell.hash:
            raise UserError(f"{path} contains the record of cell {record.hash}: rename it, or use force=true")
        return record

    def is_current(self, cell: Cell, record: Record) -> bool:
        """Return whether a record was measured with the code and on the data that ``cell`` uses."""
        if self._fingerprint(cell) is None:
            return False
        changes = differences(record.identity(cell.renamed), self._identity(cell, reads_data=True))
        return changes.keys() <= {"configuration"}  # the pattern and the attention, which are the same network

    def _identity(self, cell: Cell, *, reads_data: bool) -> Identity:
        return identity_of(cell, (self._fingerprint(cell) if reads_data else None) or {})

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


@dataclass(frozen=True)
class Job:
    """Resolved configuration of a cell, and the command that runs it alone."""

    config: Mapping[str, Any]
    command: str

    @functools.cached_property
    def cell(self) -> Cell:
        """The checked cell; see :meth:`Cell.from_config`."""
        return Cell.from_config(self.config)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a cell.

    Attributes:
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
            return "cached" if status is Status.FINISHED else f"cached ({status}; rerun with --retry {status})"
        if self.kind == "reused":
            return f"reused from {self.record.weights_reused_from}, which trained the same network"
        return str(status) if status is Status.FINISHED else f"{status} ({self.record.error})"


@dataclass
class Report:
    """Report of a command, filled cell by cell; a run without a score is a failure, whatever its reason.

    Attributes:
        raises: raise the error of a cell; for commands with a single cell.
        expected: total number of cells, to estimate the remaining time.
        left_out: reasons why combinations are skipped.
        started: start time, in seconds of the monotonic clock.
        earlier: versions of the records that the command may replace, see :func:`_version`.
    """

    raises: bool = False
    expected: int = 1
    outcomes: list[Outcome] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    earlier: dict[Path, tuple[int, int] | None] = field(default_factory=dict)
    existing: ExistingRecords = field(default_factory=ExistingRecords)

    @property
    def exit_status(self) -> int:
        """1 if there are failures; :data:`EXIT_BUSY` if another process runs the only cell; else 0."""
        is_busy = self.raises and any(outcome.kind == "locked" for outcome in self.outcomes)
        return 1 if self.failures else EXIT_BUSY if is_busy else 0

    def add(self, outcome: Outcome) -> None:
        """Add and log an outcome."""
        if outcome.record is not None and outcome.record.status is not Status.FINISHED:
            self.failures.append(f"{outcome.title}: {outcome.description}")
        self.outcomes.append(outcome)
        log.info("%s: %s%s", outcome.description, outcome.title, self.progress())

    def progress(self) -> str:
        """Return the number of completed cells, and the remaining time estimated from the trained ones."""
        if self.expected == 1:
            return ""
        done, trained = len(self.outcomes), sum(outcome.kind == "completed" for outcome in self.outcomes)
        if not trained or done >= self.expected:
            return f" ({done} of {self.expected})"
        pace = (time.monotonic() - self.started) / trained
        return f" ({done} of {self.expected}, about {duration(pace * (self.expected - done))} left)"

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
        record, is_new = None, False
        folder = cell.config.results_dir
        for path in paths_of_hash(folder, cell.hash):  # its code may have changed since
            with contextlib.suppress(UserError):
                record = Record.read(path)
            is_new = _version(path) != self.earlier.get(path)
            if record is not None and (is_new or path.stem == cell.name):
                break
        if record is None or ((cell.config.force or cell.config.retry) and not is_new):
            self.failures.append(f"{cell.title}: {otherwise}")
        else:
            self.add(Outcome(cell.title, "completed", record))

    def log_end(self) -> None:
        """Repeat the skipped combinations and failures at the end of the log."""
        for reason in dict.fromkeys(self.left_out):
            log.warning("skipped: %s", reason)
        for failure in self.failures:
            log.error("failed: %s", failure)


def duration(seconds: float) -> str:
    """Return a duration in minutes, or in hours if it is long."""
    hours = seconds / 3600
    return f"{seconds / 60:.2g} min" if hours < 1.5 else f"{hours:.4g} h" if hours < 1000 else f"{hours:,.0f} h"


def _version(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from one that replaced it, whatever the clocks of both machines."""
    try:
        about = path.stat()
    except OSError:  # in a set of records
        return None
    return about.st_ino, about.st_mtime_ns


def cached(cell: Cell, record: Record) -> Outcome:
    """Return the outcome of a cell that has a record."""
    if record.status is Status.FINISHED:
        discard_leftovers(cell.config.results_dir / cell.name)
    return Outcome(cell.title, "cached", record)


def cells_to_run(jobs: Iterable[Job], report: Report) -> Iterator[tuple[Cell, Job]]:
    """Yield the cells without a valid record; errors are reported before a cell is passed to another process."""
    for job in jobs:
        try:
            cell = job.cell
            record = report.existing.find(cell)
            if record is None:
                check_writable(cell.config.results_dir, "results_dir")
        except Exception as error:
            report.add_error(error, job.command)
            continue
        if record is None:
            paths = paths_of_hash(cell.config.results_dir, cell.hash)
            report.earlier |= {path: _version(path) for path in paths}
            yield cell, job
        else:
            report.add(cached(cell, record))


def record_lost_run(cell: Cell, command: str, error: Exception) -> None:
    """Write the record of a cell whose process ended without one, unless there is a record that it did not replace."""
    path = record_path(cell.config.results_dir, cell.name)
    if path.exists() and not is_replacing(path.with_suffix("")):
        return
    about, status = about_run(cell, command, None), status_of(error)
    record = Record.failed(about, status=status, error=error, step=None, cost=RunCost(), metrics=cell.task.metrics)
    record.write(cell.config.results_dir, cell.name)
