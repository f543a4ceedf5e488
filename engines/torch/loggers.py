"""Loggers of a training run. A logger that fails does not end the run."""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cab.errors import UserError
from cab.runner.cell import Cell
from cab.runner.engine import Run

log = logging.getLogger(__name__)

LOGGERS = ("csv", "tensorboard", "wandb")
COLUMNS = ("step", "loss", "validation", "auxiliary_loss")


def check_logger(name: str) -> None:
    """Raise UserError if the logger is unknown or not installed."""
    if name not in LOGGERS:
        raise UserError(f"unknown logger '{name}': choose {', '.join(LOGGERS)}")
    if name != "csv" and importlib.util.find_spec(name) is None:
        raise UserError(f"logger={name} is not installed. Run: `pip install 'cab-benchmark[{name}]'`")


class Logger:
    """A destination for the numbers of a run."""

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of an entry of the history."""
        raise NotImplementedError

    def write_scores(self, scores: Mapping[str, float]) -> None:
        """Write the metrics of the evaluation; a logger without a place for them ignores them."""

    def close(self) -> None:
        """Write everything to disk."""
        raise NotImplementedError


@contextlib.contextmanager
def open_loggers(run: Run) -> Iterator[Loggers]:
    """Open the loggers of a run and close them at its end, before the next run of a sweep starts."""
    loggers = Loggers(run)
    try:
        yield loggers
    finally:
        loggers.close()


class Loggers:
    """The log, ``metrics.csv`` in the folder of the run, and the configured logger; written by the first process."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loggers: list[Logger] = []
        makers: dict[str, list[Callable[[Cell, Path], Logger]]] = {
            "csv": [MetricsFile],
            "tensorboard": [MetricsFile, Tensorboard],
            "wandb": [MetricsFile, Wandb],
        }
        for maker in makers[run.cell.config.logger.name] if run.processes.is_first else []:
            self._guarded(functools.partial(self._open, maker))

    def _open(self, maker: Callable[[Cell, Path], Logger]) -> None:
        self._loggers.append(maker(self._run.cell, self._run.folder))

    def write(self, entry: Mapping[str, float | None]) -> None:
        """Write an entry of the history to all loggers."""
        numbers = {name: value for name, value in entry.items() if value is not None and name != "step"}
        step = int(entry["step"] or 0)
        if self._run.processes.is_first:
            text = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
            log.info("step %d, %s", step, text, extra={"run": self._run.cell.title})
        for logger in [*self._loggers]:
            self._guarded(functools.partial(logger.write, step, numbers), logger)

    def write_scores(self, scores: Mapping[str, float]) -> None:
        """Write the metrics of the evaluation to all loggers."""
        for logger in [*self._loggers]:
            self._guarded(functools.partial(logger.write_scores, scores), logger)

    def close(self) -> None:
        """Close all loggers."""
        for logger in [*self._loggers]:
            self._guarded(logger.close, logger)

    def _guarded(self, call: Callable[[], object], logger: Logger | None = None) -> None:
        """Call a logger; if it fails, report that once and remove it."""
        try:
            call()
        except Exception as error:
            log.warning("logger disabled after an error: %s: %s", type(error).__name__, error)
            if logger is not None:
                self._loggers.remove(logger)


class MetricsFile(Logger):
    """A CSV file with one row per entry. A resumed run appends, so entries after its checkpoint occur twice."""

    def __init__(self, cell: Cell, folder: Path) -> None:  # noqa: ARG002
        path = folder / "metrics.csv"
        is_new = not path.exists()
        self._file = path.open("a", newline="")
        self._rows = csv.DictWriter(self._file, COLUMNS)
        if is_new:
            self._rows.writeheader()

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._rows.writerow({"step": step, **numbers})
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Tensorboard(Logger):
    """Event files in the folder ``tensorboard`` of the run."""

    def __init__(self, cell: Cell, folder: Path) -> None:  # noqa: ARG002
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder / "tensorboard")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Wandb(Logger):
    """Weights & Biases, offline unless WANDB_MODE is ``online``; a resumed run continues the same W&B run.

    Its config is the resolved configuration, its summary contains the metrics of the evaluation.
    """

    def __init__(self, cell: Cell, folder: Path) -> None:
        import wandb

        options = cell.config.logger.options
        self._run = wandb.init(
            id=cell.hash,
            name=cell.title,
            config=dict(cell.config.resolved),
            project=options["project"],
            group=options["group"],
            dir=folder,
            resume="allow",
            mode="online" if os.environ.get("WANDB_MODE") == "online" else "offline",
        )

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({**numbers, "step": step})

    def write_scores(self, scores: Mapping[str, float]) -> None:
        self._run.summary.update(dict(scores))

    def close(self) -> None:
        self._run.finish()
