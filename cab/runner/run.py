"""From a resolved configuration to a record on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib.util
import json
import logging
import shutil
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.errors import UserError
from cab.record import Cost, Record, Status, record_path, weights_path
from cab.runner.cell import Cell
from cab.runner.engines import OWN, Trained, find_engine
from cab.runner.faults import StopSignals, disk_errors, is_full_disk, status_of

if TYPE_CHECKING:
    from cab.backbone import Backbone
    from cab.record import About
    from cab.runner.optimizer import TrainerConfig
    from cab.runner.processes import Processes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What came of a cell: ``trained``, ``found`` (its record was there), ``busy`` (another run has it), or ``helped``
    (this process is not the first of its run, which writes the record)."""

    title: str
    status: str
    record: Record | None


def run_cell(config: Mapping[str, Any], *, command: str = "") -> Outcome:
    """Run one cell, unless its record exists; go on from its last checkpoint if it was cut.

    A run that fails leaves a record too, with its status and no score.

    Args:
        config: the resolved configuration. ``force`` runs a cell with a record again from its start, ``retry`` one
            whose record has one of its statuses from its last checkpoint. The old record is deleted.
        command: the command line, kept in the record.

    Raises:
        ValueError: a mistake in the configuration or in the data; nothing has been written then.
        Preempted: a signal asked to stop; the checkpoint is on disk.
    """
    cell = Cell.from_config(config)
    found = existing_record(cell)
    if found is not None:
        return Outcome(cell.title, "found", found)
    _check(cell)
    from cab.runner.processes import find_processes

    processes = find_processes()
    if not processes.is_first:
        _record(cell, cell.results_dir / cell.hash, command, processes)
        return Outcome(cell.title, "helped", None)
    with _claim(cell, command) as folder:
        if folder is None and processes.count > 1:
            raise UserError(f"another process is running {cell.title}")
        if folder is None:
            log.warning("another process is running %s", cell.title)
            return Outcome(cell.title, "busy", None)
        found = existing_record(cell)  # by a process that held the folder until now
        if found is not None:
            return Outcome(cell.title, "found", found)
        _delete_record(cell, folder)
        with disk_errors(cell.results_dir):
            record = _record(cell, folder, command, processes)
            assert record is not None
            record.write(cell.results_dir)
        _clean(folder, record)
    return Outcome(cell.title, "trained", record)


def existing_record(cell: Cell) -> Record | None:
    """The record of an earlier run that need not be repeated."""
    path = record_path(cell.results_dir, cell.hash)
    if cell.config["force"] or not path.exists():
        return None
    try:
        record = Record.read(path)
    except UserError:  # a broken record is no record: run the cell again
        return None
    return None if record.status in cell.config["retry"] else record


def _delete_record(cell: Cell, folder: Path) -> None:
    """Delete the record of a cell that is run again: if this run is cut it has none, and goes on like any other.

    Under ``force`` what the old run left goes as well, but not what this one has saved when it starts a second time.
    """
    path = record_path(cell.results_dir, cell.hash)
    if not path.exists():
        return
    if cell.config["force"]:
        for child in folder.iterdir():
            if child.name not in ("lock", "cell.json"):
                shutil.rmtree(child) if child.is_dir() else child.unlink()
    path.unlink()


def _record(cell: Cell, folder: Path, command: str, processes: Processes) -> Record | None:
    """The record of the run, whatever becomes of it; None in a process that is not the first of its run."""
    from cab.runner.provenance import about_run

    started = time.perf_counter()
    about = about_run(cell, command, choose_device(cell.config["device"]))
    try:
        return _train_and_evaluate(cell, about, folder, processes)
    except UserError:
        raise
    except Exception as error:
        if is_full_disk(error) or not processes.is_first:
            raise
        (folder / "traceback.txt").write_text(traceback.format_exc())
        seconds, step = time.perf_counter() - started, getattr(error, "step", None)
        cost = Cost(steps=step, processes=processes.count, train_seconds=seconds, wall_seconds=seconds)
        return Record.failed(
            about, status=status_of(error), error=error, step=step, cost=cost, metrics=cell.task.metrics
        )


def _clean(folder: Path, record: Record) -> None:
    """Keep what a finished run is looked at for; of others keep the checkpoints, in case they are run again."""
    if record.status is not Status.FINISHED:
        return
    for pattern in ("step-*.ckpt", "*.tmp", "best-*.pt", "average-*.pt", "last.pt"):
        for file in folder.glob(pattern):
            file.unlink()


def _check(cell: Cell) -> None:
    """Everything that can be wrong, before anything is written: device, training, data, network."""
    from cab.runner.loggers import check_logger

    choose_device(cell.config["device"])
    trainer_config(cell)
    check_logger(cell.config["logger"]["name"])
    check_packages(cell)
    if cell.engine != OWN:
        find_engine(cell.engine).check(cell, trainer_config(cell))
    cell.task.setup(cell.data_root)
    make_backbone(cell, "meta")


def trainer_config(cell: Cell) -> TrainerConfig:
    """The ``trainer`` group, checked."""
    from cab.runner.optimizer import TrainerConfig

    return TrainerConfig(**cell.config["trainer"])


