"""The cells of the suite, and the records of them."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cab.errors import UserError
from cab.records.record import Record, Status
from cab.records.results import whole_records

CELLS = Path(__file__).resolve().parents[2] / "configs" / "suite" / "cells.csv"
DATASET, PRESET = "synthetic", "mini"


@dataclass(frozen=True)
class SuiteCell:
    """A cell and how it is judged; a row of configs/suite/cells.csv.

    Attributes:
        metric: the one that is judged, of the task's primary ones.
        scale: ``log`` where its logarithm is; empty for the number as it is.
        trivial_baseline: baseline of an answer that looks at nothing.
        memory_bounded_baseline: baseline of the best answer of a bounded reader that can be computed, or empty.
        long_memory: whether the cell claims that a window is not enough.
    """

    task: str
    backbone: str
    pattern: str
    metric: str
    scale: str
    trivial_baseline: str
    memory_bounded_baseline: str
    long_memory: bool

    def __str__(self) -> str:
        return " ".join(self.key)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.task, self.backbone, self.pattern

    def scaled(self, value: float) -> float:
        return math.log(value) if self.scale == "log" else value


@dataclass
class CellScores:
    """Scores of a cell, higher is better, on the cell's scale.

    Attributes:
        scores: of each attention, one a seed.
        trivial_baseline, memory_bounded_baseline: of the baselines, None where no record has them.
        sign: of the metric's own values.
    """

    cell: SuiteCell
    scores: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    trivial_baseline: float | None = None
    memory_bounded_baseline: float | None = None
    sign: float = 1.0

    def add(self, record: Record) -> None:
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
        """A score as the metric's own value."""
        return math.exp(self.sign * score) if self.cell.scale == "log" else self.sign * score


def suite_cells() -> tuple[SuiteCell, ...]:
    """The cells, in the order of the published tables."""
    with CELLS.open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    return tuple(SuiteCell(**{**row, "long_memory": row["long_memory"] == "yes"}) for row in rows)


def read_scores(folder: Path) -> list[CellScores]:
    """What the finished records in ``folder`` say of each cell of the suite.

    Raises:
        ValueError: no such folder, or a record that lacks the metric of its cell. One that is broken or was changed is
            warned about and left out.
    """
    if not folder.is_dir():
        raise UserError(f"no results at {folder}: name a folder of records, as scripts/suite.sh leaves them")
    return collect(record for _, record in whole_records(folder, skipped=[]))


def collect(records: Iterable[Record]) -> list[CellScores]:
    """The scores of each cell of the suite in ``records``."""
    found: Mapping[tuple[str, str, str], CellScores] = {cell.key: CellScores(cell) for cell in suite_cells()}
    for record in records:
        key = record.cell["task"], record.cell["backbone"], record.cell["pattern"]
        of_suite = record.cell["dataset"] == DATASET and record.cell["preset"] == PRESET
        if of_suite and key in found and record.status is Status.FINISHED:
            found[key].add(record)
    return list(found.values())
