"""From a resolved configuration to a record on disk."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import importlib.util
import logging
import math
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.errors import UserError
from cab.results import SCHEMA, read_record, record_path, write_record
from cab.runner.cell import Cell

if TYPE_CHECKING:
    from cab.backbone import Backbone
    from cab.runner.optimizer import TrainerConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What came of a cell: ``status`` is ``trained``, ``found`` (its record was there) or ``busy``."""

    title: str
    status: str
    record: Mapping[str, Any] | None


def run_cell(config: Mapping[str, Any], *, command: str = "") -> Outcome:
    """Run one cell, unless its record exists; go on from its last checkpoint if it was cut.

    Args:
        config: the resolved configuration.
        command: the command line, kept in the record.

    Raises:
        ValueError: a mistake in the configuration or in the data; nothing has been written then.
    """
    cell = Cell.from_config(config)
    path = record_path(cell.results_dir, cell.hash)
    if path.exists() and not config["force"]:
        with contextlib.suppress(UserError):  # a broken record is no record: run the cell again
            return Outcome(cell.title, "found", read_record(path))
    _check(cell)
    with _claim(cell.results_dir / cell.hash, fresh=bool(config["force"])) as folder:
        if folder is None:
            log.warning("another process is running %s", cell.title)
            return Outcome(cell.title, "busy", None)
        record = _train_and_evaluate(cell, folder, command)
        write_record(record, cell.results_dir)
        best = f"best-{record['cost']['best_step']:08d}.pt"
        for pattern in ("step-*.ckpt", "*.tmp", "best-*.pt", "average-*.pt"):
            for file in folder.glob(pattern):
                if file.name != best:
                    file.unlink()
    return Outcome(cell.title, "trained", record)


def _check(cell: Cell) -> None:
    """Everything that can be wrong, before anything is written: device, training, data, network."""
    import torch

    choose_device(cell.config["device"])
    trainer_config(cell)
    check_logger(cell.config["logger"]["name"])
    cell.task.setup(cell.data_root)
    with torch.device("meta"):
        make_backbone(cell)


def trainer_config(cell: Cell) -> TrainerConfig:
    """The ``trainer`` group, checked."""
    from cab.runner.optimizer import TrainerConfig

    trainer = dict(cell.config["trainer"])
    return TrainerConfig(**{**trainer, "betas": tuple(trainer["betas"])})


def make_backbone(cell: Cell) -> Backbone:
    """The network of the cell, sized by its data."""
    from cab.build import build_backbone

    return build_backbone(
        cell.backbone,
        attention=cell.attention,
        pattern=cell.pattern,
        elsewhere={str(p): {"name": spec.name, **spec.options} for p, spec in cell.elsewhere.items()},
        **{**cell.backbone_options, **cell.task.backbone_options()},
    )


@contextlib.contextmanager
def _claim(folder: Path, *, fresh: bool) -> Iterator[Path | None]:
    """The folder of a run, held by this process alone; None when another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
            return
        if fresh:
            for child in folder.iterdir():
                if child.name != "lock":
                    shutil.rmtree(child) if child.is_dir() else child.unlink()
        yield folder


def _train_and_evaluate(cell: Cell, folder: Path, command: str) -> dict[str, Any]:
    import lightning as L
    import torch

    from cab.runner.loggers import make_loggers
    from cab.runner.order import mix_seed
    from cab.runner.provenance import PeakMemory, hardware, revision, versions
    from cab.runner.training import DeviceBatches, train

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    started = time.perf_counter()
    device = choose_device(cell.config["device"])
    config = trainer_config(cell)
    memory = PeakMemory(device)
    L.seed_everything(cell.config["seed"], verbose=False)
    backbone = make_backbone(cell)
    watch = train(
        cell.task,
        backbone,
        config,
        seed=cell.config["seed"],
        device=device,
        folder=folder,
        title=cell.title,
        loggers=make_loggers(cell, folder),
    )
    trained = time.perf_counter()
    batches = DeviceBatches(device)
    torch.manual_seed(mix_seed(cell.config["seed"], -1))  # evaluation that draws, draws the same after a resume
    with torch.no_grad():
        scores = cell.task.evaluate(backbone, batches)
        cell.task.draw(backbone, batches, folder)
    draw_loss(watch.history, cell.title, folder / "loss.png")
    return {
        "schema": SCHEMA,
        "hash": cell.hash,
        "status": "finished",
        "cell": cell.key,
        "task_version": cell.task.version,
        "metrics": [
            {
                "name": metric.name,
                "value": _finite(scores[metric.name]),
                "unit": metric.unit,
                "higher_is_better": metric.higher_is_better,
                "primary": metric.primary,
            }
            for metric in cell.task.metrics
        ],
        "baselines": cell.task.baselines(),
        "history": watch.history,
        "cost": {
            "params": sum(parameter.numel() for parameter in backbone.parameters()),
            "steps": watch.steps,
            "best_step": watch.best_step,
            "train_seconds": trained - started,
            "wall_seconds": time.perf_counter() - started,
            "peak_memory_bytes": memory.read(),
            "peak_memory_kind": memory.kind,
        },
        "config": dict(cell.config),
        "command": command,
        "versions": versions(),
        "revision": revision(),
        "hardware": hardware(device),
        "data": cell.task.fingerprint(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def choose_device(name: str) -> Any:
    """``auto`` is the GPU where there is one. UserError for a GPU that is not there."""
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"device must be auto, cpu or cuda, got '{name}'")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda, but torch sees no GPU; use device=cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def check_logger(name: str) -> None:
    """UserError for a logger that is not there."""
    if name not in ("csv", "wandb"):
        raise UserError(f"unknown logger '{name}': choose csv or wandb")
    if name == "wandb" and importlib.util.find_spec("wandb") is None:
        raise UserError("logger=wandb needs the extra: pip install 'cab-benchmark[wandb]'")


def draw_loss(history: list[dict[str, float | None]], title: str, path: Path) -> None:
    """Training loss and validation score over the steps, as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    for name, label in (("loss", "training loss"), ("validation", "validation")):
        points = [(entry["step"], value) for entry in history if (value := entry[name]) is not None]
        if points:
            axis.plot(*zip(*points, strict=True), marker="o", label=label)
    axis.set_xlabel("step")
    axis.legend(frameon=False)
    axis.set_title(title, fontsize="medium")
    figure.savefig(path, dpi=110)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
