"""The first steps of a training on the present device: their times, or what an observer sees; nothing is kept."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from cab import kernels
from cab.backbone import Backbone
from cab.errors import UserError
from cab.records.identity import DEFAULT_ENGINE
from cab.runner.cell import Cell
from cab.runner.engine import Run, StepObserver, choose_device, find_engine, load_data, make_initial_backbone
from cab.runner.processes import Processes
from cab.spec import Spec

TIMED_STEPS = 20
"""Steps that are timed; the first quarter is not counted."""


def training_hours(cell: Cell) -> float:
    """Return the hours of all training steps of a cell by the median of its first ones; UserError without its data."""
    load_data(cell)
    times = [time.perf_counter()]

    def note(_: int, loss: Tensor) -> None:
        loss.item()  # waits for the device
        times.append(time.perf_counter())

    train_first_steps(cell, make_initial_backbone(cell), TIMED_STEPS, note, device=cell.config.device)
    seconds = [after - before for before, after in itertools.pairwise(times)]
    examples = len(cell.task.training_set)  # type: ignore[arg-type]
    num_steps = cell.config.trainer.num_steps(max(1, examples // cell.config.trainer.batch_size))
    return statistics.median(seconds[len(seconds) // 4 :]) * num_steps / 3600


def train_first_steps(
    cell: Cell, backbone: Backbone, steps: int, on_gradients: Callable[[int, Tensor], None], *, device: str
) -> None:
    """Train the backbone for some steps as ``engine=torch`` trains the cell, without validation.

    The task has its data. Nothing is written outside a temporary folder.
    """
    if cell.config.engine != DEFAULT_ENGINE:
        raise UserError(
            f"--steps and --calibrate observe engine={DEFAULT_ENGINE} only, got engine={cell.config.engine}"
        )
    trainer = dataclasses.replace(
        cell.config.trainer, checkpoint_selection="last", validate_every=None, patience=None, stop_at=None
    )
    with tempfile.TemporaryDirectory() as folder:
        config = dataclasses.replace(
            cell.config, results_dir=Path(folder), profile=False, logger=Spec("csv", {}), trainer=trainer
        )
        observed = Cell(config)
        vars(observed)["task"] = cell.task  # whose data are loaded
        where, observer = choose_device(device, Processes()), StepObserver(steps, on_gradients)
        run = Run(observed, "", find_engine(config.engine), where, Processes(), observer=observer)
        run.folder.mkdir()
        with config.matmul_precision(where), kernels.use(trainer.kernels), run.open_files:
            run.engine.train(run, backbone)
