"""The cells of the suite: metric and scale, frozen anchors, and results.

The anchors are results of ``vanilla`` and ``none``, against which every other attention is scored. They are part of a
version of the suite. They are read from configs/suite/anchors.csv and never from the results that are scored, so a
score does not change when results are added.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cab.errors import UserError
from cab.files.disk import replacing
from cab.records.identity import flat, measured
from cab.records.record import REFERENCE_DIRS, Record, Status
from cab.records.results import whole_records, with_program_names
from cab.registry.tables import CONFIGS

FOLDER = CONFIGS / "suite"
PRESET = "mini"
Key = tuple[str, str, str]
"""Task, backbone and pattern."""
VERSION = 3
"""Version of the suite. Increase it when cells, data or anchors change; scores of two versions are not comparable."""
SOFTMAX, NO_ATTENTION = "vanilla", "none"
ANCHORS = (SOFTMAX, NO_ATTENTION)
"""Anchors at 100% and 0% of the gain of softmax attention."""
ANCHORS_FILE = FOLDER / "anchors.csv"
ANCHOR_COLUMNS = ("version", "task", "backbone", "pattern", "data", "attention", "seed", "test", "validation", "steps")


@dataclass(frozen=True)
class SuiteCell:
    """A cell and its validation criteria; one row of configs/suite/cells.csv.

    Attributes:
        dataset: generated data set.
        metric: the judged metric, which is primary.
        scale: ``linear`` for the metric itself, or ``log`` for its logarithm.
        core: whether the cell is part of ``suite=core`` and a column of the board.
        ability: what a core cell tests; empty for others.
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

    def includes(self, record: Record) -> bool:
        """Return whether a record is a result of this cell."""
        names = (*record_key(record), record.cell["dataset"], record.cell["preset"])
        if names != (*self.key, self.dataset, PRESET):
            return False
        return all(
            name in record.config[group] and record.config[group][name] == value
            for (group, name), value in self.option_values.items()
        )

    @functools.cached_property
    def option_values(self) -> dict[tuple[str, str], Any]:
        """Values of ``options`` by group and name."""
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
    rows = _rows(FOLDER / "cells.csv")
    return tuple(SuiteCell(**{**row, **{name: row[name] == "yes" for name in ("core", "long_memory")}}) for row in rows)


@functools.cache
def cell_descriptions() -> dict[Key, str]:
    """Return what each cell tests in one sentence."""
    return {(row["task"], row["backbone"], row["pattern"]): row["tests"] for row in _rows(FOLDER / "descriptions.csv")}


@functools.cache
def metric_meanings() -> dict[tuple[str, str], str]:
    """Return the meaning of each metric by task and name."""
    return {(row["task"], row["metric"]): row["meaning"] for row in _rows(FOLDER / "metrics.csv")}


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True)
class Anchors:
    """The anchors of one cell.

    Attributes:
        data: :func:`data_hash` of the data on which the anchors were trained; other data are not comparable.
        test: values of the cell's metric on the test split, by attention, one per seed.
        validation: validation losses at the last validation, by attention, one per seed that has one.
        steps: numbers of steps until validation reached the cell's threshold, by attention, one per seed that did.
    """

    data: str
    test: dict[str, list[float]]
    validation: dict[str, list[float]]
    steps: dict[str, list[int]] = field(default_factory=dict)


@functools.cache
def read_anchors(path: Path | None = None) -> dict[Key, Anchors]:
    """Return the anchors by cell; a cell without both anchors is missing."""
    path = path or ANCHORS_FILE
    cells: dict[Key, Anchors] = {}
    for row in _rows(path):
        assert row["version"] == str(VERSION), f"{path} is of another version of the suite"
        anchors = cells.setdefault((row["task"], row["backbone"], row["pattern"]), Anchors(row["data"], {}, {}))
        anchors.test.setdefault(row["attention"], []).append(float(row["test"]))
        if row["validation"]:
            anchors.validation.setdefault(row["attention"], []).append(float(row["validation"]))
        if row["steps"]:
            anchors.steps.setdefault(row["attention"], []).append(int(row["steps"]))
    return {key: anchors for key, anchors in cells.items() if set(ANCHORS) <= anchors.test.keys()}


def write_anchors(records: Iterable[Record], path: Path = ANCHORS_FILE) -> int:
    """Write the anchors of every cell of the suite with results of both in ``records``, and return their number."""
    cells = {cell.key: cell for cell in suite_cells()}
    runs: dict[Key, dict[tuple[int, int], Record]] = {key: {} for key in cells}
    for record in with_program_names(records):
        key, attention = record_key(record), str(record.cell["attention"])
        if attention in ANCHORS and record.status is Status.FINISHED and key in cells and cells[key].includes(record):
            runs[key][ANCHORS.index(attention), int(record.cell["seed"])] = record
    rows = []
    for key, anchors in runs.items():
        if len({rank for rank, _ in anchors}) < len(ANCHORS):
            continue
        if len({data_hash(record) for record in anchors.values()}) > 1:
            raise UserError(f"the anchors of {cells[key]} are of different data; pass results of one version only")
        for rank, seed in sorted(anchors):
            record = anchors[rank, seed]
            numbers = repr(cells[key].value(record)), _validation(record), record.cost.steps_to_solve
            rows.append((VERSION, *key, data_hash(record), ANCHORS[rank], seed, *numbers))
    if not rows:
        raise UserError(f"no cell of the suite has results of {' and '.join(ANCHORS)}; run them first")
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([ANCHOR_COLUMNS, *rows])
    return len(rows)


