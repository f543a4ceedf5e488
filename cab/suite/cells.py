"""The cells of the suite, and the metric and scale by which each is scored."""

from __future__ import annotations

import csv
import functools
import math
from dataclasses import dataclass
from typing import Any

import yaml

from cab.files.config_folders import CONFIGS
from cab.records.record import Record

CELLS = CONFIGS / "suite" / "cells.csv"
PRESET = "mini"
Key = tuple[str, str, str]
"""Task, backbone and pattern."""


@dataclass(frozen=True)
class SuiteCell:
    """A cell and its validation criteria; one row of configs/suite/cells.csv.

    Attributes:
        dataset: generated data set.
        metric: the judged metric, which is primary.
        scale: ``linear`` for the metric itself, or ``log`` for its logarithm.
        core: whether the share of softmax's gain of a pattern requires the cell.
        trivial_baseline: baseline that ignores the input.
        memory_bounded_baseline: best computable baseline with bounded memory, or empty.
        long_memory: whether the cell requires more context than a local window.
        options: overrides of preset mini, separated by spaces. In core cells, training stops at the validation loss
            ``trainer.stop_at``: the optimum of the generated data plus 0.5% of the distance to the loss without
            attention.
    """

    task: str
    backbone: str
    pattern: str
    dataset: str
    metric: str
    scale: str
    core: bool
    trivial_baseline: str
    memory_bounded_baseline: str
    long_memory: bool
    options: str

    def __str__(self) -> str:
        return " ".join(self.key)

    @property
    def key(self) -> Key:
        """Task, backbone and pattern."""
        return self.task, self.backbone, self.pattern

    def includes(self, record: Record) -> bool:
        """Return whether a record is a result of this cell."""
        own = (*self.key, self.dataset, PRESET)
        if own != tuple(record.cell[name] for name in ("task", "backbone", "pattern", "dataset", "preset")):
            return False
        return all(
            name in record.config[group] and record.config[group][name] == value
            for (group, name), value in self.option_values.items()
        )

    @property
    def option_values(self) -> dict[tuple[str, str], Any]:
        """Return the values of ``options`` by group and name."""
        texts = dict(option.split("=") for option in self.options.split())
        return {(*path.split("."),): yaml.safe_load(text) for path, text in texts.items()}  # type: ignore[misc]

    def value(self, record: Record) -> float:
        """Return the judged metric of a finished record."""
        [metric] = [metric for metric in record.metrics if metric.name == self.metric]
        assert metric.value is not None
        return metric.value

    def scaled(self, value: float) -> float:
        """Return a value of the metric on the cell's scale."""
        return math.log(value) if self.scale == "log" else value


@functools.cache
def suite_cells() -> tuple[SuiteCell, ...]:
    """Return the cells in the order of the published tables."""
    with CELLS.open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    return tuple(SuiteCell(**{**row, **{name: row[name] == "yes" for name in ("core", "long_memory")}}) for row in rows)
