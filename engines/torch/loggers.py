"""Where a training writes its numbers as it goes on; no logger can fail a run."""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from cab.errors import UserError
from cab.runner.cell import Cell
from cab.runner.engine import Run

log = logging.getLogger(__name__)

LOGGERS = ("csv", "tensorboard", "wandb")
COLUMNS = ("step", "loss", "validation", "auxiliary_loss")


def check_logger(name: str) -> None:
    """UserError for a logger that is not there."""
    if name not in LOGGERS:
        raise UserError(f"unknown logger '{name}': choose {', '.join(LOGGERS)}")
    if name != "csv" and importlib.util.find_spec(name) is None:
        raise UserError(f"logger={name} needs the extra: pip install 'cab-benchmark[{name}]'")


class Logger(Protocol):
    def write(self, step: int, numbers: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


@contextlib.contextmanager
def open_loggers(run: Run) -> Iterator[Loggers]:
    """The loggers of the run, closed at its end: the next cell of a sweep must not write into this one's."""
    loggers = Loggers(run)
    try:
        yield loggers
    finally:
        loggers.close()


class Loggers:
    """``metrics.csv`` in the folder of the run, the log, and what the configuration asks for; of one process alone."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loggers: list[Logger] = []
        makers: dict[str, list[Callable[[Cell, Path], Logger]]] = {
            "csv": [MetricsFile],
            "tensorboard": [MetricsFile, Tensorboard],
            "wandb": [MetricsFile, Wandb],
        }
        for maker in makers[run.cell.config["logger"]["name"]] if run.processes.is_first else []:
            self._guarded(functools.partial(self._open, maker))

    def _open(self, maker: Callable[[Cell, Path], Logger]) -> None:
        self._loggers.append(maker(self._run.cell, self._run.folder))

    def write(self, entry: Mapping[str, float | None]) -> None:
        numbers = {name: value for name, value in entry.items() if value is not None and name != "step"}
        step = int(entry["step"] or 0)
        if self._run.processes.is_first:
            log.info("step %d, %s", step, ", ".join(f"{name} {value:.4f}" for name, value in numbers.items()))
        for logger in [*self._loggers]:
            self._guarded(functools.partial(logger.write, step, numbers), logger)

    def close(self) -> None:
        for logger in [*self._loggers]:
            self._guarded(logger.close, logger)

    def _guarded(self, call: Callable[[], object], logger: Logger | None = None) -> None:
        """A logger that breaks is reported once, and asked no more."""
        try:
            call()
        except Exception as error:
            log.warning("a logger gave up: %s: %s", type(error).__name__, error)
            if logger is not None:
                self._loggers.remove(logger)


class MetricsFile:
    """A row an entry; a run that goes on adds its own, so those after its checkpoint stand twice."""

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


class Tensorboard:
    def __init__(self, cell: Cell, folder: Path) -> None:  # noqa: ARG002
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder / "tensorboard")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """Offline unless WANDB_MODE says otherwise; a run that goes on is the same run there."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        import wandb

        options = cell.config["logger"]
        self._run = wandb.init(
            id=cell.hash,
            name=cell.title,
            project=options["project"],
            group=options["group"],
            dir=folder,
            resume="allow",
            mode="online" if os.environ.get("WANDB_MODE") == "online" else "offline",
        )

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({**numbers, "step": step})

    def close(self) -> None:
        self._run.finish()
