"""Training engines (``engine=NAME``): modules named by entry points of ``cab.engines``.

An engine checks a cell before anything is written, and trains its backbone from the given weights. The runner evaluates
the backbone and writes the record.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cab.backbone import AttentionFactory, Backbone
from cab.errors import UserError, exits_as_errors, first_line, unknown_name
from cab.files.cache import report_waiting
from cab.records.identity import Identity
from cab.records.record import Record
from cab.registry import build
from cab.registry.registries import ATTENTIONS, BACKBONES
from cab.registry.stacks import StackEntry
from cab.runner.cell import Cell, current_config
from cab.runner.processes import Processes, StopSignals, find_processes, limit_gpu_memory
from cab.runner.provenance import identity_of


@dataclass(frozen=True)
class Training:
    """Result of a training; the weights to evaluate are in the backbone. See :class:`cab.records.record.RunCost`.

    Attributes:
        history: entries with ``step``, ``loss`` and ``validation``, in nats.
        best_step: step of the weights, if validation selected them; else 0.
        steps_to_solve: step at which validation reached ``trainer.stop_at``; None if it did not.
        earlier_seconds: training time in interrupted processes, up to the checkpoint from which training resumed.
        cost: entries of the record's cost that this process cannot measure.
        facts: additional information for the record.
        log_record: called with the record of the finished run, for loggers that show it.
    """

    history: list[dict[str, float | None]]
    steps: int
    best_step: int
    steps_to_solve: int | None = None
    earlier_seconds: float = 0.0
    cost: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    log_record: Callable[[Record], object] = lambda _: None


class Engine(Protocol):
    """Functions that the module of an engine defines."""

    def check(self, cell: Cell, processes: Processes) -> None:
        """Raise UserError for a cell or setting that the engine does not support, before anything is written."""

    def train(self, run: Run, backbone: Backbone) -> Training:
        """Train ``backbone``, or resume; leave it on ``run.device``, in evaluation mode, the same in every process."""


@dataclass(frozen=True)
class StepObserver:
    """Observe the first steps of a training run, after which it stops; supported by ``engine=torch``.

    ``on_gradients`` gets the number of the step, starting at 1, and the task's loss, a scalar. The parameters then hold
    the gradients of the whole step, before clipping.
    """

    num_steps: int
    on_gradients: Callable[[int, Tensor], None]


@dataclass(frozen=True)
class Run:
    """A checked cell whose data are loaded, with the resources of its run.

    ``open_files`` are loggers and other resources that the engine opens, closed after the evaluation.
    """

    cell: Cell
    command: str
    engine: Engine
    device: torch.device
    processes: Processes
    signals: StopSignals = field(default_factory=StopSignals)
    observer: StepObserver | None = None
    open_files: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def identity(self) -> Identity:
        """Configuration, data and versions of the run, and the modules that were executed so far."""
        return identity_of(self.cell, self.cell.task.fingerprint(), self.device)

    @property
    def folder(self) -> Path:
        """Folder for logs, checkpoints and plots."""
        return self.cell.config.results_dir / self.cell.name


def open_run(cell: Cell, command: str) -> Run:
    """Check a cell, load its data and return its run; nothing is written."""
    processes, device, engine = check_without_data(cell)
    limit_gpu_memory(device)
    load_data(cell)
    with report_waiting(f"{cell.title}: building the network"), _build_errors(cell):
        # a trial without memory, before anything is written; the run builds the network in make_initial_backbone
        cell.task.load_initial_weights(make_backbone(cell, has_memory=False))
    return Run(cell, command, engine, device, processes)


def load_data(cell: Cell) -> None:
    """Load the data of a cell, after downloading them if ``data.download`` is set."""
    if cell.config.data.download:
        download_data(cell)
    with report_waiting(f"{cell.title}: loading the data"):
        cell.task.setup(cell.config.data_root)


def download_data(cell: Cell) -> None:
    """Download what a cell reads and is incomplete; UserError if that requires a manual download."""
    from cab.data.check import State, take_inventory
    from cab.data.download import download
    from cab.data.sources import data_sets, fetch_hint

    data_root, names = cell.config.data_root, (cell.config.dataset, *cell.task.extra_data)
    for data_set in (data_sets()[name] for name in names if name in data_sets()):
        if data_root is None:
            raise UserError("data.download=true requires a folder for the data: set data_root=FOLDER or CAB_DATA")
        if take_inventory(data_set, data_root).state is State.READY:
            continue
        inventory, manual_steps = download(data_set, data_root)
        if manual_steps and inventory.state is not State.READY:
            raise UserError(
                f"{data_set.name} must be downloaded manually: {'; '.join(manual_steps)}; then: "
                f"`{fetch_hint(data_set.name, data_root)} --source DOWNLOADED_FILE_OR_FOLDER`"
            )


def check_without_data(cell: Cell) -> tuple[Processes, torch.device, Engine]:
    """Check everything of a cell that does not depend on its data; return what its run needs besides them.

    ``--dry-run`` and ``--explain`` only check.
    """
    processes = find_processes()
    device = choose_device(cell.config.device, processes)
    _check_packages(cell)
    engine = find_engine(cell.config.engine)
    engine.check(cell, processes)
    attention = ATTENTIONS.get(cell.config.attention.name)
    if cell.label != attention.label or isinstance(attention, StackEntry):  # options or depth may be refused
        with _build_errors(cell), build.without_memory():
            _make_backbone(cell, cell.config.backbone.options)
    return processes, device, engine


@contextlib.contextmanager
def _build_errors(cell: Cell) -> Iterator[None]:
    """Convert the errors of constructors to UserError."""
    try:
        with exits_as_errors():
            yield
    except UserError:
        raise
    except Exception as error:
        names = f"backbone '{cell.config.backbone.name}' with attention '{cell.config.attention.name}'"
        raise UserError(f"{names} cannot be built with these options: {first_line(error)}") from error


@functools.cache
def find_engine(name: str) -> Engine:
    """Import the engine called ``name``; UserError with all names if there is none."""
    points = {point.name: point for point in entry_points(group="cab.engines")}
    if name not in points:
        raise unknown_name("engine", name, points)
    engine: Engine = points[name].load()
    return engine


def choose_device(name: str, processes: Processes) -> torch.device:
    """Return the device of this process; ``auto`` means a GPU if available, and one GPU per process."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda, but torch sees no GPU; use device=cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if processes.count == 1:
        return torch.device("cuda")
    return torch.device("cuda", processes.local_rank % torch.cuda.device_count())


