"""The cells of the suite and their scores."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cab.errors import UserError
from cab.records.record import Record, Status
from cab.records.results import whole_records

CELLS = Path(__file__).resolve().parents[2] / "configs" / "suite" / "cells.csv"
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
        """Return a metric's value on the cell's scale."""
        return math.log(value) if self.scale == "log" else value


@dataclass
class CellScores:
    """Scores of a cell on its scale; higher is better.

    Attributes:
        scores: scores of each attention, one per seed.
        trivial_baseline, memory_bounded_baseline: scores of the baselines, None if no record contains them.
        sign: -1 if lower values of the metric are better.
    """

    cell: SuiteCell
    scores: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    trivial_baseline: float | None = None
    memory_bounded_baseline: float | None = None
    sign: float = 1.0

    def add(self, record: Record) -> None:
        """Add the score and the baselines of a record."""
        [metric] = [metric for metric in record.metrics if metric.name == self.cell.metric]
        if metric.value is None:
            return
        self.sign = sign = 1.0 if metric.higher_is_better else -1.0
        self.scores[record.cell["attention"]].append(sign * self.cell.scaled(metric.value))
        for name in ("trivial_baseline", "memory_bounded_baseline"):
            value = record.baselines.get(getattr(self.cell, name), {}).get(metric.name)
            if value is not None:
                setattr(self, name, sign * self.cell.scaled(value))

    def value(self, score: float) -> float:
        """Convert a score to the metric's value."""
        return math.exp(self.sign * score) if self.cell.scale == "log" else self.sign * score


def suite_cells() -> tuple[SuiteCell, ...]:
    """Return the cells in the order of the published tables."""
    with CELLS.open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    return tuple(SuiteCell(**{**row, **{name: row[name] == "yes" for name in ("core", "long_memory")}}) for row in rows)


def read_scores(folder: Path) -> list[CellScores]:
    """Return the scores of each cell of the suite in the finished records of ``folder``.

    Raises:
        ValueError: the folder does not exist, or a record lacks the metric of its cell. Damaged or modified records are
            skipped with a warning.
    """
    if not folder.is_dir():
        raise UserError(f"no results at {folder}; pass a folder of records, such as that of scripts/suite.sh")
    return collect(record for _, record in whole_records(folder, skipped=[]))


def collect(records: Iterable[Record]) -> list[CellScores]:
    """Return the scores of each cell of the suite in ``records``."""
    found: Mapping[tuple[str, str, str], CellScores] = {cell.key: CellScores(cell) for cell in suite_cells()}
    for record in records:
        key = record.cell["task"], record.cell["backbone"], record.cell["pattern"]
        if key in found and found[key].cell.includes(record) and record.status is Status.FINISHED:
            found[key].add(record)
    return list(found.values())