def make_backbone(cell: Cell, device: str = "cpu") -> Backbone:
    """The network of the cell, sized by its data; on ``meta`` it has no memory."""
    import torch

    from cab.build import build_backbone

    options = {**cell.backbone_options, **cell.task.backbone_options(cell.backbone)}
    with torch.device(device):
        return build_backbone(
            cell.backbone,
            attention=cell.attention,
            pattern=cell.pattern,
            elsewhere={str(p): {"name": spec.name, **spec.options} for p, spec in cell.elsewhere.items()},
            **options,
        )


@contextlib.contextmanager
def _claim(cell: Cell, command: str) -> Iterator[Path | None]:
    """The folder of the run, held by this process alone; None when another process holds it."""
    folder = cell.results_dir / cell.hash
    with disk_errors(cell.results_dir):
        folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
            return
        with disk_errors(cell.results_dir):
            about = {"cell": cell.key, "command": command, "config": dict(cell.config)}
            (folder / "cell.json").write_text(json.dumps(about, indent=1))
        yield folder


def _train_and_evaluate(cell: Cell, about: About, folder: Path, processes: Processes) -> Record | None:
    import lightning as L
    import torch

    from cab.runner.loggers import open_loggers
    from cab.runner.order import mix_seed
    from cab.runner.provenance import PeakMemory
    from cab.runner.watch import DeviceBatches, save_whole

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    started = time.perf_counter()
    device = choose_device(cell.config["device"])
    config = trainer_config(cell)
    memory = PeakMemory(device)
    signals = StopSignals()
    with signals.watched(), open_loggers(cell, folder) as loggers:
        L.seed_everything(cell.config["seed"], verbose=False)
        backbone = make_backbone(cell)
        if cell.engine == OWN:
            run = _train(cell, backbone, config, device, folder, signals, processes, loggers)
        else:
            run = find_engine(cell.engine).train(cell, backbone, config, device=device, folder=folder)
        if not processes.is_first:
            return None
        trained = time.perf_counter()
        save_whole(backbone.state_dict(), weights_path(cell.results_dir, cell.hash))
        batches = DeviceBatches(device)
        torch.manual_seed(mix_seed(cell.config["seed"], -1))  # what evaluation draws is the same after a resume
        with torch.no_grad(), config.autocast(device):
            scores = cell.task.evaluate(backbone, batches)
            cell.task.draw(backbone, batches, folder)
        if run.history:
            draw_loss(run.history, cell.title, folder / "loss.png")
        baselines = cell.task.baselines()
    cost = Cost(
        params=sum(parameter.numel() for parameter in backbone.parameters()),
        steps=run.steps,
        processes=processes.count,
        best_step=run.best_step,
        train_seconds=run.earlier_seconds + trained - started,
        wall_seconds=run.earlier_seconds + time.perf_counter() - started,
        peak_memory_bytes=memory.read(),
        peak_memory_kind=memory.kind,
    )
    return Record.finished(
        about,
        metrics=[metric.measured(scores.get(metric.name)) for metric in cell.task.metrics],
        baselines=baselines,
        history=run.history,
        cost=dataclasses.replace(cost, **run.cost),
        engine_facts=run.facts,
    )


def _train(
    cell: Cell,
    backbone: Backbone,
    config: TrainerConfig,
    device: Any,
    folder: Path,
    signals: StopSignals,
    processes: Processes,
    loggers: list[Any],
) -> Trained:
    """Train by our own loop."""
    from cab.runner.training import train

    watch = train(
        cell.task,
        backbone,
        config,
        seed=cell.config["seed"],
        device=device,
        folder=folder,
        title=cell.title,
        loggers=loggers,
        signals=signals,
        processes=processes,
    )
    best_step = watch.best_step if config.keep == "best" else 0
    return Trained(watch.history, watch.steps, best_step, watch.earlier_seconds)


def choose_device(name: str) -> Any:
    """``auto`` is the GPU where there is one. UserError for a GPU that is not there."""
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"device must be auto, cpu or cuda, got '{name}'")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda, but torch sees no GPU; use device=cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def check_packages(cell: Cell) -> None:
    """UserError for a package that the task needs and that is not installed."""
    missing = [extra for module, extra in cell.task.packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        extras = ",".join(sorted(set(missing)))
        name = cell.config["task"]["name"]
        raise UserError(f"task '{name}' needs an extra: pip install 'cab-benchmark[{extras}]'")


def draw_loss(history: list[dict[str, float | None]], title: str, path: Path) -> None:
    """Training loss and validation score over the steps, as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="tight")
    axis = figure.subplots()
    for name, label in (("loss", "training loss"), ("validation", "validation")):
        points = [(entry["step"], value) for entry in history if (value := entry[name]) is not None]
        if points:
            axis.plot(*zip(*points, strict=True), marker="o", label=label)
    axis.set_xlabel("step")
    axis.legend(frameon=False)
    axis.set_title(title, fontsize="medium")
    figure.savefig(path, dpi=110)