def record_key(record: Record) -> Key:
    """Return task, backbone and pattern of a record."""
    return str(record.cell["task"]), str(record.cell["backbone"]), str(record.cell["pattern"])


def data_hash(record: Record) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of the record's data fingerprint and task version."""
    content = json.dumps([record.data, record.task_version], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _validation(record: Record) -> str:
    losses = [entry["validation"] for entry in record.history if entry.get("validation") is not None]
    return repr(losses[-1]) if losses else ""


@dataclass
class CellResults:
    """Results of one cell.

    Attributes:
        anchors: the frozen anchors; None if the cell has none.
        runs: finished runs by attention and seed. The anchors' own runs are not among them.
        left_out: reason why a record of an attention is excluded, by attention.
        diverged: number of seeds without a score because training diverged, by attention.
    """

    cell: SuiteCell
    anchors: Anchors | None
    runs: dict[str, dict[int, Record]] = field(default_factory=dict)
    baselines: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    diverged: Counter[str] = field(default_factory=Counter)

    @property
    def is_empty(self) -> bool:
        """Whether no finished run is of this cell, not even of an anchor."""
        return not self.runs and not self.baselines

    def values(self, attention: str) -> list[float]:
        """Return the values of the cell's metric, one per seed."""
        if attention in ANCHORS:
            return self.anchors.test[attention] if self.anchors else []
        return [self.cell.value(record) for record in self.runs[attention].values()]

    def add(self, record: Record) -> None:
        """Add a record of this cell; UserError if there is another result of the same attention and seed."""
        attention, seed = str(record.cell["attention"]), int(record.cell["seed"])
        if record.status is not Status.FINISHED:
            self.left_out[attention] = f"seed {seed} is {record.status}"
            self.diverged[attention] += record.status is Status.DIVERGED
        elif self.anchors and self.anchors.data != data_hash(record):
            self.left_out[attention] = f"seed {seed} has other data or another task version than the suite's anchors"
        else:
            values = {name: metrics.get(self.cell.metric) for name, metrics in record.baselines.items()}
            self.baselines |= {name: value for name, value in values.items() if value is not None}
            if attention not in ANCHORS:
                other = self.runs.setdefault(attention, {}).setdefault(seed, record)
                if self.cell.value(other) != self.cell.value(record):
                    raise UserError(
                        f"two results of {attention} with seed {seed} in {self.cell} ({other.hash} and {record.hash}); "
                        "remove one, or move it to another folder"
                    )

    def leave_out_changed(self, reference: CellResults) -> None:
        """Leave out attentions with a run of other settings than those of the reference results of this cell."""
        records = (record for runs in reference.runs.values() for record in runs.values())
        standard = next((_settings(record) for record in records if not record.config.get("tuning")), {})
        for name, runs in [*self.runs.items()]:
            changed = {setting: None for record in runs.values() for setting in _changes(record, standard)}
            if changed:
                self.left_out[name] = f"other settings than the suite's ({', '.join(changed)})"
                del self.runs[name]


def _settings(record: Record) -> dict[str, Any]:
    config = record.config
    groups = {"task": config["task"], "backbone": config["backbone"], "trainer": measured(config["trainer"])}
    return flat({**groups, "other_attention": config.get("other_attention")})


def _changes(record: Record, standard: Mapping[str, Any]) -> list[str]:
    """Return the settings of a run that differ, such as ``backbone.num_layers=6``; a tuned learning rate may."""
    values = _settings(record)
    names = [name for name in standard if name in values and json.dumps(values[name]) != json.dumps(standard[name])]
    is_tuned = record.config.get("tuning") is not None
    return [f"{name}={values[name]}" for name in names if not (is_tuned and name == "trainer.learning_rate")]


def collect(records: Iterable[Record]) -> list[CellResults]:
    """Return the results of each cell of the suite in ``records``."""
    anchors = read_anchors()
    cells: dict[Key, CellResults] = {cell.key: CellResults(cell, anchors.get(cell.key)) for cell in suite_cells()}
    for record in with_program_names(records):
        results = cells.get(record_key(record))
        if results and results.cell.includes(record):
            results.add(record)
    return list(cells.values())


def read_suite(folders: Sequence[Path]) -> list[CellResults]:
    """Return the results of each cell in folders of records; damaged or modified records are skipped with a warning."""
    return collect(records_of(folders))


def records_of(folders: Sequence[Path]) -> Iterator[Record]:
    """Yield the records in folders; UserError if one does not exist, except of :data:`REFERENCE_DIRS`."""
    for folder in folders:
        if folder.is_dir():
            yield from (record for _, record in whole_records(folder, skipped=[]))
        elif folder not in REFERENCE_DIRS:
            raise UserError(f"no results at {folder}; pass a folder of results, such as results/local")
