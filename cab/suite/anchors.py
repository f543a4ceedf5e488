"""Frozen anchors of the suite: results of ``vanilla`` and ``none``, against which every other attention is scored.

The anchors are part of a version of the suite. They are read from configs/suite/anchors.csv and never from the results
that are scored, so a score does not change when results are added.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cab.errors import UserError
from cab.files.config_folders import CONFIGS
from cab.records.record import Record, Status
from cab.suite.cells import Key, suite_cells

VERSION = 3
"""Version of the suite. Increase it when cells, data or anchors change; scores of two versions are not comparable."""
SOFTMAX, NO_ATTENTION = "vanilla", "none"
ATTENTIONS = (SOFTMAX, NO_ATTENTION)
"""Anchors at 100% and 0% of the gain of softmax attention."""
PATH = CONFIGS / "suite" / "anchors.csv"
COLUMNS = ("version", "task", "backbone", "pattern", "data", "attention", "seed", "test", "validation", "steps")


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
    path = path or PATH
    found: dict[Key, Anchors] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            assert row["version"] == str(VERSION), f"{path} is of another version of the suite"
            cell = found.setdefault((row["task"], row["backbone"], row["pattern"]), Anchors(row["data"], {}, {}))
            cell.test.setdefault(row["attention"], []).append(float(row["test"]))
            if row["validation"]:
                cell.validation.setdefault(row["attention"], []).append(float(row["validation"]))
            if row["steps"]:
                cell.steps.setdefault(row["attention"], []).append(int(row["steps"]))
    return {key: anchors for key, anchors in found.items() if set(ATTENTIONS) <= anchors.test.keys()}


def write_anchors(records: Iterable[Record], path: Path = PATH) -> int:
    """Write the anchors of every cell of the suite with results of both in ``records``, and return their number.

    Raises:
        ValueError: there are none, or a cell has anchors with different data.
    """
    cells = {cell.key: cell for cell in suite_cells()}
    rows: dict[tuple[object, ...], tuple[object, ...]] = {}
    data: dict[Key, str] = {}
    for record in records:
        cell = cells.get(record_key(record))
        if cell is None or not cell.includes(record) or record.cell["attention"] not in ATTENTIONS:
            continue
        if record.status is not Status.FINISHED:
            continue
        own = data_hash(record)
        if data.setdefault(cell.key, own) != own:
            raise UserError(f"the anchors of {cell} are of different data; pass a folder with results of one version")
        row = (*cell.key, own, record.cell["attention"], record.cell["seed"])
        rows[row] = (VERSION, *row, repr(cell.value(record)), _validation(record), record.cost.steps_to_solve)
    both = [{row[4] for row in rows if row[:3] == key} == set(ATTENTIONS) for key in cells]
    complete = {key for key, has_both in zip(cells, both, strict=True) if has_both}
    rows = {row: content for row, content in rows.items() if row[:3] in complete}
    if not rows:
        raise UserError(f"no cell of the suite has results of {' and '.join(ATTENTIONS)}; run them first")
    order = list(cells)
    ranked = sorted(rows, key=lambda row: (order.index(row[:3]), ATTENTIONS.index(str(row[4])), row[5]))  # type: ignore[arg-type]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows[row] for row in ranked)
    return len(rows)


def record_key(record: Record) -> Key:
    """Return task, backbone and pattern of a record."""
    return record.cell["task"], record.cell["backbone"], record.cell["pattern"]


def data_hash(record: Record) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of the record's data fingerprint and task version."""
    content = json.dumps([record.data, record.task_version], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _validation(record: Record) -> str:
    """Return the last validation loss of a run; empty if it has none."""
    losses = [entry["validation"] for entry in record.history if entry.get("validation") is not None]
    return repr(losses[-1]) if losses else ""
