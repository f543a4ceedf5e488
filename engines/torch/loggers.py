"""Loggers of a training run. A logger that fails does not end the run."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import logging
import os
import secrets
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cab.errors import UserError, first_line
from cab.records.files import weights_path
from cab.records.record import Record
from cab.runner.batches import StepBatches
from cab.runner.cell import Cell
from cab.runner.engine import Run
from cab.runner.provenance import peak_memory

log = logging.getLogger(__name__)

METRICS_COLUMNS = (
    "step", "loss", "validation", "auxiliary_loss", "learning_rate", "gradient_norm", "examples_per_second",
    "tokens_per_second", "mfu", "epoch", "peak_memory_bytes",
)  # fmt: skip


def check_logger(name: str) -> None:
    """Raise UserError if the logger is not installed."""
    if name != "csv" and importlib.util.find_spec(name) is None:
        raise UserError(f"logger={name} is not installed. Run: `pip install 'cab-benchmark[{name}]'`")


class Loggers:
    """Progress, ``metrics.csv`` in the folder of the run, and the configured logger; written by the first process."""

    def __init__(self, run: Run, order: StepBatches) -> None:
        progress = Progress(run, order)
        self.steps = progress.steps
        self._order, self._device = order, run.device
        self._loggers: list[Any] = [progress] if run.processes.is_first else []
        for kind in (MetricsFile, *LOGGERS[run.cell.config.logger.name]) if run.processes.is_first else ():
            try:
                self._loggers.append(kind(run.cell, run.folder, order.start))
            except Exception as error:
                _warn(error)

    def write(self, step: int, numbers: Mapping[str, float | None]) -> None:
        """Write the numbers of a step, and its epoch and memory unless they are given, to all loggers."""
        measured = {"epoch": step / self._order.steps_per_epoch, "peak_memory_bytes": peak_memory(self._device)}
        numbers = {**measured, **numbers}
        self._call("write", step, {key: value for key, value in numbers.items() if value is not None and key != "step"})

    def write_record(self, record: Record) -> None:
        """Write the record of the run to all loggers."""
        self._call("write_record", record)

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

    The loss is the mean since the row before. A resumed run replaces the rows after its checkpoint.
    """

    def __init__(self, cell: Cell, folder: Path, start: int) -> None:  # noqa: ARG002
        kept = rows_until(folder, start)
        self._file = (folder / "metrics.csv").open("w", newline="")
        self._rows = csv.DictWriter(self._file, METRICS_COLUMNS, extrasaction="ignore")
        self._rows.writeheader()
        self._rows.writerows(kept)
        self._file.flush()

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._rows.writerow({"step": step, **numbers})
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def rows_until(folder: Path, step: int) -> list[dict[str, str]]:
    """Return the rows of ``metrics.csv`` up to a step."""
    path = folder / "metrics.csv"
    if not step or not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if int(row["step"]) <= step]


class Tensorboard:
    """Event files in the folder ``tensorboard`` of the run; a resumed run hides the steps after its checkpoint."""

    def __init__(self, cell: Cell, folder: Path, start: int) -> None:  # noqa: ARG002
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder / "tensorboard", purge_step=start + 1 if start else None)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


WANDB_VARIABLES = {
    "project": "WANDB_PROJECT",
    "group": "WANDB_RUN_GROUP",
    "name": "WANDB_NAME",
    "tags": "WANDB_TAGS",
    "dir": "WANDB_DIR",
}
"""Variables of W&B by the argument of ``wandb.init`` that they set if it is None."""


class Wandb:
    """Weights & Biases: the step is that of the training, and a resumed run continues the same W&B run.

    The user's variables and settings of W&B come before the defaults of :data:`WANDB_VARIABLES`; without a mode in
    them, a run is online if the user is logged in. Its config is the resolved configuration; its summary has metrics,
    trivial baselines, costs and the hash of the record. The artifact, if any, is the record and the weights.
    """

    def __init__(self, cell: Cell, folder: Path, start: int) -> None:
        import wandb

        options = dict(cell.config.logger.options)
        self._has_artifact, self._weights = options.pop("artifact"), weights_path(cell.config.results_dir, cell.name)
        options["mode"] = options["mode"] or os.environ.get("WANDB_MODE") or _usual_mode()
        options["name"] = options.pop("run_name")
        usual = {"project": "cab", "group": str(cell.config.results_dir), "name": cell.title, "tags": [], "dir": folder}
        usual["project"] = wandb.setup().settings.project or usual["project"]
        for option, variable in WANDB_VARIABLES.items():
            options[option] = options.get(option) or (None if os.environ.get(variable) else usual[option])
        config = {**cell.config.resolved, "hash": cell.hash}
        self._run = wandb.init(id=_run_id(folder), config=config, resume="allow", **options)
        if options["mode"] == "offline":  # the file of a process that was killed lacks its last rows
            for row in rows_until(folder, start):
                numbers = {name: float(value) for name, value in row.items() if value}
                self.write(int(numbers.pop("step")), numbers)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def write_record(self, record: Record) -> None:
        costs = {f"cost/{name}": value for name, value in dataclasses.asdict(record.cost).items() if value is not None}
        baselines = {
            f"baseline/{name}/{metric}": value
            for name, metrics in record.baselines.items()
            for metric, value in metrics.items()
        }
        metrics = {metric.name: metric.value for metric in record.metrics}
        self._run.summary.update({**metrics, **baselines, **costs, "hash": record.hash})
        if self._has_artifact:
            import wandb

            artifact = wandb.Artifact(f"run-{self._run.id}", type="run")
            with tempfile.TemporaryDirectory() as temporary:
                artifact.add_file(str(record.write(Path(temporary))), name="record.json")
                artifact.add_file(str(self._weights), name="weights.pt")
                self._run.log_artifact(artifact)

    def close(self) -> None:
        self._run.finish()


def _usual_mode() -> str:
    """Return the mode of W&B's settings, such as offline after `wandb offline`, or else online if logged in."""
    import requests
    import wandb

    settings = wandb.setup().settings
    if settings.mode != "online":  # its default
        return str(settings.mode)
    is_logged_in = "WANDB_API_KEY" in os.environ or requests.utils.get_netrc_auth(settings.base_url)
    return "online" if is_logged_in else "offline"


def _run_id(folder: Path) -> str:
    """Return the identifier of the W&B run of this folder: that of its first process, and of no other user's run."""
    file = folder / "wandb-id"
    if not file.exists():
        file.write_text(f"{folder.name}-{secrets.token_hex(4)}")
    return file.read_text()


LOGGERS: dict[str, list[type[Tensorboard | Wandb]]] = {"csv": [], "tensorboard": [Tensorboard], "wandb": [Wandb]}
"""Choices of ``logger=`` and the loggers that each adds to ``metrics.csv``."""
