"""What trains a cell, ``engine=NAME``: a module that an entry point of ``cab.engines`` names, and what it is given."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cab.backbone import Backbone
from cab.errors import UserError, first_line, unknown_name
from cab.registry.build import build_backbone, without_memory
from cab.registry.registries import BACKBONES
from cab.runner.cell import Cell
from cab.runner.failures import StopSignals
from cab.runner.gpu_share import limit_gpu_memory
from cab.runner.missing_data import bring_data
from cab.runner.processes import Processes, find_processes


@dataclass(frozen=True)
class Training:
    """What a record says of a training; the weights to evaluate are in the backbone.

    Attributes:
        history: entries of ``step``, ``loss`` and ``validation``, in nats.
        best_step: the step of the weights, when validation chose them (``trainer.checkpoint_selection=best``); else 0.
        earlier_seconds: what this training took in processes that were cut, up to the checkpoint that was gone on from.
        cost: entries of the record's cost that this process cannot measure.
        facts: what else there is to say of the engine, under its name in the record.
    """

    history: list[dict[str, float | None]]
    steps: int
    best_step: int
    earlier_seconds: float = 0.0
    cost: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    def check(self, cell: Cell, processes: Processes) -> None:
        """UserError for a cell or a training that the engine does not have; called before anything is written."""

    def train(self, run: Run, backbone: Backbone) -> Training:
        """Train ``backbone``, from the weights it has or the engine's newest checkpoint in the folder of the run.

        Afterwards it is on ``run.device``, in evaluation mode.
        """


@dataclass(frozen=True)
class StepObserver:
    """Observe the first steps of a training run; supported by ``engine=torch``.

    Attributes:
        num_steps: number of steps after which training stops. The schedule remains that of the whole run.
        on_gradients: called in every step with its number, starting at 1, and the task's loss, a scalar. The parameters
            then hold the gradients of the whole step, before clipping.
    """

    num_steps: int
    on_gradients: Callable[[int, Tensor], None]


@dataclass(frozen=True)
class Run:
    """A cell that is checked, its data read, and what it is run with: everything from here on is given it."""

    cell: Cell
    command: str
    engine: Engine
    device: torch.device
    processes: Processes
    signals: StopSignals = field(default_factory=StopSignals)
    observer: StepObserver | None = None

    @classmethod
    def checked(cls, cell: Cell, command: str) -> Run:
        """UserError for everything that can be wrong, before anything is written."""
        processes = find_processes()
        device = choose_device(cell.config.device, processes)
        limit_gpu_memory(device)
        _check_packages(cell)
        engine = find_engine(cell.config.engine)
        engine.check(cell, processes)
        bring_data(cell)
        cell.task.setup(cell.config.data_root)
        try:
            cell.task.load_initial_weights(make_backbone(cell, has_memory=False))
        except UserError:
            raise
        except Exception as error:
            names = f"backbone '{cell.config.backbone.name}' with attention '{cell.config.attention.name}'"
            raise UserError(f"{names} cannot be built with these options: {first_line(error)}") from error
        return cls(cell, command, engine, device, processes)

    @property
    def folder(self) -> Path:
        """For logs, checkpoints and pictures."""
        return self.cell.config.results_dir / self.cell.hash


@functools.cache
def find_engine(name: str) -> Engine:
    """The engine called ``name``, imported; UserError lists what exists when there is none."""
    points = {point.name: point for point in entry_points(group="cab.engines")}
    if name not in points:
        raise unknown_name("engine", name, points)
    engine: Engine = points[name].load()
    return engine


def choose_device(name: str, processes: Processes) -> torch.device:
    """``auto`` is the GPU where there is one, of several processes one each. UserError for a GPU that is not there."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"device must be auto, cpu or cuda, got '{name}'")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda, but torch sees no GPU; use device=cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if processes.count == 1:
        return torch.device("cuda")
    return torch.device("cuda", processes.local_rank % torch.cuda.device_count())


def make_backbone(cell: Cell, *, has_memory: bool = True) -> Backbone:
    """The network of the cell, sized by its data; without memory it has names and shapes alone.

    Raises:
        ValueError: a backbone that does not take the task's calls, or options that do not fit.
    """
    if cell.task.required_protocols:
        cell.task.protocol_of(BACKBONES.get(cell.config.backbone.name).cls)
    # the options that depend on data are made outside without_memory()
    options = {**cell.config.backbone.options, **cell.task.backbone_options(cell.config.backbone.name)}
    with contextlib.nullcontext() if has_memory else without_memory():
        return build_backbone(
            cell.config.backbone.name,
            attention=cell.config.attention,
            pattern=cell.config.pattern,
            other_attention=cell.config.other_attention,
            **options,
        )


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
    """UserError for a package that the task needs and that is not installed."""
    missing = [extra for module, extra in cell.task.packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        extras = ",".join(sorted(set(missing)))
        name = cell.config.task.name
        raise UserError(f"task '{name}' needs an extra: pip install 'cab-benchmark[{extras}]'")
