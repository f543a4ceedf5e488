"""What trains a cell: ``engine=NAME`` is a module that an entry point of ``cab.engines`` names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cab.errors import unknown_name
from cab.runner.cell import Cell
from cab.runner.faults import StopSignals
from cab.runner.processes import Processes

if TYPE_CHECKING:
    import torch

    from cab.backbone import Backbone


@dataclass(frozen=True)
class Run:
    """A cell that is checked, its data read, and where it is trained.

    Attributes:
        folder: for logs and checkpoints, held by this run alone.
        signals: what has asked the run to stop.
    """

    cell: Cell
    device: torch.device
    processes: Processes
    folder: Path
    signals: StopSignals = field(default_factory=StopSignals)


@dataclass(frozen=True)
class Training:
    """What a record says of a training; the weights to evaluate are in the backbone.

    Attributes:
        history: entries of ``step``, ``loss`` and ``validation``, in nats.
        best_step: the step of the weights, when validation chose them (``trainer.keep=best``); else 0.
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


def find_engine(name: str) -> Engine:
    """The engine called ``name``, imported; UserError lists what exists when there is none."""
    points = {point.name: point for point in entry_points(group="cab.engines")}
    if name not in points:
        raise unknown_name("engine", name, points)
    engine: Engine = points[name].load()
    return engine
