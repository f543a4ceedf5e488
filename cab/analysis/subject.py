"""What is analysed: the network of a record with its weights, or a fresh one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cab.attention import Attention
from cab.backbone import Backbone
from cab.errors import UserError
from cab.records.record import Record, weights_path
from cab.runner.batches import DeviceBatches
from cab.runner.cell import Cell
from cab.runner.engine import make_backbone
from cab.runner.launch import composed


@dataclass(frozen=True)
class Subject:
    """A cell, its network on the CPU, and whether that was trained."""

    cell: Cell
    network: Backbone
    is_trained: bool

    @property
    def title(self) -> str:
        return f"{self.cell.title}, {'trained' if self.is_trained else 'untrained'}"

    def batch(self, rows: int) -> Any:
        """The first items of the training set."""
        return next(DeviceBatches(torch.device("cpu"))(self.cell.task.training_set, rows))

    def attention_layers(self) -> list[tuple[str, Attention]]:
        """Path and attention of every slot under test."""
        slots = []
        for path, pattern in self.network.attention_layers():
            slot = self.network.get_submodule(path)
            if pattern is self.cell.pattern and isinstance(slot, Attention):
                slots.append((path, slot))
        return slots


def subject_of(what: Sequence[str], data_root: str | None = None) -> Subject:
    """The network of a record's file, or of the overrides of `cab run`, with its data read.

    Raises:
        ValueError: a record without a score or without weights, or a mistake in the overrides.
    """
    if len(what) == 1 and what[0].endswith(".json"):
        path = Path(what[0])
        record = Record.read(path)
        weights = weights_path(path.parent, record.hash)
        if not weights.exists():
            raise UserError(f"no weights at {weights}: run the cell again, or analyse a fresh network by its overrides")
        config = dict(record.config)
    else:
        weights, config = None, composed(what)
    if data_root is not None:
        config["data_root"] = data_root
    cell = Cell.from_config(config)
    cell.task.setup(cell.data_root)
    torch.manual_seed(cell.config["seed"])
    network = make_backbone(cell)
    if weights is not None:
        network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    subject = Subject(cell, network, weights is not None)
    if not subject.attention_layers():
        raise UserError(f"{cell.title} has no attention in a slot of {cell.pattern}")
    return subject


def with_heads(slot: Attention) -> Attention | None:
    """The attention in a slot, or the one that it hands its work to, whose readable form is a function of heads."""
    inner = (module for module in slot.modules() if isinstance(module, Attention))
    return next((module for module in inner if module.reference is not None), None)
