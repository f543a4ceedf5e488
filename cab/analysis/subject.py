"""The network to analyze: that of a record with its trained weights, or a freshly initialized one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cab.attention import Attention
from cab.backbone import Backbone
from cab.config.compose import compose
from cab.errors import UserError
from cab.records.files import kept_weights
from cab.records.record import Record
from cab.runner.cell import Cell
from cab.runner.engine import make_backbone, make_initial_backbone
from cab.runner.evaluation import DeviceBatches
from cab.weights import load_network


@dataclass(frozen=True)
class AnalyzedNetwork:
    """A cell, its network on the CPU, and whether the network is trained."""

    cell: Cell
    network: Backbone
    is_trained: bool

    @property
    def title(self) -> str:
        """The title of outputs and pictures."""
        return f"{self.cell.title}, {'trained' if self.is_trained else 'untrained'}"

    def batch(self, rows: int) -> Any:
        """Return the first ``rows`` examples of the training set."""
        return DeviceBatches(torch.device("cpu")).first(self.cell.task.training_set, rows)

    def attention_layers(self) -> list[tuple[str, Attention]]:
        """Return path and module of every attention layer under test."""
        layers = []
        for path, pattern in self.network.attention_layers():
            layer = self.network.get_submodule(path)
            if pattern is self.cell.config.pattern and isinstance(layer, Attention):
                layers.append((path, layer))
        return layers


def subject_of(what: Sequence[str], data_root: str | None = None) -> AnalyzedNetwork:
    """Build the network of a record's file, or of the overrides of `cab run`, and read its data.

    Raises:
        UserError: the record has no score or no weights, or an override is wrong.
    """
    if len(what) == 1 and what[0].endswith(".json"):
        path = Path(what[0])
        record = Record.read(path)
        weights = kept_weights(path)
        config = dict(record.config)
    else:
        weights, config = None, compose(what)
    if data_root is not None:
        config["data_root"] = data_root
    cell = Cell.from_config(config)
    cell.task.setup(cell.config.data_root)
    if weights is None:
        network = make_initial_backbone(cell)
    else:
        network = make_backbone(cell)
        load_network(network, weights)
    subject = AnalyzedNetwork(cell, network, weights is not None)
    if not subject.attention_layers():
        raise UserError(f"{cell.title} has no attention layer with pattern {cell.config.pattern}")
    return subject


def with_heads(attention: Attention) -> Attention | None:
    """Return the attention, or the inner one it delegates to, that has a reference form on heads, or None."""
    inner = (module for module in attention.modules() if isinstance(module, Attention))
    return next((module for module in inner if module.reference is not None), None)