def repeated_config(record: Record, **changes: Any) -> dict[str, Any]:
    """Return the configuration for a repetition of a recorded run on this machine, with ``changes`` of where it runs.

    If ``auto`` is another precision here (:data:`cab.records.identity.RESOLVED`), that of the record is used.
    """
    config = {**current_config(record), **changes}
    device = choose_device(config["device"], Processes())
    here, then = Cell.from_config(config).config.precision_on(device)._asdict(), record.config["trainer"]
    differing = {name: then[name] for name in here if name in then and then[name] != here[name]}
    return {**config, "trainer": {**config["trainer"], **differing}}


def make_backbone(cell: Cell, *, has_memory: bool = True) -> Backbone:
    """Build the network of a cell; without memory, its parameters have names and shapes only."""
    if cell.task.required_protocols:
        cell.task.protocol_of(BACKBONES.get(cell.config.backbone.name).cls)
    # the options that depend on data are made outside without_memory()
    options = {**cell.config.backbone.options, **cell.task.backbone_options(cell.config.backbone.name)}
    with contextlib.nullcontext() if has_memory else build.without_memory():
        return _make_backbone(cell, options)


def _make_backbone(cell: Cell, options: Mapping[str, Any]) -> Backbone:
    config = cell.config
    factory = AttentionFactory(config.pattern, config.attention, config.other_attention, build.make_attention)
    return build.make_backbone(config.backbone.name, factory, options)


def make_initial_backbone(cell: Cell) -> Backbone:
    """Build the network from which training of the cell starts: drawn with its seed, or loaded by its task."""
    seed = cell.config.seed
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    backbone = make_backbone(cell)
    cell.task.load_initial_weights(backbone)
    return backbone


def _check_packages(cell: Cell) -> None:
    """Raise UserError if a package that the task needs is not installed."""
    missing = [extra for module, extra in cell.task.packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        extras = ",".join(sorted(set(missing)))
        name = cell.config.task.name
        raise UserError(f"task '{name}' requires an extra: `pip install 'cab-benchmark[{extras}]'`")
