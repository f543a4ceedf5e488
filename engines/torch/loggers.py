"""Loggers of a training run. A logger that fails does not end the run."""

from __future__ import annotations

import csv
import importlib.util
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cab.errors import UserError
from cab.runner.cell import Cell
from cab.runner.engine import Run

log = logging.getLogger(__name__)

COLUMNS = ("step", "loss", "validation", "auxiliary_loss")


def check_logger(name: str) -> None:
    """Raise UserError if the logger is unknown or not installed."""
    if name not in LOGGERS:
        raise UserError(f"unknown logger '{name}': choose {', '.join(LOGGERS)}")
    if name != "csv" and importlib.util.find_spec(name) is None:
        raise UserError(f"logger={name} is not installed. Run: `pip install 'cab-benchmark[{name}]'`")


class Loggers:
    """The log, ``metrics.csv`` in the folder of the run, and the configured logger; written by the first process."""

    def __init__(self, run: Run) -> None:
        self._is_first, self._title = run.processes.is_first, run.cell.title
        self._loggers: list[Any] = []
        kinds: list[Callable[[Cell, Path], Any]] = [MetricsFile, *LOGGERS[run.cell.config.logger.name]]
        for kind in kinds if self._is_first else []:
            try:
                self._loggers.append(kind(run.cell, run.folder))
            except Exception as error:
                _warn(error)

    def write(self, entry: Mapping[str, float | None]) -> None:
        """Write an entry of the history to all loggers."""
        numbers = {name: value for name, value in entry.items() if value is not None and name != "step"}
        step = int(entry["step"] or 0)
        if self._is_first:
            text = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
            log.info("step %d, %s", step, text, extra={"run": self._title})
        self._call("write", step, numbers)

    def write_scores(self, scores: Mapping[str, float]) -> None:
        """Write the metrics of the evaluation to all loggers."""
        self._call("write_scores", scores)

    def close(self) -> None:
        """Close all loggers, before the next run of a sweep starts."""
        self._call("close")

    def _call(self, method: str, *arguments: Any) -> None:
        """Call a method of the loggers that have it; one that fails is reported once and removed."""
        for logger in [*self._loggers]:
            try:
                if hasattr(logger, method):
                    getattr(logger, method)(*arguments)
            except Exception as error:
                _warn(error)
                self._loggers.remove(logger)


def _warn(error: Exception) -> None:
    log.warning("logger disabled after an error: %s: %s", type(error).__name__, error)


class MetricsFile:
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


class Tensorboard:
    """Event files in the folder ``tensorboard`` of the run."""

    def __init__(self, cell: Cell, folder: Path) -> None:  # noqa: ARG002
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder / "tensorboard")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Wandb:
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


LOGGERS: dict[str, list[type[Tensorboard | Wandb]]] = {"csv": [], "tensorboard": [Tensorboard], "wandb": [Wandb]}
"""Choices of ``logger=`` and the loggers that each adds to ``metrics.csv``."""
