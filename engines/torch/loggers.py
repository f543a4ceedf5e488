"""Loggers of a training run. A logger that fails does not end the run."""

from __future__ import annotations

import csv
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cab.errors import UserError, first_line
from cab.runner.batches import StepBatches
from cab.runner.cell import Cell
from cab.runner.engine import Run

log = logging.getLogger(__name__)

COLUMNS = ("step", "loss", "validation", "auxiliary_loss", "learning_rate", "gradient_norm", "examples_per_second")


def check_logger(name: str) -> None:
    """Raise UserError if the logger is not installed."""
    if name != "csv" and importlib.util.find_spec(name) is None:
        raise UserError(f"logger={name} is not installed. Run: `pip install 'cab-benchmark[{name}]'`")


class Loggers:
    """Progress, ``metrics.csv`` in the folder of the run, and the configured logger; written by the first process."""

    def __init__(self, run: Run, order: StepBatches) -> None:
        progress = Progress(run, order)
        self.steps = progress.steps
        self._batch_size, self._step, self._began = order.shares.batch_size, order.start, time.perf_counter()
        self._loggers: list[Any] = [progress] if run.processes.is_first else []
        for kind in (MetricsFile, *LOGGERS[run.cell.config.logger.name]) if run.processes.is_first else ():
            try:
                self._loggers.append(kind(run.cell, run.folder))
            except Exception as error:
                _warn(error)

    def examples_per_second(self, step: int) -> float:
        """Return the speed of the training between the last line and ``step``."""
        return (step - self._step) * self._batch_size / (time.perf_counter() - self._began)

    def write(self, step: int, numbers: Mapping[str, float | None]) -> None:
        """Write the numbers of a step to all loggers."""
        present = {name: value for name, value in numbers.items() if value is not None and name != "step"}
        self._call("write", step, present)
        self._step, self._began = step, time.perf_counter()

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
    log.warning("logger disabled after an error: %s: %s", type(error).__name__, first_line(error))


class Progress:
    """A progress bar on a terminal, and otherwise a line of the log per tenth of the run; with ``-v`` all lines.

    To iterate over ``steps``, the remaining ones, moves the bar.
    """

    def __init__(self, run: Run, order: StepBatches) -> None:
        self._title, self._total = run.cell.title, order.num_steps
        self._tenth = 10 * order.start // max(1, order.num_steps)
        self._shown: dict[str, float] = {}
        self.steps: Any = range(order.start, order.num_steps)
        if run.processes.is_first and sys.stderr.isatty():
            options: dict[str, Any] = {"initial": order.start, "smoothing": 0, "leave": False, "dynamic_ncols": True}
            self.steps = tqdm(self.steps, run.cell.title, order.num_steps, **options)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._shown |= {name: numbers[name] for name in ("loss", "validation") if name in numbers}
        text = ", ".join(f"{name} {value:.4f}" for name, value in self._shown.items())
        level, tenth = logging.DEBUG, 10 * step // self._total
        if isinstance(self.steps, tqdm):
            self.steps.set_postfix_str(text, refresh=False)
        elif tenth > self._tenth:
            level, self._tenth = logging.INFO, tenth
        log.log(level, "step %d of %d, %s", step, self._total, text, extra={"run": self._title})


class MetricsFile:
    """A CSV file with one row per ``trainer.log_every`` steps and per validation.

    The loss is the mean since the row before. A resumed run appends, so rows after its checkpoint occur twice.
    """

    def __init__(self, cell: Cell, folder: Path) -> None:  # noqa: ARG002
        self._file = (folder / "metrics.csv").open("a", newline="")
        self._rows = csv.DictWriter(self._file, COLUMNS)
        if self._file.tell() == 0:
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
    """Weights & Biases; a resumed run continues the same W&B run.

    Without WANDB_MODE, a run is online if the user is logged in. Its config is the resolved configuration, its summary
    contains the metrics of the evaluation.
    """

    def __init__(self, cell: Cell, folder: Path) -> None:
        import requests
        import wandb

        is_logged_in = "WANDB_API_KEY" in os.environ or requests.utils.get_netrc_auth(wandb.setup().settings.base_url)
        mode: Any = os.environ.get("WANDB_MODE") or ("online" if is_logged_in else "offline")
        options = cell.config.logger.options
        self._run = wandb.init(
            id=cell.name,
            name=cell.title,
            config=dict(cell.config.resolved),
            project=options["project"],
            group=options["group"],
            dir=folder,
            resume="allow",
            mode=mode,
        )

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({**numbers, "step": step})

    def write_scores(self, scores: Mapping[str, float]) -> None:
        self._run.summary.update(dict(scores))

    def close(self) -> None:
        self._run.finish()


LOGGERS: dict[str, list[type[Tensorboard | Wandb]]] = {"csv": [], "tensorboard": [Tensorboard], "wandb": [Wandb]}
"""Choices of ``logger=`` and the loggers that each adds to ``metrics.csv``."""
