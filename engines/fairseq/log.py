"""fairseq's log as the metrics of a run: rows of ``metrics.csv`` and of loggers, and the history of its record."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable
from contextlib import closing
from statistics import fmean
from typing import Any

from cab.runner.engine import Run
from engines.torch.loggers import Loggers
from engines.torch.loop import make_order

STATISTICS = re.compile(r"\| (train_inner|valid|test) \| (\{.*\})$")
LOGGED_COLUMNS = {"learning_rate": "learning_rate", "gradient_norm": "gnorm", "epoch": "update"}
"""Columns of ``metrics.csv``, and their names in the log; the first one is of CAB's plug-in."""
LOSS_COLUMNS = ("loss", "validation", "auxiliary_loss")
Row = dict[str, float | None]


class Rows:
    """Rows of a training: one per ``every`` steps and per validation, as with ``engine=torch``.

    Losses are in nats; those of training are means since the row before. The gradient norm is fairseq's, a mean too.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._row: Row = {"step": 0}
        self._losses: dict[str, list[float]] = {"loss": [], "auxiliary_loss": []}

    @property
    def step(self) -> int:
        """The last step in the log."""
        return int(self._row["step"] or 0)

    def read(self, line: str) -> Row | None:
        """Read a line of the log and return the row that it completes, if any."""
        match = STATISTICS.search(line.rstrip())
        if match is None:
            return None
        kind, numbers = match[1], json.loads(match[2])
        prefix = "" if kind == "train_inner" else f"{kind}_"
        step = int(numbers[f"{prefix}num_updates"])
        done = self.finish() if step != self.step else None
        if step < self.step:  # the log of a run that was interrupted, and resumed from an earlier step
            self._losses = {name: [] for name in self._losses}
        if step != self.step:
            self._row = {"step": step}
        if kind == "train_inner":
            self._add_training(numbers)
        else:
            loss = numbers.get(f"{prefix}nll_loss", numbers[f"{prefix}loss"])
            self._row["validation"] = float(loss) * math.log(2)
        return done

    def _add_training(self, numbers: dict[str, Any]) -> None:
        for name, unit in (("loss", math.log(2)), ("auxiliary_loss", 1.0)):
            if name in numbers:
                self._losses[name].append(float(numbers[name]) * unit)
        self._row |= {name: float(numbers[theirs]) for name, theirs in LOGGED_COLUMNS.items() if theirs in numbers}
        if float(numbers.get("wpb", 0)):  # words per batch; a rate of updates would be rounded to two decimals
            self._row["examples_per_second"] = float(numbers["wps"]) / float(numbers["wpb"]) * float(numbers["bsz"])

    def finish(self, *, is_last: bool = False) -> Row | None:
        """Return the row of the last step, if there is one; with ``is_last`` at the end of the training."""
        if not self.step or not (is_last or self.step % self._every == 0 or "validation" in self._row):
            return None
        self._row |= {name: fmean(losses) for name, losses in self._losses.items() if losses}
        self._losses = {name: [] for name in self._losses}
        return self._row


def history(lines: Iterable[str], every: int) -> list[Row]:
    """Return the record's entries from a whole log. After an interruption, later entries replace earlier ones."""
    rows = Rows(every)
    complete = [*map(rows.read, lines), rows.finish(is_last=True)]
    entries: dict[int, Row] = {}
    for row in filter(None, complete):
        empty = {"step": row["step"], "loss": None, "validation": None}
        entries[int(row["step"] or 0)] = empty | {name: row[name] for name in LOSS_COLUMNS if name in row}
    return [entries[step] for step in sorted(entries)]


class LiveLog:
    """Progress, ``metrics.csv`` and the configured logger, which are written as fairseq writes its log."""

    def __init__(self, run: Run) -> None:
        self._run, self._rows = run, Rows(run.cell.config.trainer.log_every)
        self._loggers: Loggers | None = None
        self._bar: Any = iter(())
        self._shown = 0

    @property
    def step(self) -> int:
        """The last step in the log."""
        return self._rows.step

    def read(self, line: str) -> None:
        """Read a line of the log."""
        self._write(self._rows.read(line))

    def finish(self, steps: int) -> Loggers:
        """Write the last row, and return the loggers of a training of ``steps`` steps."""
        self._write(self._rows.finish(is_last=True))
        return self._open(steps)

    def _write(self, row: Row | None) -> None:
        if row is None:
            return
        step = int(row["step"] or 0)
        self._open(step - 1).write(step, {"peak_memory_bytes": None, **row})  # that of fairseq's process is unknown
        for _ in itertools.islice(self._bar, step - self._shown):
            self._shown += 1

    def _open(self, start: int) -> Loggers:
        """Return the loggers, which are opened at the first row: it shows from which step fairseq resumed."""
        if self._loggers is None:
            order = make_order(len(self._run.cell.task.training_set), self._run)  # type: ignore[arg-type]
            order.start = self._shown = start
            self._loggers = self._run.open_files.enter_context(closing(Loggers(self._run, order)))
            self._bar = iter(self._loggers.steps)
        return self._loggers
