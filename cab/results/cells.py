"""The cells of the suite: metric and scale, frozen anchors, and results.

The anchors are results of ``vanilla`` and ``none``, against which every other attention is scored. They are part of a
version of the suite. They are read from configs/suite/anchors.csv and never from the results that are scored, so a
score does not change when results are added.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cab.files.text_table import read_csv
from cab.records.files import REFERENCE_DIRS, paths_of_hash
from cab.records.identity import configured, other_engine
from cab.records.record import Record
from cab.registry.tables import CONFIGS
from cab.results.changed_settings import COMPARED, changes, settings_of

SUITE = CONFIGS / "suite"
PRESET = "mini"
Key = tuple[str, str, str]
"""Task, backbone and pattern."""
SUITE_VERSION = 3
"""Version of the suite. Increase it when cells, data or anchors change; scores of two versions are not comparable."""
SOFTMAX, NO_ATTENTION = "vanilla", "none"
ANCHORS = (SOFTMAX, NO_ATTENTION)
"""Anchors at 100% and 0% of the gain of softmax attention."""
TUNED = "(tuned)"
"""End of the name of an attention whose learning rate is chosen."""
ANCHORS_FILE = SUITE / "anchors.csv"


@dataclass(frozen=True)
class SuiteCell:
    """A cell and its validation criteria; one row of configs/suite/cells.csv.

    Attributes:
        scale: ``linear`` for the judged metric itself, or ``log`` for its logarithm.
        core: whether the cell is part of ``suite=core`` and a column of the board.
        ability: what a core cell tests; empty for others.
        memory_bounded_baseline: best computable baseline with bounded memory, or empty.
        long_memory: whether the cell requires more context than a local window.
        options: overrides of preset mini. In core cells, training stops at the validation loss ``trainer.stop_at``: the
            optimum of the generated data plus 0.5% of the distance to the loss without attention.
    """

    task: str
    backbone: str
    pattern: str
    dataset: str
    metric: str
    scale: str
    core: bool
    ability: str
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

    @property
    def heading(self) -> str:
        """Heading of the column of the board, such as ``recall CS``."""
        return f"{self.ability} {self.pattern}"

    def changed_settings(self, record: Record) -> list[str]:
        """Return the settings of a run of this cell that are not the suite's, such as ``trainer.max_steps=100``."""
        anchors = read_anchors().get(self.key)
        config = configured(record.config, record.changed)
        if anchors is None or all(config.get(name) == of for name, of in groups_of_run(anchors.run).items()):
            return []
        options = [option.partition("=")[0] for option in self.options.split()]
        return changes(config, record.changed, self.settings, options)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the cell: those of the committed runs of softmax attention; empty without anchors."""
        anchors = read_anchors().get(self.key)
        return settings_of_run(anchors.run) if anchors else {}

    def value(self, record: Record) -> float:
        """Return the judged metric of a finished record."""
        [metric] = [metric for metric in record.metrics if metric.name == self.metric]
        assert metric.value is not None
        return metric.value

    def retained(self, anchors: Anchors, value: float) -> float:
        """Return K of a value of the metric: the share of the gain of softmax attention that it retains, in percent."""
        ends = [anchors.test[name] for name in ANCHORS]
        if self.scale == "log":
            value, ends = math.log(value), [list(map(math.log, values)) for values in ends]
        softmax, without = map(statistics.fmean, ends)
        return 100 * (value - without) / (softmax - without)


@functools.cache
def suite_cells() -> tuple[SuiteCell, ...]:
    """Return the cells in the order of the published tables."""
    flags = ("core", "long_memory")
    rows: Any = read_csv(SUITE / "cells.csv")
    return tuple(SuiteCell(**{**row, **{name: row[name] == "yes" for name in flags}}) for row in rows)


@functools.cache
def _cells_by_place() -> dict[tuple[str, ...], SuiteCell]:
    return {(*cell.key, cell.dataset, PRESET): cell for cell in suite_cells()}


def cell_of(record: Record) -> SuiteCell | None:
    """Return the cell of a record; None outside the suite."""
    cell = record.cell
    place = (cell["task"], cell["backbone"], cell["pattern"], cell["dataset"], cell["preset"])
    return None if other_engine(record.config) else _cells_by_place().get(place)


@functools.cache
def groups_of_run(digest: str) -> Mapping[str, Any]:
    """Return the groups of the configuration of the bundled run with this hash that compared runs share."""
    path, *_ = (path for folder in REFERENCE_DIRS for path in paths_of_hash(folder, digest))
    record = Record.read(path)
    config = configured(record.config, record.changed)
    return {name: config.get(name) for name in COMPARED}


@functools.cache
def settings_of_run(digest: str) -> Mapping[str, Any]:
    """Return the settings of the bundled run with this hash."""
    return settings_of(groups_of_run(digest))


@functools.cache
def cell_descriptions() -> dict[Key, str]:
    """Return what each cell tests in one sentence."""
    return {
        (row["task"], row["backbone"], row["pattern"]): row["tests"] for row in read_csv(SUITE / "descriptions.csv")
    }


@functools.cache
def metric_meanings() -> dict[tuple[str, str], str]:
    """Return the meaning of each metric by task and name."""
    return {(row["task"], row["metric"]): row["meaning"] for row in read_csv(SUITE / "metrics.csv")}


@dataclass(frozen=True)
class Anchors:
    """The anchors of one cell.

    Attributes:
        data: :func:`data_hash` of the data on which the anchors were trained; other data are not comparable.
        test: values of the cell's metric on the test split, by attention, one per seed.
        validation: validation losses at the last validation, by attention, one per seed that has one.
        steps: numbers of steps until validation reached the cell's threshold, by attention, one per seed that did.
        run: hash of the first bundled run of ``vanilla``, whose settings are those of the cell.
    """

    data: str
    test: dict[str, list[float]]
    validation: dict[str, list[float]]
    steps: dict[str, list[int]] = field(default_factory=dict)
    run: str = ""

    @functools.cached_property
    def validation_scale(self) -> tuple[float, ...]:
        """Mean validation losses with softmax attention and without attention; empty unless both are known."""
        is_known = set(ANCHORS) <= self.validation.keys()
        return tuple([statistics.fmean(self.validation[name]) for name in ANCHORS]) if is_known else ()


@functools.cache
def read_anchors(path: Path | None = None) -> dict[Key, Anchors]:
    """Return the anchors by cell; a cell without both anchors is missing."""
    path = path or ANCHORS_FILE
    cells: dict[Key, Anchors] = {}
    for row in read_csv(path):
        assert row["version"] == str(SUITE_VERSION), f"{path} is of another version of the suite"
        key = row["task"], row["backbone"], row["pattern"]
        anchors = cells.setdefault(key, Anchors(row["data"], {}, {}, run=row["hash"]))
        anchors.test.setdefault(row["attention"], []).append(float(row["test"]))
        if row["validation"]:
            anchors.validation.setdefault(row["attention"], []).append(float(row["validation"]))
        if row["steps"]:
            anchors.steps.setdefault(row["attention"], []).append(int(row["steps"]))
    return {key: anchors for key, anchors in cells.items() if set(ANCHORS) <= anchors.test.keys()}


def data_hash(record: Record) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of the record's data fingerprint and task version."""
    content = json.dumps([record.data, record.task_version], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]
