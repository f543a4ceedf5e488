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
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cab.errors import UserError
from cab.files.disk import listed, replacing
from cab.files.text_table import read_csv
from cab.records.identity import other_engine
from cab.records.record import REFERENCE_DIRS, Record, Status
from cab.records.results import whole_records, with_program_names
from cab.registry.tables import CONFIGS
from cab.results.changed_settings import changes, settings_of

log = logging.getLogger("cab")

FOLDER = CONFIGS / "suite"
PRESET = "mini"
Key = tuple[str, str, str]
"""Task, backbone and pattern."""
VERSION = 3
"""Version of the suite. Increase it when cells, data or anchors change; scores of two versions are not comparable."""
SOFTMAX, NO_ATTENTION = "vanilla", "none"
ANCHORS = (SOFTMAX, NO_ATTENTION)
"""Anchors at 100% and 0% of the gain of softmax attention."""
TUNED = "(tuned)"
"""End of the name of an attention whose learning rate is chosen."""
ANCHORS_FILE = FOLDER / "anchors.csv"
SETTINGS_FILE = FOLDER / "settings.json"
ANCHOR_COLUMNS = ("version", "task", "backbone", "pattern", "data", "attention", "seed", "test", "validation", "steps")


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

    def includes(self, record: Record) -> bool:
        """Return whether a record is of this cell; :meth:`changed_settings` returns how its run differs."""
        names = (*record_key(record), record.cell["dataset"], record.cell["preset"])
        return names == (*self.key, self.dataset, PRESET) and not other_engine(record.config)

    def changed_settings(self, record: Record) -> list[str]:
        """Return the settings of a run of this cell that are not the suite's, such as ``trainer.max_steps=100``."""
        options = dict.fromkeys(option.partition("=")[0] for option in self.options.split())
        return changes({**options, **settings_of(record.config)}, suite_settings()[str(self)], record)

    def composed_settings(self) -> dict[str, Any]:
        """Return the settings of this cell in `cab run suite=mini`."""
        from cab.config.compose import compose  # imports Hydra

        names = {"task": self.task, "dataset": self.dataset, "backbone": self.backbone, "pattern": self.pattern}
        overrides = [f"{name}={value}" for name, value in {**names, "attention": SOFTMAX, "preset": PRESET}.items()]
        return settings_of(compose([*overrides, *self.options.split()]))

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
    flags = ("core", "long_memory")
    rows: Any = read_csv(FOLDER / "cells.csv")
    return tuple(SuiteCell(**{**row, **{name: row[name] == "yes" for name in flags}}) for row in rows)


@functools.cache
def suite_settings() -> dict[str, dict[str, Any]]:
    """Return the settings of each cell by its name, from configs/suite/settings.json: Hydra takes seconds."""
    settings: dict[str, dict[str, Any]] = json.loads(SETTINGS_FILE.read_text(encoding="utf-8"))
    return settings


@functools.cache
def cell_descriptions() -> dict[Key, str]:
    """Return what each cell tests in one sentence."""
    return {
        (row["task"], row["backbone"], row["pattern"]): row["tests"] for row in read_csv(FOLDER / "descriptions.csv")
    }


@functools.cache
def metric_meanings() -> dict[tuple[str, str], str]:
    """Return the meaning of each metric by task and name."""
    return {(row["task"], row["metric"]): row["meaning"] for row in read_csv(FOLDER / "metrics.csv")}


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
    for row in read_csv(path):
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
        is_run = attention in ANCHORS and record.status is Status.FINISHED and key in cells
        if is_run and cells[key].includes(record) and not cells[key].changed_settings(record):
            runs[key][ANCHORS.index(attention), int(record.cell["seed"])] = record
    rows = []
    for key, anchors in runs.items():
        if len({rank for rank, _ in anchors}) < len(ANCHORS):
            continue
        if len({data_hash(record) for record in anchors.values()}) > 1:
            raise UserError(f"the anchors of {cells[key]} are of different data; pass results of one version only")
        for rank, seed in sorted(anchors):
            record = anchors[rank, seed]
            losses = [entry["validation"] for entry in record.history if entry.get("validation") is not None]
            validation = repr(losses[-1]) if losses else ""
            numbers = repr(cells[key].value(record)), validation, record.cost.steps_to_solve
            rows.append((VERSION, *key, data_hash(record), ANCHORS[rank], seed, *numbers))
    if not rows:
        raise UserError(f"no cell of the suite has results of {' and '.join(ANCHORS)}; run them first")
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([ANCHOR_COLUMNS, *rows])
    return len(rows)


def write_settings(path: Path = SETTINGS_FILE) -> None:
    """Write the settings of each cell."""
    settings = {str(cell): cell.composed_settings() for cell in suite_cells()}
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def record_key(record: Record) -> Key:
    """Return task, backbone and pattern of a record."""
    return str(record.cell["task"]), str(record.cell["backbone"]), str(record.cell["pattern"])


def data_hash(record: Record) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of the record's data fingerprint and task version."""
    content = json.dumps([record.data, record.task_version], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


@dataclass
class CellResults:
    """Results of one cell.

    Attributes:
        anchors: the frozen anchors; None if the cell has none.
        runs: finished runs by attention and seed. The anchors' own runs are not among them.
        excluded: reason why a record is excluded, by attention and seed.
        diverged: number of seeds without a score because training diverged, by attention.
    """

    cell: SuiteCell
    anchors: Anchors | None
    runs: dict[str, dict[int, Record]] = field(default_factory=dict)
    baselines: dict[str, float] = field(default_factory=dict)
    excluded: dict[tuple[str, int], str] = field(default_factory=dict)
    diverged: Counter[str] = field(default_factory=Counter)

    @property
    def is_empty(self) -> bool:
        """Whether no finished run is of this cell, not even of an anchor."""
        return not self.runs and not self.baselines

    @property
    def left_out(self) -> dict[str, str]:
        """Reason why a seed of an attention has no score, by attention."""
        return {name: reason for (name, seed), reason in self.excluded.items() if seed not in self.runs.get(name, ())}

    def values(self, attention: str) -> list[float]:
        """Return the values of the cell's metric, one per seed."""
        if attention in ANCHORS:
            return self.anchors.test[attention] if self.anchors else []
        return [self.cell.value(record) for record in self.runs[attention].values()]

    def add(self, record: Record) -> None:
        """Add a record of this cell; UserError if there is another result of the same attention and seed."""
        attention, seed = str(record.cell["attention"]), int(record.cell["seed"])
        if changed := self.cell.changed_settings(record):
            self.excluded[attention, seed] = f"seed {seed} has other settings than the suite's: {listed(changed)}"
        elif record.status is not Status.FINISHED:
            self.excluded[attention, seed] = f"seed {seed} is {record.status}"
            self.diverged[attention] += record.status is Status.DIVERGED
        elif self.anchors and self.anchors.data != data_hash(record):
            self.excluded[attention, seed] = f"seed {seed} has data or a version of the task other than the anchors'"
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

    def warn(self) -> None:
        """Name the attentions with a seed without a score, and the reasons."""
        reasons = [f"{name} ({reason})" for name, reason in sorted(self.left_out.items()) if name not in ANCHORS]
        if reasons:
            log.warning("not scored in %s: %s", self.cell, listed(reasons, shown=5))


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
